"""Maintenance of lanes: what partitions have in old entries becomes objects of their own, and the entries go.

Contiguous places, never the newest entry. First each partition's manifest names its records elsewhere, then the lane's
checkpoint says `split_until`, and only then data entries below it are deleted: at any time, by anybody, late or twice.
Seals, fences and void entries stay for ever, because somebody that slept may come to this very place. A lane whose owner may
live is split by its owner alone.
"""

from __future__ import annotations

import logging
from functools import partial

from logstore.config import TopicConfig
from logstore.engine.chain.bases import base_of_view
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.view import ChainView
from logstore.engine.garbage.garbage import Garbage
from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.lanes.whole_lane import lanes_of, whole_state
from logstore.engine.maintenance.maintenance import Maintenance
from logstore.engine.runtime import Runtime
from logstore.errors import LogStoreError
from logstore.format.stored.entry import ClaimKey
from logstore.layout.paths import LanePaths, PartitionPaths
from logstore.objects.fan_out import fan_out
from logstore.objects.protocol import ObjectInfo
from logstore.objects.settled import put_settled

logger = logging.getLogger(__name__)

_TRIES = 3


class LaneMaintenance:
    """Holds no state of its own."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def split(self, key: ClaimKey, next_seq: int) -> ChainView | None:
        """Make sure that the partition's manifest holds its chain up to the place `next_seq`, or that its topic is gone.
        Returns what is known of it then; None if that could not be done now."""
        paths = PartitionPaths.of(key.prefix)
        assert paths is not None, "a claim names a partition"
        runtime = self._runtime
        chain = Chain(runtime.store, paths, runtime.rng, runtime.lanes)
        maintenance = Maintenance(chain, runtime.reader, TopicConfig(), runtime.config.delete_grace)
        try:
            for _ in range(_TRIES):
                view = chain.load()
                if view.tail.deleted or view.manifest_next_seq >= next_seq:
                    return view.without_parts()
                split = maintenance.split(view, runtime.clock.now_ms())
                if split is not None and split.manifest_next_seq >= next_seq:
                    return split
        except LogStoreError as error:
            logger.warning("%s: what it has in a lane stays there for now: %s", paths, error)
        return None

    def garbage(self) -> list[Garbage]:
        """What `collect` would delete now, if it can split what it would split."""
        return [garbage for log in self._logs() for garbage in self._due(log, self._as_if_split(log))]

    def _as_if_split(self, log: LaneLog) -> LaneState:
        state = whole_state(log)
        if state.next_seq - 1 > state.split_until and state.has_ended_whole and not state.lost:
            state.note_split(state.next_seq - 1, self._runtime.clock.now_ms())
        return state

    def collect(self) -> list[Garbage]:
        """Split the lanes that have ended, and delete what was split before the grace period. Returns what went."""
        gone: list[Garbage] = []
        for log in self._logs():
            try:
                gone += self._collect(log)
            except LogStoreError as error:
                logger.warning("%s: left for the next time: %s", log.paths, error)
        return gone

    def _logs(self) -> list[LaneLog]:
        store = self._runtime.store
        return [LaneLog(store, LanePaths(name)) for name in lanes_of(store)]

    def _collect(self, log: LaneLog) -> list[Garbage]:
        state = self._runtime.lanes.snapshot(log.paths.lane)
        until = state.next_seq - 1
        if state.lost:
            logger.error(
                "%s: entries of it are lost, so it is left as it is: places %s", log.paths, sorted(state.lost)
            )
        elif (until > state.split_until or state.is_rebuilt) and state.has_ended_whole:
            self._split_ended(log, until)
        due = self._due(log, LaneState(log.checkpoint()))
        for _ in fan_out(partial(self._runtime.store.delete, item.key) for item in due):
            pass
        return due

    def _split_ended(self, log: LaneLog, until: int) -> None:
        # The etag first: what comes between the two requests is not replaced.
        head: ObjectInfo | None = self._runtime.store.head(log.paths.checkpoint)
        state = whole_state(log)
        views = {key: self.split(key, seq) for key, seq in state.parts_below(until).items()}
        left = {key for key, view in views.items() if view is None}
        state.note_split(min(until, state.first_entry_of(left)), self._runtime.clock.now_ms())
        self._renew_bases(state, views)
        packed = state.checkpoint(self._runtime.rng.randbytes(8)).pack()
        put_settled(self._runtime.store, log.paths.checkpoint, packed, head and head.etag)

    @staticmethod
    def _renew_bases(state: LaneState, views: dict[ClaimKey, ChainView | None]) -> None:
        """Of partitions that nobody has gone on with: they are known by this lane still."""
        bases = state.bases
        for key, view in views.items():
            base = base_of_view(view) if view is not None and view.tail.epoch == key.epoch else None
            if view is not None and base is not None:
                bases.of[key] = base
                bases.raise_lows({key: view.low_watermark})
        state.put_bases(bases)

    def _due(self, log: LaneLog, state: LaneState) -> list[Garbage]:
        before_ms = self._runtime.clock.now_ms() - int(self._runtime.config.delete_grace * 1000)
        until, kept = state.deletable(before_ms), set(state.kept)
        return [
            Garbage(info.key, info.size)
            for info in self._runtime.store.list(log.paths.prefix)
            if (seq := log.paths.seq_of(info.key)) is not None and seq < until and seq not in kept
        ]
