"""Removing a partition whose topic was deleted: end its chain, then take its records away.

The chain ends with a fence that says so: a writer in another process meets it in its next segment's place and stops. Then
the manifest becomes a tombstone: it names nothing, and its horizon covers the whole chain up to that fence, so whoever
looks into an emptied place learns it. Both stay for good. Only then the records go, by the rules of garbage collection (see
`maintenance`): every fence stays, and the bare header of each segment that a writer that slept may come to, all of them
saying that the topic is gone.

Safe to repeat, to interrupt anywhere, and to run in several processes at once: the topic's descriptor says that it is gone
before this begins, and that it is being removed until all of it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from logstore.engine.chain.chain import Chain, LostRace
from logstore.engine.chain.manifests.manifest_store import StoredManifest
from logstore.engine.chain.many_chains import load_some
from logstore.engine.chain.tail import ChainTail
from logstore.engine.chain.view import ChainView
from logstore.engine.garbage.remains import headers_at, is_inner
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.errors import CorruptData, PreconditionFailed
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim
from logstore.format.stored.manifest import SegmentTable
from logstore.format.stored.retired import Retired
from logstore.format.stored.segment import EMPTY_SIZE, SegmentFlags, SegmentHeader, WriterMode, build_segment
from logstore.objects.fan_out import fan_out
from logstore.objects.protocol import ObjectInfo
from logstore.objects.settled import Doubts

_GONE = SegmentFlags.FENCE | SegmentFlags.DELETED


def end_claims(chains: Sequence[Chain], lanes: LaneReader, new_id: Callable[[], bytes], now_ms: int) -> None:
    """End the claims of all these partitions with one seal for each lane, where one for each partition would stay in it for
    good. Whatever is not ended by that, `remove_partition` ends, or says why it cannot."""
    claims: dict[str, list[tuple[Claim, ClaimKey]]] = {}
    for chain, view in load_some(chains, lanes, len(chains)).items():
        if isinstance(view, ChainView) and view.tail.claim is not None:
            key = ClaimKey(chain.paths.prefix, view.tail.epoch)
            claims.setdefault(view.tail.claim.lane, []).append((view.tail.claim, key))
    for of_one in claims.values():
        with suppress(CorruptData):
            lanes.end_claims(of_one, new_id, now_ms, b"")


def remove_partition(chain: Chain, new_id: Callable[[], bytes], now_ms: int) -> list[ObjectInfo]:
    """End the chain and remove its records. Returns what went."""
    tail = _end(chain, new_id, now_ms)
    _bury(chain, tail)
    gone = leftovers(chain)
    seqs, _ = chain.paths.names_of(info.key for info in gone)
    headers = headers_at(chain, seqs)
    for _ in fan_out(partial(_remove, chain, info, tail, headers) for info in gone):
        pass
    return gone


def is_removed(chain: Chain) -> bool:
    """Whether its end says so. There may be leftovers all the same: somebody was compacting it meanwhile, or slept."""
    return chain.load().tail.deleted


def leftovers(chain: Chain) -> list[ObjectInfo]:
    """What there is to remove: everything but segments without records, and the tombstone."""
    return [
        info
        for info in chain.store.list(chain.paths.prefix)
        if info.key != chain.paths.manifest
        and (chain.paths.seq_of(info.key) is None or info.size != EMPTY_SIZE)
    ]


def _end(chain: Chain, new_id: Callable[[], bytes], now_ms: int) -> ChainTail:
    """The chain's tail, ended by us or by somebody else."""
    tail = chain.load().tail
    while not tail.deleted:
        if tail.claim is not None:
            chain.end_claim(tail, new_id, now_ms)
            if chain.follow(tail) != []:
                tail = chain.load().tail
                continue
        end = _end_header(tail, tail.next_seq, new_id(), now_ms)
        links = None
        if _commit_end(chain, end):
            if not (tail.may_be_emptied and chain.is_past(end.seq, tail.horizon, end.seq)):
                return tail.after(end)
        else:
            links = chain.follow(tail)
        if links is None:
            tail = chain.load().tail
        for link in links or ():
            tail = tail.after(link.header, link.said)
    return tail


def _bury(chain: Chain, tail: ChainTail) -> None:
    """Make the manifest a tombstone. The end of the chain is not covered by it: that must be seen in the chain itself."""
    end, doubts = tail.next_seq - 1, Doubts()
    while True:
        stored = StoredManifest.look(chain)
        old = stored.manifest
        if old is not None and old.collected_until >= end and not len(old.table) and old.next_seq >= end:
            return
        tombstone = stored.next(tail._replace(next_seq=end), tail.end_offset, SegmentTable())
        # A merge or a checkpoint may be faster: the next one sees the chain's end.
        with suppress(PreconditionFailed), doubts:
            stored.replace(replace(tombstone, collected_until=end, retired=Retired()))
            return


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
    """False if somebody else's segment is there."""
    data = build_segment(header, [])[0]
    doubts = Doubts()
    while True:
        try:
            with doubts:
                chain.commit(header, data)
                return True
        except LostRace:
            return False


def _remove(
    chain: Chain, info: ObjectInfo, tail: ChainTail, headers: Mapping[int, SegmentHeader | None]
) -> None:
    seq = chain.paths.seq_of(info.key)
    if seq is None:
        chain.store.delete(info.key)
        return
    if seq in headers and info.size:
        header = headers[seq]
        if header is None:
            return
        if is_inner(header, headers):
            chain.store.delete(info.key)
            return
        bare = replace(header, base_offset=header.end_offset, flags=_GONE)
    else:  # it cannot be read, or has no bytes: it might have been anybody's
        bare = _end_header(tail, seq, bytes(16), 0)
    chain.store.put(info.key, build_segment(bare, [])[0])
