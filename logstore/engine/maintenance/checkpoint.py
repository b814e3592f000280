"""Checkpoints: a manifest of the chain every so many segments, so that opening stays cheap.

Runs on threads of its own, off the commit path: a manifest that cannot be written now is written later. What the manifest
in the store says about segments below its own end wins over what this process remembers: maintenance may have merged or
expired them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.manifests.manifest_store import StoredManifest
from logstore.engine.chain.view import ChainView
from logstore.engine.maintenance.maintenance import Maintenance
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.runtime import Runtime
from logstore.errors import LogStoreError, PreconditionFailed
from logstore.format.stored.manifest import SegmentTable

logger = logging.getLogger(__name__)

EVERY_SEGMENTS = 64
EVERY_PARTS = 512
"""Of a lane's entries, whose own checkpoint knows them: so a flush of many partitions stays few requests."""
LANES_MAX = 8
"""In so many a partition may have something, of processes that came and went, before a manifest holds all of it: each of
them is a few requests more for whoever opens the partition."""


class Maintained(Protocol):
    """A partition, as its checkpointer knows it. Its maintenance is made again for each round: most partitions of a process
    that writes a thousand of them have none for a long time."""

    @property
    def maintenance(self) -> Maintenance: ...


class Checkpointer:
    """After a checkpoint it also runs one round of maintenance, if no other partition of the store is at it."""

    def __init__(
        self,
        runtime: Runtime,
        chain: Chain,
        state: PartitionState,
        view: ChainView,
        partition: Maintained,
        refresh_settings: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._chain = chain
        self._state = state
        self._next_seq = view.manifest_next_seq
        self._lanes_behind = view.lane_count
        self._partition = partition
        self._refresh_settings = refresh_settings

    def after_commit(self) -> None:
        """Ask for a checkpoint if enough segments have come since the last one."""
        every = EVERY_SEGMENTS if self._state.tail.claim is None else EVERY_PARTS
        if self._state.tail.next_seq - self._next_seq >= every or self._lanes_behind >= LANES_MAX:
            self._runtime.upkeep.at(self, self._runtime.clock.monotonic())

    def run(self) -> None:
        try:
            view = self.write()
            self._lanes_behind = 0
            self._maintain(view)
        except PreconditionFailed as error:
            # Which is as good as ours.
            logger.debug("%s: another process was faster with the checkpoint: %s", self._chain.paths, error)
        except LogStoreError as error:
            logger.warning(
                "%s: no checkpoint this time, the next segments try again: %s", self._chain.paths, error
            )

    def _maintain(self, view: ChainView | None) -> None:
        runtime = self._runtime
        if runtime.maintaining.acquire(blocking=False):
            try:
                self._refresh_settings()
                view = self._partition.maintenance.run(
                    view or self._chain.load(), runtime.clock.now_ms(), runtime.new_id()
                )
            finally:
                runtime.maintaining.release()
        if view is not None:
            self._state.replace_view(view)

    def write(self) -> ChainView | None:
        """Write a manifest that covers everything committed so far, and return what it says: others may have merged. None is
        written while an object is missing or unreadable, where another process has seen more of the chain, or once the
        topic was deleted."""
        if not self._state.segments.is_complete:
            self._next_seq = self._state.tail.next_seq  # look again after as many segments as always
            return None
        if self._state.segments.table.placed:
            return self._split()
        stored = StoredManifest.look(self._chain)
        old = stored.manifest
        if old is not None and old.next_seq >= self._state.tail.next_seq:
            self._next_seq = old.next_seq
            return None
        if old is None and (stored.etag is not None or self._next_seq or not self._is_first()):
            return self._rewrite(stored)
        table = old.table if old is not None else SegmentTable()
        tail, low = self._state.extend_table(table, old.next_seq if old is not None else 0)
        if tail.deleted:
            return None  # which only the chain's end itself says
        low = max(low, old.low_watermark) if old is not None else low
        view = stored.replace(stored.next(tail, low, table))
        self._next_seq = tail.next_seq
        return view

    def _split(self) -> ChainView | None:
        """Some of it is in lanes, and a manifest names only objects of the partition's own."""
        self._refresh_settings()
        view = self._partition.maintenance.split(self._chain.load(), self._runtime.clock.now_ms())
        self._next_seq = self._state.tail.next_seq if view is None else view.tail.next_seq
        return view

    def _is_first(self) -> bool:
        """Whether the store holds all that we remember, and nothing merged. If not, there was a manifest once that we have
        never seen, and it is lost."""
        ours = self._state.refs()
        return not any(self._chain.store.list(self._chain.paths.merged_prefix)) and self._chain.holds(ours)

    def _rewrite(self, stored: StoredManifest) -> ChainView | None:
        """There was a manifest and it is damaged, or lost. The store itself tells which objects hold the records now: those
        that we remember may have been merged and deleted by others, and only the lost one said so."""
        found = self._chain.load()
        self._next_seq = found.tail.next_seq
        if not found.segments.is_complete or found.tail.deleted:
            return None
        if stored.etag is None and not self._chain.holds(found.segments.all()):
            return None  # one came and got lost while we read: its condition is met again, and what it replaced is gone
        found.low_watermark = max(self._state.low, found.low_watermark)
        return stored.replace(stored.next_of(found, self._runtime.clock.now_ms()))
