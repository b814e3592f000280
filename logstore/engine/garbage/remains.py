"""What is taken away, and what of it stays in the places of the chain."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial

from logstore.engine.chain.chain import Chain
from logstore.engine.garbage.garbage import Garbage
from logstore.errors import CorruptData, UnsupportedStore
from logstore.format.stored.extras import NO_EXTRAS
from logstore.format.stored.segment import EMPTY_SIZE, SegmentFlags, SegmentHeader, WriterMode, collected
from logstore.layout.paths import PartitionPaths
from logstore.objects.fan_out import fan_out

logger = logging.getLogger(__name__)

Headers = Mapping[int, SegmentHeader | None]
"""What is in the places of a chain; None where nothing is. Places that cannot be read are left out."""


def headers_at(chain: Chain, seqs: Iterable[int]) -> dict[int, SegmentHeader | None]:
    """What is in these places and in the one behind each; None if nothing does. What cannot be read is left out."""

    def one(seq: int) -> dict[int, SegmentHeader | None]:
        try:
            return {seq: chain.header_at(seq)}
        except (CorruptData, UnsupportedStore):
            return {}

    places = sorted({place for seq in seqs for place in (seq, seq + 1)})
    found: dict[int, SegmentHeader | None] = {}
    for some in fan_out(partial(one, seq) for seq in places):
        found |= some
    return found


def is_inner(header: SegmentHeader, headers: Headers) -> bool:
    """Whether a segment's place may be emptied: it lies in the middle of an exclusive epoch, where nobody but its owner
    could have written, and the owner went on. `headers`: what is in its place and behind it, where that can be read.
    An empty place behind it was such a one, too, so it was of the same epoch."""
    if header.mode is not WriterMode.EXCLUSIVE or SegmentFlags.FENCE in header.flags:
        return False
    if header.seq + 1 not in headers:
        return False
    behind = headers[header.seq + 1]
    return behind is None or (behind.epoch == header.epoch and behind.mode is header.mode)


def goes(paths: PartitionPaths, key: str, size: int, headers: Headers) -> bool:
    """Not what is gone, a bare header already, or a fence, or might be one because it cannot be read."""
    seq = paths.seq_of(key)
    if seq is None:
        return size > 0
    header = headers.get(seq)
    stays = SegmentFlags.FENCE | SegmentFlags.COLLECTED
    return size > EMPTY_SIZE and header is not None and not header.flags & stays


def take_away(chain: Chain, garbage: Iterable[Garbage], headers: Headers) -> None:
    """Merged objects, and segments of which `headers` tells what stays in their places."""

    def one(key: str) -> None:
        seq = chain.paths.seq_of(key)
        header = None if seq is None else headers[seq]
        if header is None or is_inner(header, headers):
            chain.store.delete(key)
        else:
            _leave_header(chain, key, header)

    for _ in fan_out(partial(one, item.key) for item in garbage):
        pass


def _leave_header(chain: Chain, key: str, header: SegmentHeader) -> None:
    """With the list of its appends, if there is one: whose they were must not be forgotten."""
    link = chain.link_at(header.seq) if header.has_extras else None
    extras = NO_EXTRAS if link is None else link.extras
    if extras is None:
        logger.error("%s: the list of its appends is damaged; it is not collected", key)
    else:
        chain.store.put(key, collected(header, extras))
