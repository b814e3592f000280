"""A lane as it is in the store, read whole: by its checkpoint and the entries behind that, or without one."""

from __future__ import annotations

import logging

from logstore.engine.lanes.lane_log import LaneLog, LostEntry
from logstore.engine.lanes.lane_state import LaneState
from logstore.errors import CorruptData
from logstore.format.stored.entry import Entry
from logstore.layout.paths import LANES_PREFIX
from logstore.objects.protocol import ObjectStore

logger = logging.getLogger(__name__)


def read_state(
    log: LaneLog, said: LaneState | None = None
) -> tuple[LaneState, list[Entry | LostEntry], bytes | None]:
    """The lane as its checkpoint tells it, or as its entries tell it if that cannot be read; the entries behind that; and
    the front of a checkpoint that is damaged. `said`: what the checkpoint says, if it was read before; it is used up."""
    damaged: bytes | None = None
    try:
        state = LaneState(log.checkpoint()) if said is None else said
        found = log.entries_from(state.next_seq, state.open_claims)
        if state.next_seq or not found or not isinstance(found[0], LostEntry) or log.is_there(0):
            return state, found, None
        logger.error("%s: it has no checkpoint and its first entries are gone; it is read without", log.paths)
    except CorruptData as damage:
        if damage.key != log.paths.checkpoint:
            raise
        logger.error("%s; the lane is read without it", damage)
        damaged = log.front()
    state = LaneState(is_rebuilt=True)
    standing, known_until = log.standing(0)
    for place, entry in standing.items():
        if place > max(state.next_seq, known_until):
            break  # what is missing before it is on its way
        if place != state.next_seq:
            state.skip_to(place)
        state.take(entry)
    return state, log.entries_from(state.next_seq, state.open_claims), damaged


def lanes_of(store: ObjectStore) -> list[str]:
    """The names of all lanes that there are or were."""
    names = (info.key.removeprefix(LANES_PREFIX).split("/", 1)[0] for info in store.list(LANES_PREFIX))
    return list(dict.fromkeys(names))


def whole_state(log: LaneLog) -> LaneState:
    """The lane up to its first empty place."""
    state, found, _ = read_state(log)
    for entry in found:
        state.take(entry)
    return state
