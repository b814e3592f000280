"""Retention waits for whoever copies a topic elsewhere, for a while: see `layout.holds`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from logstore.engine.chain.segment_table import Segments
from logstore.errors import CorruptData, UnsupportedStore
from logstore.layout.holds import holds_of
from logstore.layout.paths import PartitionPaths
from logstore.objects.protocol import ObjectStore

logger = logging.getLogger(__name__)


def held_back(
    store: ObjectStore,
    paths: PartitionPaths,
    segments: Segments,
    low: int,
    newest_ms: Callable[[int], int],
    oldest_ms: int,
) -> int:
    """Where records are kept from, if retention says `low` and what is older than `oldest_ms` would be due anyway.

    `newest_ms` tells a segment's newest record, by its row. An object that cannot be read holds everything: who
    takes it away by hand, or with `forget`, decides.
    """
    try:
        holds = holds_of(store, paths.topic, paths.incarnation)
    except (CorruptData, UnsupportedStore) as error:
        logger.error("%s: nothing is expired: %s", paths, error)
        return segments.table.base_offset[0] if len(segments) else low
    for hold in holds:
        wanted = hold.offsets.get(paths.partition, 0)
        first_wanted = segments.row_at(wanted)
        limit_ms = oldest_ms - int(hold.seconds * 1000)
        kept = low
        for row in range(first_wanted, len(segments)):
            if segments.table.base_offset[row] >= low:
                break
            if newest_ms(row) >= limit_ms:
                kept = max(wanted, segments.table.base_offset[row])
                break
        if kept < low:
            logger.info("%s: kept from %d on, not %d, for %s", paths, kept, low, hold.who)
        low = min(low, kept)
    return low
