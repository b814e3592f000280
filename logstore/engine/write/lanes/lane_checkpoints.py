"""What a lane writes down, so that nobody has to read all its entries, and what it lets go of.

A checkpoint names the claims and where each partition's parts are. When much has come, the partitions take what they have in
old entries into objects of their own; only once a checkpoint says so are the entries deleted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from logstore.engine.chain.view import ChainView
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.runtime import Runtime
from logstore.engine.write.lanes.lane_bases import bases_of, settled
from logstore.engine.write.lanes.lane_book import LaneBook
from logstore.engine.write.upload_time import LONGEST_S
from logstore.errors import CorruptData, Indeterminate, StoreError
from logstore.format.stored.entry import ClaimKey
from logstore.objects.fan_out import fan_out
from logstore.objects.settled import put_settled

logger = logging.getLogger(__name__)

LEFT_UNREAD = 8
"""So many entries a lane that is closed leaves to be read; if there are more, a checkpoint says what they hold."""
CHECKPOINT_EVERY = 64
SPLIT_EVERY = 1024
SPLIT_PARTS = 100_000
_SHARE_OF_UPLOAD = 4  # as long as group commit waits for those who come back

Splitter = Callable[[ClaimKey, int], ChainView | None]
"""Makes sure that a partition's manifest holds its chain up to a place, and gives what that says. None if that could not be
done now."""


class LaneCheckpoints:
    """A task, which writes the next one beside the lane's uploads. `writing` is held by whoever does so, during I/O."""

    def __init__(self, runtime: Runtime, book: LaneBook, splitter: Splitter) -> None:
        self.writing = threading.Lock()
        self._runtime = runtime
        self._book = book
        self._splitter = splitter
        self._etag: str | None = None
        self._deleted_until = 0
        self._reached = 0  # up to which place
        self._collecting = False

    def run(self) -> None:
        self.write()

    def after_entry(self, seq: int, upload_s: float) -> None:
        """An entry is committed, whose upload took so long: after so many, it is time for the next checkpoint. Not at once:
        those who waited for the entry come back now, and the next one should be on its way before a checkpoint of a
        thousand partitions takes the interpreter."""
        if seq % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            patience = min(upload_s, LONGEST_S) / _SHARE_OF_UPLOAD
            self._runtime.upkeep.at(self, self._runtime.clock.monotonic() + patience)

    def forget(self) -> None:
        """Another lane, or another life of it, begins: which checkpoint is stored is not known."""
        self._etag, self._deleted_until, self._reached = None, 0, 0

    def write(self) -> None:
        """So that nobody has to read all entries. One that cannot be written now is written later."""
        with self.writing:
            try:
                # Else what we have split may not be said in the store: delete nothing. Twice: the first of a life does not
                # know which one is there.
                if self._put() or self._put():
                    self._split()
            except StoreError as error:
                logger.warning("%s: no checkpoint this time: %s", self._book, error)

    def write_last(self) -> None:
        """Of a lane that has ended, if there is much of it that only its entries say: those who take its partitions over
        have less to read."""
        with self.writing:
            with self._book.lock:
                is_long = self._book.known.next_seq - self._reached > LEFT_UNREAD
            if is_long:
                with suppress(StoreError):
                    self._put()

    def collect(self) -> None:
        """Let go of entries that hold what others have taken over, or was deleted: what the partitions of this process have
        in them becomes objects of their own, now and not when much has come."""
        with self._book.lock:
            if not self._book.ours or self._book.left is not None or self._book.life.is_over:
                return
            until, was_split = self._book.known.next_seq - 1, bool(self._book.known.splits)
        self._collecting = self._runtime.lanes.snapshot(self._book.name).has_left_below(until)
        if self._collecting or was_split:
            self.write()
        self._collecting = False

    def _put(self) -> bool:
        """Whether ours is stored. If not, somebody else has split the lane, which he may once all its claims have ended, or
        has noted a low watermark; or our life is over, and the one that is there knows more than we do: it is not
        replaced."""
        with self._book.lock:
            lane_state, unclaimed = self._book.known, self._book.unclaimed
            writers = [writer for writer in self._book.writers.values() if writer not in unclaimed]
        known = settled(writers)
        with self._book.lock:
            claims = {key: claim.seen() for key, claim in lane_state.claims.items()}
            said, packed = lane_state.said_bases()
        bases = bases_of(known, claims, said)
        if packed is None or not bases.is_still(said):
            packed = bases.pack()
        with self._book.lock:
            if self._is_over(lane_state):
                return False
            lane_state.put_bases(bases, packed, said)
            checkpoint = lane_state.checkpoint(self._runtime.rng.randbytes(8))
        packed, key = checkpoint.pack(), self._book.log.paths.checkpoint
        try:
            stored = put_settled(self._runtime.store, key, packed, self._etag)
        except Indeterminate:
            if self._runtime.store.head(key) is not None:
                raise
            stored = None  # the one that was to be replaced is gone
        if stored is None:
            self._take()
            return False
        with self._book.lock:
            if self._is_over(lane_state):
                return False  # whose next life, if it is ours, looks first what this one has said
            self._etag, self._reached, lane_state.version = (
                stored.etag,
                checkpoint.next_seq,
                checkpoint.version,
            )
        return True

    def _is_over(self, lane_state: LaneState) -> bool:
        """Whether the life that knew this is, also if the next one is ours again. Holds the book's lock."""
        return self._book.life.is_over or self._book.known is not lane_state

    def _take(self) -> None:
        """The one that is there, before it is replaced. One that got lost, or damaged, says nothing, and is made again."""
        head = self._runtime.store.head(self._book.log.paths.checkpoint)
        try:
            found = self._book.log.checkpoint()
        except CorruptData as damage:
            logger.error("%s; it is written again", damage)
            found = None
        with self._book.lock:
            if head is None or found is None:
                self._etag = head and head.etag
            elif found.next_seq <= self._book.known.next_seq:
                self._etag = head.etag
                self._book.known.raise_lows(LaneState(found).bases.lows)
                self._book.known.version = found.version
                self._book.known.split(found.split_until)

    def _split(self) -> None:
        """When much has come: the partitions take what they have in old entries into objects of their own. Only once the
        checkpoint that says so is stored are the entries deleted, and not before the grace period is over."""
        runtime = self._runtime
        with self._book.lock:
            state = self._book.known
            until = state.next_seq - 1  # the newest stays
            is_due = until - state.split_until >= SPLIT_EVERY or state.part_count >= SPLIT_PARTS
            is_due = is_due or self._collecting
            wanted = state.parts_below(until) if is_due else {}
        if is_due:
            left = {key for key, next_seq in wanted.items() if not self._split_out(key, next_seq)}
            now_ms = runtime.clock.now_ms()
            with self._book.lock:
                state.note_split(min(until, state.first_entry_of(left)), now_ms)
            if not self._put():
                return
        with self._book.lock:
            until = state.deletable(runtime.clock.now_ms() - int(runtime.config.delete_grace * 1000))
            gone = [seq for seq in range(self._deleted_until, until) if seq not in state.kept]
        for _ in fan_out(partial(runtime.store.delete, self._book.log.paths.entry(seq)) for seq in gone):
            pass
        self._deleted_until = max(self._deleted_until, until)

    def _split_out(self, key: ClaimKey, next_seq: int) -> bool:
        view = self._splitter(key, next_seq)
        with self._book.lock:
            writer = self._book.writers.get(key)
        if view is not None and writer is not None:
            writer.replace_view(view)
        return view is not None
