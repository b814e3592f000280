"""Looking at everything of a lane, for `logstore verify`: what is damaged, also where readers can do without it.

The records in its entries are checked with their partitions, not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.lanes.whole_lane import lanes_of, whole_state
from logstore.errors import CorruptData, ObjectNotFound
from logstore.format.errors import FormatError
from logstore.format.stored.entry import ClaimKey, Part, check_whole
from logstore.layout.paths import LanePaths, PartitionPaths
from logstore.objects.fan_out import fan_out
from logstore.objects.protocol import ObjectStore


def damage_in_lanes(store: ObjectStore) -> Iterator[CorruptData]:
    """Of checkpoints, entries, and the claims that lead into lanes."""
    moved: set[ClaimKey] = set()
    leading: list[tuple[LanePaths, ClaimKey, Part, Part]] = []
    for lane in lanes_of(store):
        log = LaneLog(store, LanePaths(lane))
        state = whole_state(log)
        yield from _damage_of(log, state)
        for key, one in state.claims.items():
            if one.moved is not None:
                moved.add(one.moved.fence.claim)
            if one.parts and not one.is_left:
                leading.append((log.paths, key, one.parts[0].part, one.parts[-1].part))
    for paths, key, first, last in leading:
        if key not in moved and (missing := _missing_claim(store, paths, key, first, last)) is not None:
            yield missing


def _damage_of(log: LaneLog, state: LaneState) -> Iterator[CorruptData]:
    try:
        log.checkpoint()
    except CorruptData as damage:
        yield damage
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


def _damage_at(log: LaneLog, key: str) -> CorruptData | None:
    try:
        check_whole(log.store.get(key))
    except ObjectNotFound:
        return None  # it was split meanwhile
    except FormatError as damage:
        return CorruptData(key, None, damage.why)
    return None


def _missing_claim(
    store: ObjectStore, lane: LanePaths, key: ClaimKey, first: Part, last: Part
) -> CorruptData | None:
    """The lane has records of a partition, and nothing in that one's chain leads here, and no other lane."""
    paths = PartitionPaths.of(key.prefix)
    if paths is None:
        return None
    fence = paths.segment(first.seq - 1)
    head = store.head(fence)
    if (head is not None and head.size) or store.head(paths.manifest) is not None:
        return None
    return CorruptData(
        fence,
        first.base_offset,
        f"the claim is missing that leads into {lane}, where the records from there to {last.end_offset} are",
    )
