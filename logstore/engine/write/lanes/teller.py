"""Who tells writers and appends of a lane what became of them, other than an ack.

By a task of its own: a callback may wait for the next upload, and it may take a request to say why a writer has stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.fencing import WHAT_NOW, fenced_by, named
from logstore.engine.runtime import Runtime
from logstore.engine.write.lanes.atomic_append import AtomicAppend
from logstore.engine.write.lanes.flushed import Flushed
from logstore.engine.write.lanes.lane_book import LaneBook
from logstore.errors import Fenced, LogStoreError
from logstore.format.stored.entry import ClaimKey, Entry, EntryKind
from logstore.format.stored.segment import SegmentFlags
from logstore.layout.paths import PartitionPaths


class Teller:
    """A task. `_news` is a queue that needs no lock."""

    def __init__(self, runtime: Runtime, book: LaneBook) -> None:
        self._runtime = runtime
        self._book = book
        self._news: deque[Callable[[], None]] = deque()

    def run(self) -> None:
        while self._news:
            self._news.popleft()()

    def end_soon(self, ended: Iterable[tuple[Flushed, Entry]]) -> None:
        """Nothing of these writers counts any more, because of these entries."""
        self._soon([partial(self._end, writer, entry) for writer, entry in ended])

    def fail_soon(self, lost: Iterable[tuple[AtomicAppend, Flushed]]) -> None:
        """These atomic appends fail, because of these writers; what waited behind them need not wait any more."""
        news: list[Callable[[], None]] = []
        for atomic, gone in lost:
            news += [partial(writer.acked, writer.withdraw(atomic)) for writer in atomic.writers]
            news.append(partial(atomic.fail_without, gone))
        self._soon(news)

    def _soon(self, news: list[Callable[[], None]]) -> None:
        self._news.extend(news)
        if news:
            self._runtime.task_pool.at(self, self._runtime.clock.monotonic())

    def _end(self, writer: Flushed, entry: Entry) -> None:
        paths, epoch = PartitionPaths.of(writer.claim_key.prefix), writer.claim_key.epoch
        assert paths is not None, "a claim names a partition"
        deleted = self._deleted(writer.claim_key, paths)
        if deleted is not None:
            writer.stop(deleted)
            return
        who = f"a writer of epoch {epoch + 1}{named(entry.owner)}"
        match entry.header.kind:
            case EntryKind.ADOPTION:
                who, what = f"the next life of the lane{named(entry.owner)}", "has begun"
            case EntryKind.FENCE:
                what = "fenced the lane"
            case _:
                what = "took the partition over"
        writer.stop(
            Fenced(
                f"{paths}: {who} {what}, at place {entry.header.seq} of "
                f"{self._book}; this one is of epoch {epoch} and has stopped for good. {WHAT_NOW}"
            )
        )

    def _deleted(self, key: ClaimKey, paths: PartitionPaths) -> LogStoreError | None:
        """If the claim was ended because the topic was deleted: the partition's own chain says so, behind the last part."""
        with self._book.lock:
            one = self._book.known.claims.get(key)
        if one is None:  # the lane has another life since
            return None
        chain = Chain(self._runtime.store, paths)
        with suppress(LogStoreError):  # it has stopped in any case: this is for the words
            header = chain.header_at(one.end_seq)
            if header is not None and SegmentFlags.DELETED in header.flags:
                return fenced_by(chain, key.epoch, header)
        return None
