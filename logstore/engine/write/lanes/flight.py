"""The uploads of a lane that are on their way, in the order of their places, and the claims that others have asked for.

Each entry names the one before it, so they are settled in that order, and whatever is known of a writer here decides whether
anything of it may still be sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from logstore.engine.write.lanes.atomic_append import AtomicAppend
from logstore.engine.write.lanes.flushed import Flushed
from logstore.engine.write.lanes.lane_book import LaneBook
from logstore.engine.write.lanes.upload import Upload
from logstore.format.stored.entry import ClaimKey, Entry


class Sender:
    """A task that makes an upload and sees it through. `is_extra`: for one upload alone, whose own sender has gone on."""

    def __init__(self, step: Callable[[Sender], None], *, is_extra: bool = False) -> None:
        self.upload: Upload | None = None
        self.is_extra = is_extra
        self._step = step

    def run(self) -> None:
        self._step(self)


class Flight:
    """Guarded by the lane's lock, held by whoever calls a method or uses a field. `idle`: the senders that may begin an
    upload; there are as many in all as there may be uploads in flight."""

    def __init__(self, book: LaneBook) -> None:
        self.uploads: deque[Upload] = deque()
        self.idle: list[Sender] = []
        self.is_held = False  # nothing is sent behind the first one before that is committed
        self.asked: dict[ClaimKey, Entry] = {}  # claims that the next entry ends, and which ask wants it
        self._book = book

    @property
    def is_refused(self) -> bool:
        """Whether the store refuses an upload."""
        return any(upload.failures for upload in self.uploads)

    @property
    def ends_with_atomic(self) -> bool:
        """Whether the newest upload has an atomic append, so that nothing is sent behind it."""
        return bool(self.uploads) and bool(self.uploads[-1].load.atomics)

    def next_place(self) -> tuple[int, bytes]:
        """Behind what is in flight, and the id of the entry before it."""
        if not self.uploads:
            return self._book.known.next_seq, self._book.known.edge
        last = self.uploads[-1].entry.header
        return last.seq + 1, last.id

    def unanswered(self) -> list[ClaimKey]:
        """The claims that the next entry ends, because others have asked for them; none if no entry of ours will follow."""
        if self._book.life.is_over or self._book.left is not None:
            return []
        return [key for key in self.asked if not self._is_given_up(key)]

    def _is_given_up(self, key: ClaimKey) -> bool:
        """Whether an upload in flight ends the claim, because somebody has asked for it."""
        return key in self.asked and any(key in upload.entry.seals for upload in self.uploads)

    def take_ask(self, ask: Entry) -> None:
        """Another process wants some of our claims, and has been judged to be allowed to stop us: the next entry ends them.
        Not those that have not begun, nor those of which it is not known whether they were taken."""
        book = self._book
        if ask.judged != book.known.owner or book.life.is_over:
            return
        for key in ask.seals:
            one = book.known.claims.get(key)
            in_doubt = book.known.lost if one is None else one.lost_at is not None
            if not in_doubt and book.writers.get(key) not in book.unclaimed:
                self.asked.setdefault(key, ask)

    def has_ended(self, writer: Flushed) -> bool:
        """Whether nothing of the writer's counts any more. A seal or an adoption that was read is known here before its
        writers have stopped, and what is made behind it would name it."""
        book, key = self._book, writer.claim_key
        if writer.failed is not None or book.life.is_over or book.writers.get(key) is not writer:
            return True  # the last: it is of a life before this one
        return book.known.claims[key].is_sealed or self._is_given_up(key)

    def lost(self, atomic: AtomicAppend) -> Flushed | None:
        """The writer that an atomic append fails for, if there is one."""
        return next(filter(self.has_ended, atomic.writers), None)
