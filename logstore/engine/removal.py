"""Removing a partition whose topic was deleted: end its chain, then take its records away.

The chain ends with a fence that says so: a writer in another process meets it in its next segment's place and stops. A
writer that slept longer, while others took the partition over, goes on where the first of *them* put its fence. So every
fence stays; one that also carries records (from a WAL) is replaced by one that carries none. All else is deleted.

Safe to repeat, to interrupt anywhere, and to run in several processes at once: the topic's descriptor says that it is gone
before this begins, and that it is being removed until all of it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from logstore.engine.chain import Chain, ChainTail, LostRace
from logstore.errors import CorruptData, Indeterminate, UnsupportedStore
from logstore.format.segment import (
    FOOTER_SIZE,
    HEADER_SIZE,
    SegmentFlags,
    SegmentHeader,
    WriterMode,
    build_segment,
)
from logstore.objects.protocol import ObjectInfo

_PARALLEL = 8
_EMPTY_SIZE = HEADER_SIZE + FOOTER_SIZE
_DOUBTS_MAX = 5  # answers that may get lost before the caller is asked to try again
_GONE = SegmentFlags.FENCE | SegmentFlags.DELETED


def remove_partition(chain: Chain, new_id: Callable[[], bytes], now_ms: int) -> list[ObjectInfo]:
    """End the chain and remove its records. Returns what went."""
    _end(chain, new_id, now_ms)
    gone = leftovers(chain)
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="logstore-remove") as pool:
        for _ in pool.map(lambda info: _remove(chain, info), gone):
            pass
    return gone


def leftovers(chain: Chain) -> list[ObjectInfo]:
    """What there is to remove: everything but segments without records."""
    return [
        info
        for info in chain.store.list(chain.paths.prefix)
        if chain.paths.seq_of(info.key) is None or info.size != _EMPTY_SIZE
    ]


def _end(chain: Chain, new_id: Callable[[], bytes], now_ms: int) -> None:
    tail = chain.load().tail
    while not tail.deleted and not _commit_end(chain, tail, new_id(), now_ms):
        for link in chain.follow(tail):
            tail = tail.after(link.header)


def _commit_end(chain: Chain, tail: ChainTail, identity: bytes, now_ms: int) -> bool:
    """False if somebody else's segment stands there."""
    start = tail.start_offset
    header = SegmentHeader(
        seq=tail.next_seq,
        epoch=tail.epoch + 1,
        base_offset=start,
        end_offset=start,
        writer_id=identity,
        created_at_ms=now_ms,
        reserved_until=start,
        mode=WriterMode.EXCLUSIVE,
        flags=_GONE,
    )
    data = build_segment(header, [])[0]
    for last_try in [*[False] * (_DOUBTS_MAX - 1), True]:
        try:
            chain.commit(header, data)
        except LostRace:
            return False
        except Indeterminate:
            if last_try:
                raise
        else:
            return True
    raise AssertionError("unreachable")


def _remove(chain: Chain, info: ObjectInfo) -> None:
    seq = chain.paths.seq_of(info.key)
    fence = None if seq is None else _fence_at(chain, seq)
    if fence is None:
        chain.store.delete(info.key)
    else:
        bare = replace(fence, base_offset=fence.end_offset, flags=_GONE)
        chain.store.put(info.key, build_segment(bare, [])[0])


def _fence_at(chain: Chain, seq: int) -> SegmentHeader | None:
    try:
        header = chain.header_at(seq)
    except (CorruptData, UnsupportedStore):
        return None
    return header if header is not None and SegmentFlags.FENCE in header.flags else None
