"""Removing a partition whose topic was deleted: end its chain, then take its records away.

The chain ends with a fence that says so: a writer in another process meets it in its next segment's place and stops. A
writer that slept longer, while others went on, finds another's segment in its place: the fence of whoever took over, or, of
shared and replicated writers, any segment of any of them. So all of these stay, as segments without records that say that
the topic is gone. What only the owner of its time could have written is deleted, and so is all else.

Safe to repeat, to interrupt anywhere, and to run in several processes at once: the topic's descriptor says that it is gone
before this begins, and that it is being removed until all of it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from logstore.engine.chain import Chain, ChainTail, LostRace
from logstore.engine.side_by_side import side_by_side
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

_EMPTY_SIZE = HEADER_SIZE + FOOTER_SIZE
_DOUBTS_MAX = 5  # answers that may get lost before the caller is asked to try again
_GONE = SegmentFlags.FENCE | SegmentFlags.DELETED


def remove_partition(chain: Chain, new_id: Callable[[], bytes], now_ms: int) -> list[ObjectInfo]:
    """End the chain and remove its records. Returns what went."""
    tail = _end(chain, new_id, now_ms)
    gone = leftovers(chain)
    for _ in side_by_side(partial(_remove, chain, info, tail) for info in gone):
        pass
    return gone


def is_removed(chain: Chain) -> bool:
    """Whether its end says so. There may be leftovers all the same: somebody was merging it meanwhile, or slept."""
    return chain.load().tail.deleted


def leftovers(chain: Chain) -> list[ObjectInfo]:
    """What there is to remove: everything but segments without records."""
    return [
        info
        for info in chain.store.list(chain.paths.prefix)
        if chain.paths.seq_of(info.key) is None or info.size != _EMPTY_SIZE
    ]


def _end(chain: Chain, new_id: Callable[[], bytes], now_ms: int) -> ChainTail:
    """The chain's tail, ended by us or by somebody else."""
    tail = chain.load().tail
    while not tail.deleted:
        end = _end_header(tail, tail.next_seq, new_id(), now_ms)
        if _commit_end(chain, end):
            return tail.after(end)
        for link in chain.follow(tail):
            tail = tail.after(link.header)
    return tail


def _end_header(tail: ChainTail, seq: int, identity: bytes, now_ms: int) -> SegmentHeader:
    start = tail.start_offset
    return SegmentHeader(
        seq=seq,
        epoch=tail.epoch + 1,
        base_offset=start,
        end_offset=start,
        writer_id=identity,
        created_at_ms=now_ms,
        reserved_until=start,
        mode=WriterMode.EXCLUSIVE,
        flags=_GONE,
    )


def _commit_end(chain: Chain, header: SegmentHeader) -> bool:
    """False if somebody else's segment stands there."""
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


def _remove(chain: Chain, info: ObjectInfo, tail: ChainTail) -> None:
    seq = chain.paths.seq_of(info.key)
    bare = None if seq is None else _bare_at(chain, seq, tail)
    if bare is None:
        chain.store.delete(info.key)
    else:
        chain.store.put(info.key, build_segment(bare, [])[0])


def _bare_at(chain: Chain, seq: int, tail: ChainTail) -> SegmentHeader | None:
    """What stays in a segment's place; None if nothing need to."""
    try:
        header = chain.header_at(seq)
    except (CorruptData, UnsupportedStore):  # it might have been anybody's
        return _end_header(tail, seq, bytes(16), 0)
    if header is None or (header.mode is WriterMode.EXCLUSIVE and SegmentFlags.FENCE not in header.flags):
        return None
    return replace(header, base_offset=header.end_offset, flags=_GONE)
