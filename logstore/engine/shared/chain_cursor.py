"""The tail position of a writer that is not alone, and its admission rule for other writers' segments.

Shared and replicated writers do not fence at open: many of them are alive at once. They share an *epoch*, which has
one mode. The first of them to commit behind a writer of another mode begins the next epoch, which stops that
writer as a fence would; the others join it. A segment of another mode, or of a later epoch, means that somebody took the
partition over since we opened: that is `Fenced`, for good.

Behind a shared or replicated writer no place is ever emptied, so a commit there is one PUT, and an empty place is the end.
Behind an exclusive one it may have been. So the first of an epoch there is an empty segment (`open_epoch`), which
counts only after a look at the horizon, like a fence: if it is in the past, nobody has lost anything.

The cursor belongs to its writer and is moved by one thread at a time. What it meets it also hands to the partition's state,
so that readers in this process see it; readers may have been faster, which does no harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import replace

from logstore.engine.chain.chain import Chain, StalePlace
from logstore.engine.chain.fencing import WHAT_NOW, a_writer, stopped_by
from logstore.engine.chain.link import Link
from logstore.engine.chain.tail import ChainTail
from logstore.engine.memory.catch_up import reload
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.runtime import Runtime
from logstore.engine.write.ownership import check_may_stop
from logstore.errors import Fenced, UnknownTopic, fresh
from logstore.format.stored.segment import (
    SegmentFlags,
    SegmentHeader,
    SegmentSummary,
    WriterMode,
    build_segment,
)

ID_BYTES = 8
"""A segment's writer id is these many bytes of its writer and as many of its own: peers can tell each other apart."""
_NOT_STORED = "What was not acked here was not stored. "
READ_MAX = 48
"""Places that are asked for at once."""


class ChainCursor:
    """`passive`: a fence does not stop it, because it writes nothing yet: it goes on to follow the new owner."""

    def __init__(
        self,
        runtime: Runtime,
        chain: Chain,
        state: PartitionState,
        mode: WriterMode,
        *,
        passive: bool = False,
    ) -> None:
        tail = state.tail
        _check_goes_on(chain, tail)
        self.tail: ChainTail = tail
        self.mode = mode
        self.passive = passive
        self.writer_id = runtime.rng.randbytes(ID_BYTES)
        self.joined_epoch: int | None = tail.epoch if tail.mode is mode and tail.next_seq else None
        self._runtime = runtime
        self._chain = chain
        self._state = state
        self._opener: SegmentHeader | None = None

    @property
    def epoch(self) -> int:
        """The epoch that our next segment belongs to."""
        return self.tail.epoch + 1 if self.joined_epoch is None else self.joined_epoch

    def new_id(self) -> bytes:
        return self.writer_id + self._runtime.rng.randbytes(16 - ID_BYTES)

    def header(self, count: int, flags: SegmentFlags = SegmentFlags.NONE) -> SegmentHeader:
        """The header of a segment of `count` records at the next place; new each time, with a new id."""
        base = self.tail.start_offset
        return SegmentHeader(
            seq=self.tail.next_seq,
            epoch=self.tail.epoch + 1 if SegmentFlags.FENCE in flags else self.epoch,
            base_offset=base,
            end_offset=base + count,
            writer_id=self.new_id(),
            created_at_ms=self._runtime.clock.now_ms(),
            reserved_until=base + count,
            mode=self.mode,
            flags=flags,
        )

    @property
    def needs_opener(self) -> bool:
        """Whether `open_epoch` must come before records: an exclusive writer's segment is committed before the next
        place, or there is a claim to be ended first."""
        return self.tail.may_be_emptied or self.tail.claim is not None

    def open_epoch(self) -> None:
        """Begin an epoch with an empty segment. Raises what `commit` does; called again, it is the same segment. Raises
        `PartitionInUse` if the exclusive writer before it must not be stopped."""
        if self._opener is None or self._opener.seq != self.tail.next_seq:
            check_may_stop(self._chain, self.tail, self._runtime.config.take_over)
            upper = self.tail.source_upper
            if self.mode is WriterMode.REPLICATED:
                upper = max(0, upper)
            self._opener = replace(self.header(0), source_lower=upper, source_upper=upper)
        self.commit(self._opener, *build_segment(self._opener, []))

    def commit(self, header: SegmentHeader, data: memoryview, summary: SegmentSummary) -> bool:
        """Create the segment and move past it. False if it was committed and its records were collected since: then
        `rejoin`.

        Raises what `Chain.commit` does, and `StalePlace` if the place had been emptied: then `rejoin`, too.
        """
        self._leave_lane()
        is_doubtful = self.tail.may_be_emptied
        assert not (is_doubtful and summary.records), "records follow an opener"
        is_whole = self._chain.commit(header, data)
        if is_doubtful and self._chain.is_past(header.seq, self.tail.horizon, header.seq):
            raise StalePlace(header.seq)
        self.joined_epoch = header.epoch
        if is_whole:
            self._runtime.reader.keep(self._chain.paths.segment(header.seq), data, summary)
            self._advance_past(Link(summary, len(data)))
        else:
            self.tail = self.tail.after(header)
        return is_whole

    def _leave_lane(self) -> None:
        """Whoever goes on behind an exclusive writer's claim ends it first. `StalePlace` if that one was not done."""
        if self.tail.claim is not None:
            self._chain.end_claim(self.tail, self._runtime.new_id, self._runtime.clock.now_ms())
            if self._chain.follow(self.tail) != []:
                raise StalePlace(self.tail.next_seq)

    def advance(self) -> Link | None:
        """Move past the next segment if there is one: one request, two behind an exclusive writer's. Raises `Fenced` if it
        ends our epoch, and `StalePlace` if the chain has gone on from here long ago: then `rejoin`."""
        return self._take_in(self._chain.link_at(self.tail.next_seq))

    def read(
        self,
        ahead: int,
        saw: Callable[[Link], bool],
        *,
        collected: bool,
        pool: Executor | None,
        patience_s: float,
    ) -> int:
        """Move past what has come, up to the first empty place or until `saw` says that this will do. Returns how many there
        were. `ahead` places, or as many as were found, are asked for at once by threads of `pool`; those of no use are
        not waited for. One that has not been answered for `patience_s` is asked for once more. With `collected`, headers
        that garbage collection has left are gone past, too: what was there is elsewhere now, and readers here are told
        where before `saw` is asked."""
        clock = self._runtime.clock
        found, under_way = 0, deque[tuple[float, Future[Link | None]]]()
        try:
            while True:
                seq = self.tail.next_seq
                if pool is None:
                    link = self._chain.link_at(seq)
                else:
                    for place in range(seq + len(under_way), seq + max(ahead, min(found, READ_MAX))):
                        asked = pool.submit(self._chain.link_at, place)
                        under_way.append((clock.monotonic() + patience_s, asked))
                    until, asked = under_way.popleft()
                    if not wait([asked], max(0.0, until - clock.monotonic())).done:
                        again = pool.submit(self._chain.link_at, seq)
                        asked = wait([asked, again], return_when=FIRST_COMPLETED).done.pop()
                    link = asked.result()
                if collected and link is not None and SegmentFlags.COLLECTED in link.header.flags:
                    self._check_same_epoch(link)
                    if self._state.tail.next_seq <= seq:
                        self._reload()
                    self.tail = self.tail.after(link.header, link.said)
                elif self._take_in(link) is None:
                    return found
                assert link is not None
                found += 1
                if saw(link):
                    return found
        finally:
            for _, asked in under_way:
                asked.cancel()

    def _take_in(self, link: Link | None) -> Link | None:
        if link is not None and SegmentFlags.COLLECTED in link.header.flags:
            raise StalePlace(link.header.seq, link.header)
        seq = self.tail.next_seq
        if self.tail.may_be_emptied and self._chain.is_past(
            seq, self.tail.horizon, None if link is None else seq
        ):
            raise StalePlace(seq)
        if link is not None:
            self._check_same_epoch(link)
            self._advance_past(link)
        return link

    def rejoin(self) -> None:
        """Go to where the chain ends now. Not while a commit of ours is in doubt.

        Raises `Fenced` if our epoch has ended meanwhile, and what opening a writer there would.
        """
        tail = self._reload()
        _check_goes_on(self._chain, tail)
        if tail.next_seq < self.tail.next_seq:
            return  # the listing is behind us, so it says nothing
        if tail.next_seq > self.tail.next_seq:
            self._check_end_epoch(tail)
        self.tail = tail._replace(source_upper=max(tail.source_upper, self.tail.source_upper))

    def _reload(self) -> ChainTail:
        tail = reload(self._chain, self._state).tail
        self._state.tell_listeners()
        return tail

    def _advance_past(self, link: Link) -> None:
        self.tail = self.tail.after(link.header, link.said)
        if self._state.add_committed([link], by_owner=True):
            self._state.tell_listeners()

    def _check_same_epoch(self, link: Link) -> None:
        """Whether the segment's writer is a peer, or somebody who took over."""
        header = link.header
        joins = header.mode is self.mode and (self.joined_epoch in (None, header.epoch) or self.passive)
        if SegmentFlags.FENCE in header.flags and not self.passive:
            # Our own, whose answer was lost, stops the others.
            joins = header.writer_id.startswith(self.writer_id)
        if joins and SegmentFlags.DELETED not in header.flags:
            self.joined_epoch = header.epoch
        elif self.passive and SegmentFlags.DELETED not in header.flags:
            self.joined_epoch = None
        else:
            raise stopped_by(self._chain, self.mode, self.epoch, header, link.said.owner, _NOT_STORED)

    def _check_end_epoch(self, end: ChainTail) -> None:
        """The same for all that came since, of which only where it ended is known."""
        same = end.mode is self.mode
        begun = (
            same and self.joined_epoch is None and end.epoch == self.epoch and not self._began_with_a_fence()
        )
        if self.passive:
            self.joined_epoch = end.epoch if same else None
        elif begun:
            self.joined_epoch = end.epoch
        elif end.epoch != self.tail.epoch:
            raise Fenced(
                f"{self._chain.paths}: {a_writer(end.mode, self.mode)} of epoch {end.epoch} took the partition over before "
                f"offset {end.end_offset}; this {self.mode.name.lower()} one, of epoch {self.epoch}, has stopped for good. "
                f"{_NOT_STORED}{WHAT_NOW}"
            )

    def _began_with_a_fence(self) -> bool:
        """Did the epoch that follows ours begin so, or as peers begin one? A fence is never deleted, so it would be
        the first of what still exists. Shared writers have none."""
        if self.mode is WriterMode.SHARED:
            return False
        first = self._chain.first_of(self.epoch, self.tail.next_seq)
        return first is None or SegmentFlags.FENCE in first.flags


def _check_goes_on(chain: Chain, tail: ChainTail) -> None:
    if tail.deleted:
        raise UnknownTopic(f"{chain.paths}: the topic was deleted")
    if tail.damaged is not None:
        raise fresh(tail.damaged)
