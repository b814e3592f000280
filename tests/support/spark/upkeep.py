"""Maintenance between two looks at a log."""

from __future__ import annotations

from typing import Any

import logstore
from logstore.engine.chain.block_cache import BlockCache
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.maintenance.maintenance import Maintenance
from logstore.layout.paths import PartitionPaths
from logstore.objects import ObjectStore, open_url
from logstore.objects.wrappers.slices import SlicedStore


def maintenance_of(where: str | ObjectStore, paths: PartitionPaths, **settings: Any) -> Maintenance:
    store = SlicedStore(open_url(where))
    config = logstore.TopicConfig(**settings)
    return Maintenance(Chain(store, paths), SegmentReader(store, BlockCache(1 << 20)), config, 0.0)


FAR_FUTURE_MS = 4_000_000_000_000


def merge_everything(where: str | ObjectStore, paths: PartitionPaths) -> int:
    """Merge, and delete what was replaced at once, as if the grace period were long over."""
    work = maintenance_of(where, paths)
    merged = work.compact(FAR_FUTURE_MS, b"m" * 16)
    work.collect(2 * FAR_FUTURE_MS)
    return merged


def expire_half(where: str, paths: PartitionPaths) -> int:
    view = Chain(open_url(where), paths).load()
    work = maintenance_of(where, paths, retention_bytes=sum(view.segments.table.size) // 2)
    work.expire(FAR_FUTURE_MS)
    work.collect(2 * FAR_FUTURE_MS)
    return Chain(open_url(where), paths).load().low_watermark
