"""Writing manifests: a checkpoint of the chain every so many segments, so that opening stays cheap.

Runs on the flusher, off the commit path: a manifest that cannot be written now is written later. It is replaced only by
`If-Match`, and what the manifest in the store says about segments below its own end wins over what this process remembers:
maintenance may have merged or expired them.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable

from logstore.engine.chain import Chain
from logstore.engine.maintenance import Maintenance
from logstore.engine.runtime import Runtime
from logstore.engine.takeover import reload
from logstore.engine.tiers import Tiers
from logstore.errors import LogStoreError, ObjectNotFound, UnsupportedStore
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.manifest import Manifest, SegmentTable

logger = logging.getLogger(__name__)

EVERY_SEGMENTS = 64


class Checkpointer:
    """After a checkpoint it also runs one round of maintenance, if no other partition of the store is at it."""

    def __init__(
        self,
        runtime: Runtime,
        chain: Chain,
        tiers: Tiers,
        manifest_next_seq: int,
        maintenance: Maintenance,
        refresh_settings: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._chain = chain
        self._tiers = tiers
        self._next_seq = manifest_next_seq
        self._maintenance = maintenance
        self._refresh_settings = refresh_settings

    def after_commit(self) -> None:
        """Ask for a checkpoint if enough segments have come since the last one."""
        if self._tiers.tail.next_seq - self._next_seq >= EVERY_SEGMENTS:
            self._runtime.flusher.at(self, self._runtime.clock.monotonic())

    def run(self) -> None:
        try:
            self.write()
            self._maintain()
        except LogStoreError as error:
            logger.warning(
                "%s: no checkpoint this time, the next segments try again: %s", self._chain.paths, error
            )

    def _maintain(self) -> None:
        if self._runtime.maintaining.acquire(blocking=False):
            try:
                self._refresh_settings()
                self._maintenance.run(self._runtime.clock.now_ms(), self._runtime.new_id())
            finally:
                self._runtime.maintaining.release()
            reload(self._chain, self._tiers)

    def write(self) -> None:
        """Write a manifest that covers everything committed so far; none while an object is missing or unreadable."""
        if not self._tiers.segments.is_complete:
            self._next_seq = self._tiers.tail.next_seq  # look again after as many segments as always
            return
        key, store = self._chain.paths.manifest, self._chain.store
        known = store.head(key)
        old = self._stored()
        if old is not None and old.next_seq >= self._tiers.tail.next_seq:
            self._next_seq = old.next_seq  # another process has seen more of the chain than we have
            return
        with self._tiers.lock:
            tail, low = self._tiers.tail, self._tiers.low
            table = _joined(
                old.table if old else None, self._tiers.segments.table, old.next_seq if old else 0
            )
        manifest = Manifest(
            version=old.version + 1 if old else 1,
            next_seq=tail.next_seq,
            epoch=tail.epoch,
            mode=tail.mode,
            low_watermark=max(low, old.low_watermark) if old else low,
            end_offset=tail.end_offset,
            reserved_until=tail.reserved_until,
            source_upper=tail.source_upper,
            table=table,
            retired=old.retired if old else {},
        )
        data = manifest.pack()
        if known is None:
            store.put(key, data, if_absent=True)
        else:
            store.put(key, data, if_match=known.etag)
        self._next_seq = manifest.next_seq

    def _stored(self) -> Manifest | None:
        try:
            return Manifest.parse(self._chain.store.get(self._chain.paths.manifest))
        except ObjectNotFound:
            return None
        except UnsupportedVersion as error:
            raise UnsupportedStore(f"{self._chain.paths.manifest}: {error.why}; it is left alone") from error
        except FormatError as damage:
            logger.warning("%s: %s; it is written anew", self._chain.paths.manifest, damage)
            return None


def _joined(stored: SegmentTable | None, ours: SegmentTable, next_seq: int) -> SegmentTable:
    """The stored rows, and ours from `next_seq` on."""
    first = bisect_left(ours.last_seq, next_seq) if stored is not None else 0
    joined = stored or SegmentTable()
    for column, more in zip(joined.columns(), ours.columns(), strict=True):
        column.extend(more[first:])
    if stored is None:
        joined.merged.update(ours.merged)
    return joined
