"""A lane of this process: the exclusive writers of many partitions commit through it, with one PUT for all.

* **A flush** takes a window from every partition that is due, makes each a segment, puts them into one entry and creates it
  at the lane's next place. Each entry names the one before it, and they are acked in their order. `LaneQueue` says what is
  due, `EntryMaker` makes the entry, `Sending` sends and settles it, and `Meeting` is for another's entry in our place.
* **A partition that is given up** (`reopen`) is sealed by the entry with its last part, so nobody's upload meets a seal.
* **An atomic append** over several partitions goes with one entry, together with what these have before it. No upload is
  sent behind it until it is decided. If one of its partitions was lost it fails, alone, and the rest is sent without it.
* **A lane with a name** has many lives (`LaneLife`).
* **A lane is given up** if something is in its next place that may have ended any claim. Its writers stop, its claims are
  ended, and `reopen` claims their partitions for another lane.
"""

from __future__ import annotations

import logging
import math

from logstore.config import TakeOver
from logstore.engine.chain.fencing import WHAT_NOW
from logstore.engine.chain.tail import ChainTail
from logstore.engine.lanes.lane_log import LaneRace
from logstore.engine.lanes.lane_overview import LaneOverview
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.runtime import Runtime
from logstore.engine.write.lanes.atomic_append import AtomicAppend
from logstore.engine.write.lanes.claiming import Claiming
from logstore.engine.write.lanes.entry_maker import EntryMaker
from logstore.engine.write.lanes.flight import Flight
from logstore.engine.write.lanes.flushed import Flushed
from logstore.engine.write.lanes.lane_book import LaneBook
from logstore.engine.write.lanes.lane_checkpoints import LaneCheckpoints, Splitter
from logstore.engine.write.lanes.lane_queue import LaneQueue
from logstore.engine.write.lanes.sending import Sending
from logstore.engine.write.lanes.teller import Teller
from logstore.engine.write.lanes.upload import Fate
from logstore.errors import Fenced, LogStoreError, OutcomeUnknown
from logstore.format.stored.entry import ClaimKey, Entry, EntryHeader, EntryKind, build_entry
from logstore.format.stored.extras import Claim
from logstore.layout.paths import PartitionPaths, may_be_transferred

logger = logging.getLogger(__name__)


class Lane:
    """`_lock` guards what the book, the queue and the flight hold; it is held for memory work only, and inside of it no
    partition's lock is taken. Before it come, in this order, those held during I/O or while bytes are built:
    `checkpoints.writing`, `making`, `settling`."""

    def __init__(self, runtime: Runtime, name: str, splitter: Splitter, *, is_named: bool = False) -> None:
        self._runtime = runtime
        self._book = LaneBook(runtime, name, is_named)
        self._lock = self._book.lock
        self.checkpoints = LaneCheckpoints(runtime, self._book, splitter)
        self.claiming = Claiming(runtime, self._book, self.at)
        self._flight = Flight(self._book)
        self._queue = LaneQueue(runtime, self._book, self._flight)
        self._teller = Teller(runtime, self._book)
        self._maker = EntryMaker(runtime, self._book, self._flight, self._queue, self._teller)
        self._sending = Sending(
            runtime,
            self._book,
            self._flight,
            self._queue,
            self._teller,
            self._maker,
            self.checkpoints,
            self._give_up,
        )
        self._leaver = _Leaver(self)

    @property
    def name(self) -> str:
        return self._book.name

    def rename(self, name: str) -> None:
        """Before the first claim. Takes no lock."""
        if not self._book.known.claims:
            self._book.name = name

    # Claims

    def enter(self, may_stop: TakeOver) -> None:
        """Before anything is committed: of a lane with a name, be its next life. If the one that was used so far cannot be
        used any more, another one."""
        if self._book.left is not None:
            self.leave()
            self._begin_again()
        self._book.life.enter(may_stop, self._adopted)

    def _adopted(self, state: LaneState) -> None:
        with self._lock:
            self._book.begin_again(state)
            self.checkpoints.forget()
            self._flight.asked.clear()

    @property
    def is_entered(self) -> bool:
        """Whether claims can be made at once."""
        return not self._book.life.is_over and self._book.left is None

    def carried_on(self, prefix: str) -> ChainTail | None:
        """Where the chain of a partition of the life before ends; None if it is none."""
        with self._lock:
            return self._book.life.tail_of(prefix, self._book.known, self._book.ours)

    def goes_on(self, key: ClaimKey, tail: ChainTail, adopter: bytes) -> bool:
        """Whether the claim at the tail is one of the life before, and goes on. `adopter`: who has adopted the lane that it
        is in."""
        with self._lock:
            return self._book.life.goes_on(key, tail, adopter, self._book.known, self._book.ours)

    def claim(self) -> Claim:
        """What a fence says that leads a partition's chain into this lane."""
        return self._book.claim()

    def begin(self, key: ClaimKey, next_seq: int, end_offset: int, reserved_until: int) -> None:
        """A claim is about to be made: every checkpoint from now on names it."""
        with self._lock:
            self._book.known.begin(key, next_seq, end_offset, reserved_until)

    def add(self, writer: Flushed, next_seq: int, *, is_ahead: bool = False) -> None:
        """The claim is committed, and this is its writer, whose first part has the place `next_seq`. Another process may
        have taken the partition over since, and the lane may have met that one's seal already, when there was no writer to
        stop; or another life of the lane has begun, and has put more of the claim into it. `is_ahead`: it is not committed
        yet, and what the writer holds waits for that."""
        key = writer.claim_key
        with self._lock:
            one = self._book.known.claims.get(key)
            is_ours = self._book.left is None and not self._book.life.is_over
            is_here = is_ours and one is not None and one.end_seq <= next_seq
            is_sealed = one is not None and one.is_sealed
            if is_here:
                self._book.writers[key] = writer
                self._book.ours.add(key)
            if is_here and is_ahead:
                self._book.unclaimed[writer] = math.inf
        if not is_here:
            writer.stop(OutcomeUnknown(f"{self}: it was given up while the partition was opened: reopen it"))
        elif is_sealed:
            paths = PartitionPaths.of(key.prefix)
            writer.stop(
                Fenced(f"{paths}: another process took the partition over while it was opened. {WHAT_NOW}")
            )

    def remove(self, writer: Flushed) -> None:
        """It has stopped."""
        with self._lock:
            if self._book.writers.get(writer.claim_key) is writer:
                del self._book.writers[writer.claim_key]

    # Asking for a flush

    def at(self, writer: Flushed, due: float) -> None:
        """Flush this writer's partition when the clock reaches `due`. Called with its partition's lock held."""
        with self._lock:
            if self._book.unclaimed and self._book.waits_for_claim(writer, due):
                return
            if not self._queue.add(writer, due) or not self._queue.may_begin():
                return
            sender = self._flight.idle[-1]
        self._runtime.task_pool.at(sender, due)

    def add_atomic(self, atomic: AtomicAppend) -> None:
        """It is about to be put into the buffers of its partitions, whose locks are held."""
        with self._lock:
            self._queue.atomics.append(atomic)
            self._queue.on_append()

    def hold(self) -> None:
        """Begin no upload: many partitions are about to ask for one. `go_on` follows."""
        with self._lock:
            self._queue.holds += 1

    def go_on(self) -> None:
        with self._lock:
            self._queue.holds -= 1
        self._sending.begin_next()

    def on_append(self) -> None:
        """One more append waits for a commit."""
        with self._lock:
            self._queue.on_append()

    @property
    def is_late(self) -> bool:
        """Whether the store has left the oldest upload without an answer for so long that it counts as stalled."""
        with self._lock:
            now = self._runtime.clock.monotonic()
            uploads = self._flight.uploads
            return bool(uploads) and now - uploads[0].began_at > self._runtime.config.stall_after

    # Giving the lane up

    def _give_up(self, error: LogStoreError) -> None:
        """What is in our place may have ended any claim, so nobody goes on behind it. `reopen` claims the partitions for
        another lane."""
        with self._lock:
            writers = list(self._book.writers.values())
            for upload in self._flight.uploads:
                upload.fate = Fate.GIVEN_UP
            if self._book.left is None:
                self._book.left = (
                    self.name,
                    [key for key, one in self._book.known.claims.items() if not one.is_left],
                )
                self._runtime.lanes.abandon(self.name, self._book.known.next_seq)
            self._book.life.end()
        self._runtime.task_pool.at(self._leaver, self._runtime.clock.monotonic())
        undecided = self._forget_all()
        for writer in writers:
            writer.stop(error)
        for atomic in undecided:
            atomic.fail(error)

    def leave(self) -> None:
        """End all claims in the lane that is given up: from then on everybody looks for their partitions where they have
        gone. If it cannot be done now, it is when the next of them is opened."""
        with self._lock:
            lane, keys = self._book.left or ("", [])
        # Not those that may be transferred: it may be that which was done there, and who goes on behind a seal would write
        # beside the one who has them.
        claims = [(Claim(lane, 0), key) for key in keys if not may_be_transferred(key.prefix)]
        if claims:
            runtime = self._runtime
            owner, now_ms = runtime.presence.show().pack(), runtime.clock.now_ms()
            runtime.lanes.end_claims(claims, runtime.new_id, now_ms, owner)

    def leave_soon(self) -> None:
        """By the task."""
        try:
            self.leave()
        except LogStoreError as error:
            logger.warning("%s: its claims are ended when a partition of it is reopened: %s", self, error)

    def _begin_again(self) -> None:
        """Nothing of the lane that was given up is under way, and its writers have stopped."""
        with self.checkpoints.writing, self._maker.making, self._sending.settling, self._lock:
            if self._book.left is None:
                return
            self._book.left = None
            if not self._book.life.is_named:
                self._book.name = self._runtime.rng.randbytes(8).hex()
            self._book.begin_again(LaneState())
            self.checkpoints.forget()
            self._queue.due.clear()
            self._flight.asked.clear()
        logger.warning("%s: partitions are claimed for it from now on", self)

    def _forget_all(self) -> list[AtomicAppend]:
        """Nothing is sent any more. Returns the atomic appends of which nobody will be told what became of them."""
        with self._lock:
            loads = [*(upload.load for upload in self._flight.uploads), *self._queue.again]
            self._flight.uploads.clear()
            self._queue.again.clear()
            left, self._queue.atomics = self._queue.atomics, []
        return [*(atomic for load in loads for atomic in load.atomics), *left]

    # The end

    def begin_close(self) -> None:
        """No flush waits for another any more."""
        with self._lock:
            self._queue.is_closing = True
            self._queue.moved.notify_all()
        self._sending.begin_next()

    @property
    def is_used(self) -> bool:
        """Whether a partition was ever claimed for it."""
        with self._lock:
            return bool(self._book.ours)

    def close(self, deadline: float) -> None:
        """End the lane with a fence, so that nobody has to seal anything in it. One that cannot be made is no harm.
        A lane with a name is left to its next life: a checkpoint says what there is."""
        if self._book.life.is_named:
            if self.is_used and not self._book.life.is_over and self._runtime.clock.monotonic() < deadline:
                self.checkpoints.write()
            return
        if self._book.left is not None:
            self.leave_soon()
            return
        runtime, failures = self._runtime, 0
        while True:
            with self._lock:
                if not self._book.ours or self._flight.uploads or self._queue.again:
                    return
                seq, edge = self._book.known.next_seq, self._book.known.edge
            header = EntryHeader(EntryKind.FENCE, seq, runtime.new_id(), edge, runtime.clock.now_ms(), seq)
            data, entry = build_entry(header, [])
            try:
                found = self._ours_or_others(header, data, entry)
            except LogStoreError as error:
                failures += 1
                if failures > 3 or runtime.clock.monotonic() >= deadline:
                    logger.info("%s: it is left without a fence: %s", self, error)
                    return
                continue
            if found is None:
                return
            with self._lock:
                if found.header.seq == self._book.known.next_seq and not self._flight.uploads:
                    self._book.known.take(found)  # else an upload of ours, which began past the deadline
            if found.header.kind is EntryKind.FENCE:
                if runtime.clock.monotonic() < deadline:
                    self.checkpoints.write_last()
                return

    def overview(self) -> LaneOverview:
        """As it is now, from memory alone."""
        with self._lock:
            known = self._book.known.overview(self.name)
            return known._replace(
                partitions=len(self._book.writers),
                in_flight=len(self._flight.uploads),
                waiting=len(self._queue.due),
            )

    def let_go(self) -> None:
        """After the last upload: nobody may wait on."""
        self._teller.run()
        for atomic in self._forget_all():
            atomic.fail(OutcomeUnknown(f"{self}: closed before an atomic append was decided"))

    def _ours_or_others(self, header: EntryHeader, data: memoryview, entry: Entry) -> Entry | None:
        """What is in the place once we have tried to create it."""
        try:
            self._book.log.commit(header, data)
            return entry
        except LaneRace:
            return self._book.log.entry_at(header.seq)

    def __str__(self) -> str:
        return f"lane {self.name}"


class _Leaver:
    """The task that ends the claims of a lane that is given up."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def run(self) -> None:
        self._lane.leave_soon()
