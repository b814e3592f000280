"""Looking at everything of a lane, for `logstore verify`: what is damaged, also where readers can do without it.

The records in its entries are checked with their partitions, not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.lane_reader import whole_state
from logstore.engine.lanes.lane_state import LaneState
from logstore.errors import CorruptData, ObjectNotFound
from logstore.format.errors import FormatError
from logstore.format.stored.entry import check_whole
from logstore.layout.paths import PartitionPaths
from logstore.objects.fan_out import fan_out


def damage_of(log: LaneLog) -> Iterator[CorruptData]:
    """Of its checkpoint, its entries, and the claims that lead into it."""
    try:
        log.checkpoint()
    except CorruptData as damage:
        yield damage
    state = whole_state(log)
    keys = [
        info.key
        for info in log.store.list(log.paths.prefix)
        if info.size and log.paths.seq_of(info.key) is not None
    ]
    damaged = [
        damage for damage in fan_out(partial(_damage_at, log, key) for key in keys) if damage is not None
    ]
    yield from damaged
    named = {damage.key for damage in damaged}
    for place, why in state.lost.items():
        if (key := log.paths.entry(place)) not in named:
            yield CorruptData(key, None, why)
    yield from _missing_claims(log, state)


def _damage_at(log: LaneLog, key: str) -> CorruptData | None:
    try:
        check_whole(log.store.get(key))
    except ObjectNotFound:
        return None  # it was split meanwhile
    except FormatError as damage:
        return CorruptData(key, None, damage.why)
    return None


def _missing_claims(log: LaneLog, state: LaneState) -> Iterator[CorruptData]:
    """The lane has records of a partition, and nothing in that one's chain leads here."""
    for key, claim in state.claims.items():
        paths = PartitionPaths.of(key.prefix)
        if claim.is_left or not claim.parts or paths is None:
            continue
        fence, manifest = paths.segment(claim.parts[0].part.seq - 1), paths.manifest
        head = log.store.head(fence)
        if (head is None or not head.size) and log.store.head(manifest) is None:
            first, last = claim.parts[0].part, claim.parts[-1].part
            yield CorruptData(
                fence,
                first.base_offset,
                f"the claim is missing that leads into {log.paths}, where the records from there to {last.end_offset} are",
            )
