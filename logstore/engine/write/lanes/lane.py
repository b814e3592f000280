"""A lane of this process: the exclusive writers of many partitions commit through it, with one PUT for all.

* **A flush** takes a window from every partition that is due, makes each a segment, puts them into one entry and creates it
  at the lane's next place. Below `ENTRY_BYTES` of waiting data one upload is in flight at a time, and what arrives meanwhile
  is the next one; above, several are. Each entry names the one before it, and they are acked in their order.
* **An answer that is lost** leaves doubt about its entry alone: the same bytes are sent again to the same place.
* **A seal** of another process in a place of ours ends the claims of some partitions: their writers stop for good. What the
  others had in flight behind it names an entry that will never stand, and is void wherever it lands; it is made anew behind
  the seal, one entry after the other until all are there. Acked a round later, and none fails. **A fence** stops them all.
* **An ask** of another process in a place of ours is void. The next entry seals what it asks for, with what these partitions
  have in it.
* **A partition that is given up** (`reopen`) is sealed by the entry with its last part, so nobody's upload meets a seal.
* **Group commit.** The producers that a commit releases share the next entry, too, whatever partitions they append to.
* **A lane with a name** has many lives (`lane_life`): another's adoption in a place of ours stops all writers.
* **An atomic append** over several partitions goes with one entry, together with what these have before it. No upload is
  sent behind it until it is decided. If one of its partitions was lost it fails, alone, and the rest is sent without it.
* `durable_linger` is the least time between the starts of two uploads: what a busy process pays has an upper bound.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

from logstore.config import TakeOver
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.fencing import WHAT_NOW, fenced_by, named
from logstore.engine.chain.link import Link
from logstore.engine.chain.tail import ChainTail
from logstore.engine.lanes.lane_log import LaneRace
from logstore.engine.lanes.lane_overview import LaneOverview
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.memory.flush_window import FlushWindow
from logstore.engine.runtime import Runtime
from logstore.engine.write.group_commit import GroupCommitWait
from logstore.engine.write.lanes.atomic_append import AtomicAppend, all_locked
from logstore.engine.write.lanes.claiming import Claiming
from logstore.engine.write.lanes.flushed import Flushed
from logstore.engine.write.lanes.lane_bases import bases_of, settled
from logstore.engine.write.lanes.lane_book import LaneBook
from logstore.engine.write.lanes.lane_checkpoints import LaneCheckpoints, Splitter
from logstore.engine.write.lanes.upload import Fate, Load, Upload, claims_given_up, part_of
from logstore.errors import (
    CorruptData,
    Fenced,
    Indeterminate,
    LogStoreError,
    OutcomeUnknown,
    UnsupportedStore,
)
from logstore.format.stored.claim_base import Bases
from logstore.format.stored.entry import ClaimKey, Entry, EntryHeader, EntryKind, build_entry
from logstore.format.stored.extras import Claim
from logstore.format.stored.segment import SegmentFlags
from logstore.layout.paths import PartitionPaths
from logstore.objects.fan_out import fan_out
from logstore.objects.wrappers.slices import slice_key

logger = logging.getLogger(__name__)

ENTRY_BYTES = 4 << 20
"""An entry takes no further partition once it is as large, and another upload begins beside those in flight once as much
waits: so a loud partition delays the others by its share and no more."""
CHECKPOINT_EVERY = 64
_IN_ORDER_S = 0.05


class Lane:
    """`_lock` guards all fields; it is held for memory work only, and inside of it no partition's lock is taken."""

    def __init__(self, runtime: Runtime, name: str, splitter: Splitter, *, is_named: bool = False) -> None:
        self._runtime = runtime
        self._book = LaneBook(runtime, name, is_named)
        self.checkpoints = LaneCheckpoints(runtime, self._book, splitter)
        self.claiming = Claiming(runtime, self._book, self.at)
        self._lock = self._book.lock
        self._moved = threading.Condition(self._lock)
        self._making = threading.Lock()  # by one thread at a time: windows are in the order of their offsets
        self._settling = threading.Lock()  # likewise: entries are taken in the order of their places
        self._acking = threading.Lock()
        self._due: dict[Flushed, float] = {}
        self._flight: deque[Upload] = deque()  # in the order of their places
        self._anew: deque[Load] = deque()  # what must be sent again, behind a seal, before anything else
        self._anew_at = float("-inf")  # and not before then
        self._is_held = False  # nothing is sent behind the first of those before it stands
        self._asked: dict[ClaimKey, Entry] = {}  # claims that the next entry ends, and which ask wants it
        self._unmade = 0  # tries in a row to make an entry that failed
        self._atomics: list[AtomicAppend] = []  # that wait for their entry, in the order in which they came
        self._idle = [_Sender(self) for _ in range(runtime.config.uploads_max)]
        self._news: deque[Callable[[], None]] = deque()
        self._teller = _Teller(self)
        self._waiting = 0  # durable appends since the last window was taken
        self._group_commit = GroupCommitWait(runtime.clock, self._moved)
        self._began_at = float("-inf")
        self._closing = False
        self._holds = 0
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
            self._begin_anew()
        self._book.life.enter(may_stop, self._adopted)

    def _adopted(self, state: LaneState) -> None:
        with self._lock:
            self._book.known = state
            self.checkpoints.forget()
            self._book.writers.clear()  # of a life before this one, all stopped
            self._asked.clear()

    @property
    def is_entered(self) -> bool:
        """Whether claims can be made at once."""
        return not self._book.life.is_over and self._book.left is None

    def carried_on(self, prefix: str) -> ChainTail | None:
        """Where the chain of a partition of the life before ends; None if it is none."""
        with self._lock:
            return self._book.life.tail_of(prefix, self._book.known, self._book.writers)

    def goes_on(self, key: ClaimKey, tail: ChainTail) -> bool:
        """Whether the claim at the tail is one of the life before, and goes on."""
        with self._lock:
            return self._book.life.goes_on(key, tail, self._book.known, self._book.writers)

    def claim(self) -> Claim:
        """What a fence says that leads a partition's chain into this lane."""
        return self._book.claim()

    def begin(self, key: ClaimKey, next_seq: int, end_offset: int, reserved_until: int) -> None:
        """A claim is about to be made: every checkpoint from now on names it."""
        with self._lock:
            self._book.known.begin(key, next_seq, end_offset, reserved_until)

    def add(self, key: ClaimKey, writer: Flushed) -> None:
        """The claim stands, and this is its writer. Another process may have taken the partition over since, and the lane
        may have met that one's seal already, when there was no writer to stop."""
        with self._lock:
            is_here = self._book.left is None and key in self._book.known.claims
            is_sealed = is_here and self._book.known.claims[key].is_sealed
            if is_here:
                self._book.writers[key] = writer
        if not is_here:
            writer.stop(OutcomeUnknown(f"{self}: it was given up while the partition was opened: reopen it"))
        elif is_sealed:
            paths = PartitionPaths.of(key.prefix)
            writer.stop(
                Fenced(f"{paths}: another process took the partition over while it was opened. {WHAT_NOW}")
            )

    # Asking for a flush

    def at(self, writer: Flushed, due: float) -> None:
        """Flush this writer's partition when the clock reaches `due`. Called with its partition's lock held."""
        with self._lock:
            if self._book.unclaimed and self._book.waits_for_claim(writer.claim_key, due):
                return
            known = self._due.get(writer)
            if known is not None and known <= due:
                return
            self._due[writer] = due
            sender = self._sender_for_more()
        if sender is not None:
            self._runtime.task_pool.at(sender, due)

    def add_atomic(self, atomic: AtomicAppend) -> None:
        """It is about to be put into the buffers of its partitions, whose locks are held."""
        with self._lock:
            self._atomics.append(atomic)
        self.on_append()

    def hold(self) -> None:
        """Begin no upload: many partitions are about to ask for one. `go_on` follows."""
        with self._lock:
            self._holds += 1

    def go_on(self) -> None:
        with self._lock:
            self._holds -= 1
        self._ask_again()

    def on_append(self) -> None:
        """One more append waits for a commit."""
        with self._lock:
            self._waiting += 1
            self._group_commit.on_append(self._waiting)

    def _sender_for_more(self) -> _Sender | None:
        """One that may begin an upload, now or later; None if those in flight must end first. Holds the lock."""
        if not self._idle or self._holds:
            return None
        if self._flight and not (self._may_send_anew() or self._fills_an_entry()):
            return None
        return self._idle[-1]

    def _fills_an_entry(self) -> bool:
        """Whether enough waits for another upload beside those in flight, and may be sent. Not while the store refuses one
        of them: nothing behind it is acked before it is there, and each holds its bytes a second time."""
        if self._anew or (self._flight and self._flight[-1].load.atomics):
            return False
        if self._is_refused():
            return False
        if self._runtime.budget.used < ENTRY_BYTES:
            return False  # of all that waits, here or elsewhere: each append asks, so the due ones are not summed up
        return sum(writer.waiting_bytes for writer in self._due) >= ENTRY_BYTES

    @property
    def is_late(self) -> bool:
        """Whether the store has left the oldest upload without an answer for so long that it counts as stalled."""
        with self._lock:
            now = self._runtime.clock.monotonic()
            return bool(self._flight) and now - self._flight[0].began_at > self._runtime.config.stall_after

    # Flushing: on the task pool's threads

    def send_next(self, sender: _Sender) -> None:
        """One step of a sender: make the next entry, if there is one, and commit it; or try again with the one it has."""
        upload = sender.upload
        if upload is None:
            with self._making:
                upload = sender.upload = self._next_upload(sender)
            self._ask_again()  # there may be enough for another one beside it
            if upload is None:
                return
        self._send(sender, upload)

    def _next_upload(self, sender: _Sender) -> Upload | None:
        with self._lock:
            if sender not in self._idle:
                return None
            anew = self._anew.popleft() if self._may_send_anew() else None
            writers = self._take_due() if anew is None else []
            is_asked = bool(self._unanswered()) and not self._flight
        if anew is None and not (writers or is_asked):
            return None
        load = anew or self._load(writers)
        while True:
            self._fail_lost(load.atomics)
            with self._lock:
                load = Load([pair for pair in load.windows if not self._has_ended(pair[0])], load.atomics)
            with self._lock:
                is_asked = bool(self._unanswered())
            if not load.windows and not is_asked:
                return None
            try:
                upload = self._made(load)
            except Exception as error:
                self._make_later(load, error, is_first=anew is not None)
                return None
            with self._lock:
                if self._anew and anew is None:
                    self._anew.append(load)  # another's entry was met: what was in flight goes first
                    return None
                if (upload.entry.header.seq, upload.entry.header.prev) != self._next_place():
                    continue
                if any(self._has_ended(writer) for writer, _ in load.windows):
                    continue
                if any(self._lost(atomic) for atomic in load.atomics):
                    continue
                if not set(self._unanswered()) <= set(upload.entry.seals):
                    continue
                self._flight.append(upload)
                self._idle.remove(sender)
                self._unmade = 0
                upload.began_at = self._began_at = self._runtime.clock.monotonic()
            return upload

    def _may_send_anew(self) -> bool:
        """Whether the next of those may be sent now. Holds the lock."""
        if not self._anew or self._runtime.clock.monotonic() < self._anew_at:
            return False
        return not self._flight or not (self._is_held or self._flight[-1].load.atomics or self._is_refused())

    def _is_refused(self) -> bool:
        """Whether the store refuses an upload. Holds the lock."""
        return any(upload.failures for upload in self._flight)

    def _unanswered(self) -> list[ClaimKey]:
        """The claims that the next entry ends, because others have asked for them. Holds the lock."""
        return [key for key in self._asked if not self._is_given_up(key)]

    def _is_given_up(self, key: ClaimKey) -> bool:
        """Whether an upload in flight ends the claim, because somebody has asked for it. Holds the lock."""
        return key in self._asked and any(key in upload.entry.seals for upload in self._flight)

    def _make_later(self, load: Load, error: Exception, *, is_first: bool) -> None:
        """The entry could not be made, for want of memory, say. What it was to hold stays readable, and keeps its turn."""
        runtime = self._runtime
        with self._lock:
            if is_first:
                self._anew.appendleft(load)
            else:
                self._anew.append(load)
            self._unmade += 1
            failures = self._unmade
            self._anew_at = runtime.clock.monotonic() + runtime.backoff(failures)
        logger.warning("%s: try %d to make an entry failed, trying again: %s", self, failures, error)
        for writer, _ in load.windows:
            writer.attempt_failed(error)

    def _has_ended(self, writer: Flushed) -> bool:
        """Whether nothing of the writer's counts any more. Holds the lock: a seal or an adoption that was read is known here
        before its writers have stopped, and what is made behind it would name it."""
        key = writer.claim_key
        is_over = writer.failed is not None or self._book.life.is_over
        return is_over or self._book.known.claims[key].is_sealed or self._is_given_up(key)

    def _lost(self, atomic: AtomicAppend) -> Flushed | None:
        """The writer that an atomic append fails for, if there is one. Holds the lock."""
        return atomic.lost() or next(filter(self._has_ended, atomic.writers), None)

    def _fail_lost(self, atomics: list[AtomicAppend]) -> None:
        """Take those out that have lost a partition: they are in no entry that stands, and in none that is under way."""
        with self._lock:
            lost = [(atomic, writer) for atomic in atomics if (writer := self._lost(atomic)) is not None]
            for atomic, _ in lost:
                atomics.remove(atomic)
        for atomic, gone in lost:
            self._news.extend(partial(writer.acked, writer.withdraw(atomic)) for writer in atomic.writers)
            self._news.append(partial(atomic.fail_without, gone))
        if lost:
            self._runtime.task_pool.at(self._teller, self._runtime.clock.monotonic())

    def tell(self) -> None:
        """Those whose atomic appends have failed, and who need not wait for such a one any more. By a task of its own: a
        callback may wait for the next upload."""
        while self._news:
            self._news.popleft()()

    def _made(self, load: Load) -> Upload:
        """The entry for the place that is next now. It may be another one by the time that the entry is made."""
        parts = [part_of(writer, window) for writer, window in load.windows]
        runtime = self._runtime
        with self._lock:
            said = self._book.known.bases.of
            new = [writer for writer, _ in load.windows if writer.claim_key not in said]
            claims = {writer.claim_key: self._book.known.claims[writer.claim_key] for writer in new}
        note = bases_of(settled(new), claims, Bases()).pack() if new else b""
        with self._lock:
            (seq, prev), known_until = self._next_place(), self._book.known.next_seq
            seals = list(dict.fromkeys([*claims_given_up(load.windows), *self._unanswered()]))
        header = EntryHeader(EntryKind.DATA, seq, runtime.new_id(), prev, runtime.clock.now_ms(), known_until)
        return Upload(load, self._book.log, *build_entry(header, parts, seals, note))

    def _next_place(self) -> tuple[int, bytes]:
        """Behind what is in flight, and the id of the entry before it. Holds the lock."""
        if not self._flight:
            return self._book.known.next_seq, self._book.known.edge
        last = self._flight[-1].entry.header
        return last.seq + 1, last.id

    def _take_due(self) -> list[Flushed]:
        """Whose turn it is: all that are due, and those that would be soon. Holds the lock."""
        runtime = self._runtime
        clock, config = runtime.clock, runtime.config
        if self._anew or self._holds or (self._flight and not self._fills_an_entry()):
            return []
        if clock.monotonic() < self._began_at + config.durable_linger and not self._closing:
            return []
        for (
            atomic
        ) in self._atomics:  # also one that did not fit before, and whose partitions asked for nothing since
            self._due.update(dict.fromkeys(atomic.writers, clock.monotonic()))
        if not self._flight and any(due <= clock.monotonic() for due in self._due.values()):
            self._group_commit.wait(lambda: self._waiting, lambda: self._closing)
        now, pressed = clock.monotonic(), runtime.budget.pressed
        due = [writer for writer, at in self._due.items() if at <= now or pressed]
        if due:
            soon = now + config.flush_interval / 2
            due = [writer for writer, at in self._due.items() if at <= soon or pressed]
        chosen = sorted(due, key=self._due.__getitem__)
        for writer in chosen:
            del self._due[writer]
        self._waiting = 0
        return chosen

    def _load(self, writers: list[Flushed]) -> Load:
        """What they have, up to the size of an entry; the rest is due at once."""
        self._fail_lost(self._atomics)
        atomics, windows, size = self._fitting(), [], 0
        whole = dict.fromkeys(writer for atomic in atomics for writer in atomic.writers)
        waiting = [*whole, *(writer for writer in writers if writer not in whole)]
        for place, writer in enumerate(waiting):
            if size >= ENTRY_BYTES and writer not in whole:
                now = self._runtime.clock.monotonic()
                with self._lock:
                    for left in waiting[place:]:
                        self._due.setdefault(left, now)
                break
            window = writer.prepare(atomics)
            if window is not None:
                windows.append((writer, window))
                size += window.charged
        return Load(windows, atomics)

    def _fitting(self) -> list[AtomicAppend]:
        """The atomic appends that go along with the next entry: in their order, as many as fit it together with everything
        that their partitions have before them."""
        chosen: list[AtomicAppend] = []
        taken: dict[Flushed, int] = {}
        with self._lock:
            waiting = list(self._atomics)
        for atomic in waiting:
            taken |= {writer: writer.waiting_until(atomic) for writer in atomic.writers}
            if sum(taken.values()) > max(ENTRY_BYTES, atomic.size):
                break
            chosen.append(atomic)
        with self._lock:
            self._atomics = [atomic for atomic in self._atomics if atomic not in chosen]
        return chosen

    def _send(self, sender: _Sender, upload: Upload) -> None:
        runtime = self._runtime
        wait = runtime.breaker.delay()
        if wait:
            runtime.task_pool.at(sender, runtime.clock.monotonic() + wait)
            return
        if upload.fate is Fate.GIVEN_UP:
            self._ended(sender, upload, Fate.GIVEN_UP)
            return
        try:
            with runtime.observer.flush(str(self), 0):
                header, is_first = upload.entry.header, not upload.failures
                upload.log.commit(header, upload.data, caller_looks=is_first)  # `_make_anew` looks
        except LaneRace:
            runtime.breaker.success()
            fate = Fate.LOST
        except CorruptData as error:
            runtime.breaker.success()
            logger.error("%s: what is in our place cannot be read: %s", self, error)
            fate = Fate.LOST  # it is looked at once more, when it is the oldest
        except UnsupportedStore as error:
            runtime.breaker.success()
            self._stop_all(error)
            fate = Fate.GIVEN_UP
        except Exception as error:
            self._retry_later(sender, upload, error)
            return
        else:
            runtime.breaker.success()
            fate = Fate.LANDED
        self._ended(sender, upload, fate)

    def _retry_later(self, sender: _Sender, upload: Upload, error: Exception) -> None:
        runtime = self._runtime
        runtime.breaker.failure()
        with self._lock:
            given_up = upload.fate is Fate.GIVEN_UP
        if given_up:
            self._ended(sender, upload, Fate.GIVEN_UP)
            return
        upload.failures += 1
        logger.warning("%s: upload %d of this entry failed, trying again: %s", self, upload.failures, error)
        for writer, _ in upload.load.windows:
            writer.attempt_failed(error)
        runtime.task_pool.at(sender, runtime.clock.monotonic() + runtime.backoff(upload.failures))

    def _ended(self, sender: _Sender, upload: Upload, fate: Fate) -> None:
        """What came of an upload. Settle whatever is the oldest now, as far as that is known."""
        with self._lock:
            if upload.fate is Fate.SENT:
                upload.fate = fate
            upload.seconds = self._runtime.clock.monotonic() - upload.began_at
        while (done := self._settle_oldest()) is not None:
            self._ack(done)
        with self._lock:  # not before: while it calls back, another one must do what the callback waits for
            if sender.upload is upload:
                sender.upload = None
                self._idle.append(sender)
        self._ask_again()

    def _settle_oldest(self) -> Upload | None:
        """If the oldest upload's fate is known: take its entry in. Returns it if somebody is to be told."""
        with self._settling:
            with self._lock:
                oldest = self._flight[0] if self._flight else None
                fate = None if oldest is None else oldest.fate
            if oldest is None or fate is Fate.SENT:
                return None
            if fate is Fate.LANDED:
                self._landed(oldest)
            elif fate is Fate.LOST:
                self._make_anew(oldest)
            return oldest

    def _landed(self, upload: Upload) -> None:
        entry = upload.entry
        key = self._book.log.paths.entry(entry.header.seq)
        with self._lock:
            counts = self._book.known.take(entry)
            self._flight.popleft()
            self._is_held = False
            asked = {key: self._asked.pop(key) for key in entry.seals if key in self._asked}
            ended = [
                (self._book.writers[key], ask) for key, ask in asked.items() if key in self._book.writers
            ]
        assert counts, "nobody is acked for a void entry"
        together = {writer for atomic in upload.load.atomics for writer in atomic.writers}
        links: list[tuple[Flushed, FlushWindow, Link]] = []
        for (writer, window), part in zip(upload.load.windows, entry.parts, strict=True):
            data, summary = window.build()
            link = Link(summary, part.size, writer.extras, slice_key(key, part.position, part.size))
            self._runtime.reader.keep(link.key or key, data, summary)
            links.append((writer, window, link))
        with all_locked(together):  # who sees an atomic append in one partition sees it in all
            committed = [
                (writer, writer.commit(window, link, upload.seconds))
                for writer, window, link in links
                if writer in together
            ]
        for writer, window, link in links:
            if writer not in together:
                with writer.lock:
                    committed.append((writer, writer.commit(window, link, upload.seconds)))
        self._runtime.budget.give_back(sum(done.done.charged for _, done in committed if done is not None))
        upload.stored = upload.load.atomics
        released = len(upload.stored)
        for writer, done in committed:
            if done is not None:
                writer.committed(done)
                upload.released.append((writer, done.released))
                released += len(done.released)
        self._end_soon(ended)
        with self._lock:
            self._group_commit.after_commit(released, self._waiting, upload.seconds)
        if entry.header.seq % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            self._runtime.upkeep.at(self.checkpoints, float("-inf"))  # before those of its partitions

    def _ack(self, upload: Upload) -> None:
        """Tell those who waited, in the order of the entries. Unless one of the callbacks before it takes long: it may wait
        for this very ack."""
        in_order = self._acking.acquire(timeout=_IN_ORDER_S)
        try:
            for writer, released in upload.released:
                writer.acked(released)
            for atomic in upload.stored:
                atomic.stored()
        finally:
            if in_order:
                self._acking.release()

    def _ask_again(self) -> None:
        """For the next upload, if somebody waits for one and it may begin before another ends."""
        with self._lock:
            due = min(self._due.values(), default=None)
            if self._atomics:
                due = self._runtime.clock.monotonic()
            if self._unanswered() and not self._flight:
                due = self._runtime.clock.monotonic()
            if self._anew and (not self._flight or self._may_send_anew()):
                due = max(self._anew_at, self._runtime.clock.monotonic())
            elif due is not None:
                due = max(
                    due, self._began_at + (0.0 if self._closing else self._runtime.config.durable_linger)
                )
            sender = self._sender_for_more() if due is not None else None
        if sender is not None and due is not None:
            self._runtime.task_pool.at(sender, due)

    # Another's entry in our place

    def _make_anew(self, upload: Upload) -> None:
        """Take in what is there, stop those whose claims it ends, and go on behind it with what the others had in flight."""
        seq = upload.entry.header.seq
        try:
            standing, was_split = self._found_at(seq)
            if standing is None and not was_split:
                if not upload.failures:
                    raise Indeterminate(f"{self}: place {seq} is refused and looks empty")
                raise CorruptData(self._book.log.paths.entry(seq), None, "an entry was there and is gone")
        except (CorruptData, UnsupportedStore) as error:
            self._stop_all(error)
            return
        except Exception as error:
            logger.warning("%s: what is at place %d could not be read, trying again: %s", self, seq, error)
            upload.fate = Fate.SENT
            with self._lock:
                sender = self._idle.pop() if self._idle else _Sender(self)
            sender.upload = upload
            self._retry_later(sender, upload, error)
            return
        if standing is None or was_split or standing.header.id == upload.entry.header.id:
            # Ours stands; or it did, and its records are in their partitions' manifests.
            upload.fate = Fate.LANDED
            return
        with self._lock:
            is_ours = standing.header.kind is EntryKind.DATA and standing.header.prev == self._book.known.edge
        if is_ours:
            self._stop_all(
                CorruptData(
                    self._book.log.paths.entry(seq), None, "another process puts records into this lane"
                )
            )
            return
        with self._lock:
            self._book.known.take(standing)
            is_adopted = standing.header.kind is EntryKind.ADOPTION
            if is_adopted:
                self._book.life.end()
            ended = [
                writer
                for key, writer in self._book.writers.items()
                if (is_adopted or self._book.known.claims[key].is_sealed) and writer.failed is None
            ]
            if standing.header.is_ask:
                self._take_ask(standing)
            self._asked = {key: ask for key, ask in self._asked.items() if not self._book.known.is_left(key)}
            given_up, self._flight = list(self._flight), deque()
            for one in given_up[1:]:
                if one.fate is not Fate.LANDED:
                    break
                self._book.known.take(one.entry)  # it stands behind one that does not, so it is void
            for one in given_up:
                one.fate = Fate.GIVEN_UP
            self._anew.extendleft(one.load for one in reversed(given_up))
            self._is_held = True
        self._end_soon([(writer, standing) for writer in ended])

    def _take_ask(self, ask: Entry) -> None:
        """Another process wants some of our claims, and has been judged to be allowed to stop us: the next entry ends them.
        Not those that have not begun, nor those of which it is not known whether they were taken. Holds the lock."""
        if ask.judged != self._book.known.owner or self._book.life.is_over:
            return
        for key in ask.seals:
            one = self._book.known.claims.get(key)
            in_doubt = self._book.known.lost if one is None else one.lost_at is not None
            if not in_doubt and key not in self._book.unclaimed:
                self._asked.setdefault(key, ask)

    def _end_soon(self, ended: list[tuple[Flushed, Entry]]) -> None:
        """Nothing of these writers counts any more. They are told by a task of its own: why, may take a request to say."""
        self._news.extend(partial(self._end, writer, standing) for writer, standing in ended)
        if ended:
            self._runtime.task_pool.at(self._teller, self._runtime.clock.monotonic())

    def _found_at(self, seq: int) -> tuple[Entry | None, bool]:
        """What stands at the place, and `_was_split`. Side by side: everybody's ack waits for them."""
        asked: tuple[Callable[[], Entry | None], Callable[[], bool]] = (
            partial(self._book.log.entry_at, seq),
            partial(self._was_split, seq),
        )
        standing, was_split = fan_out(asked, at_once=2, at_least=2, ahead=True)
        return cast("Entry | None", standing), cast("bool", was_split)

    def _was_split(self, seq: int) -> bool:
        """Whether what stood at the place was split and deleted: then what is there now came later, and is in the past."""
        try:
            if seq >= self._book.log.split_until():
                return False
            checkpoint = self._book.log.checkpoint()
        except CorruptData as damage:
            logger.error("%s; nobody but us splits this lane", damage)
            return False
        return checkpoint is not None and seq < checkpoint.split_until and seq not in checkpoint.kept

    def _end(self, writer: Flushed, standing: Entry) -> None:
        paths, epoch = PartitionPaths.of(writer.claim_key.prefix), writer.claim_key.epoch
        assert paths is not None, "a claim names a partition"
        deleted = self._deleted(writer.claim_key, paths)
        if deleted is not None:
            writer.stop(deleted)
            return
        who = f"a writer of epoch {epoch + 1}{named(standing.owner)}"
        match standing.header.kind:
            case EntryKind.ADOPTION:
                who, what = f"the next life of the lane{named(standing.owner)}", "has begun"
            case EntryKind.FENCE:
                what = "fenced the lane"
            case _:
                what = "took the partition over"
        writer.stop(
            Fenced(
                f"{paths}: {who} {what}, at place {standing.header.seq} of "
                f"lane {self.name}; this one is of epoch {epoch} and has stopped for good. {WHAT_NOW}"
            )
        )

    def _deleted(self, key: ClaimKey, paths: PartitionPaths) -> LogStoreError | None:
        """If the claim was ended because the topic was deleted: the partition's own chain says so, behind the last part."""
        with self._lock:
            seq = self._book.known.claims[key].end_seq
        chain = Chain(self._runtime.store, paths)
        with suppress(LogStoreError):  # it has stopped in any case: this is for the words
            header = chain.header_at(seq)
            if header is not None and SegmentFlags.DELETED in header.flags:
                return fenced_by(chain, key.epoch, header)
        return None

    def _stop_all(self, error: LogStoreError) -> None:
        """Whatever stands in our place may have ended any claim, so nobody goes on behind it. `reopen` claims the partitions
        anew, for another lane."""
        with self._lock:
            writers = list(self._book.writers.values())
            for upload in self._flight:
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
            left = self._book.left
        if left is not None and left[1]:
            runtime = self._runtime
            owner, now_ms = runtime.presence.show().pack(), runtime.clock.now_ms()
            runtime.lanes.end_claims(*left, runtime.new_id, now_ms, owner)

    def leave_soon(self) -> None:
        """By the task."""
        try:
            self.leave()
        except LogStoreError as error:
            logger.warning("%s: its claims are ended when a partition of it is reopened: %s", self, error)

    def _begin_anew(self) -> None:
        """Nothing of the lane that was given up is under way, and its writers have stopped."""
        with self.checkpoints.writing, self._making, self._settling, self._lock:
            if self._book.left is None:
                return
            self._book.left = None
            if not self._book.life.is_named:
                self._book.name = self._runtime.rng.randbytes(8).hex()
            self._book.known = LaneState()
            self.checkpoints.forget()
            self._book.writers.clear()
            self._book.unclaimed.clear()
            self._due.clear()
            self._asked.clear()
        logger.warning("%s: partitions are claimed for it from now on", self)

    def _forget_all(self) -> list[AtomicAppend]:
        """Nothing is sent any more. Returns the atomic appends of which nobody will be told what became of them."""
        with self._lock:
            loads = [*(upload.load for upload in self._flight), *self._anew]
            self._flight.clear()
            self._anew.clear()
            left, self._atomics = self._atomics, []
        return [*(atomic for load in loads for atomic in load.atomics), *left]

    # The end

    def begin_close(self) -> None:
        """No flush waits for another any more."""
        with self._lock:
            self._closing = True
            self._moved.notify_all()
        self._ask_again()

    @property
    def is_used(self) -> bool:
        """Whether a partition was ever claimed for it."""
        with self._lock:
            return bool(self._book.writers)

    def close(self, deadline: float) -> None:
        """End the lane with a fence, so that nobody has to seal anything in it. One that cannot be made is no harm.
        A lane with a name is left to its next life: a checkpoint says what there is."""
        if self._book.life.is_named:
            if (
                self._book.writers
                and not self._book.life.is_over
                and self._runtime.clock.monotonic() < deadline
            ):
                self.checkpoints.write()
            return
        if self._book.left is not None:
            self.leave_soon()
            return
        runtime, failures = self._runtime, 0
        while True:
            with self._lock:
                if not self._book.writers or self._flight or self._anew:
                    return
                seq, edge = self._book.known.next_seq, self._book.known.edge
            header = EntryHeader(EntryKind.FENCE, seq, runtime.new_id(), edge, runtime.clock.now_ms(), seq)
            data, entry = build_entry(header, [])
            try:
                standing = self._ours_or_others(header, data, entry)
            except LogStoreError as error:
                failures += 1
                if failures > 3 or runtime.clock.monotonic() >= deadline:
                    logger.info("%s: it is left without a fence: %s", self, error)
                    return
                continue
            if standing is None:
                return
            with self._lock:
                if standing.header.seq == self._book.known.next_seq and not self._flight:
                    self._book.known.take(standing)  # else an upload of ours, which began past the deadline
            if standing.header.kind is EntryKind.FENCE:
                if runtime.clock.monotonic() < deadline:
                    self.checkpoints.write_last()
                return

    def overview(self) -> LaneOverview:
        """As it is now, from memory alone."""
        with self._lock:
            known = self._book.known.overview(self.name)
            return known._replace(
                partitions=len(self._book.writers), in_flight=len(self._flight), waiting=len(self._due)
            )

    def let_go(self) -> None:
        """After the last upload: nobody may wait on."""
        self.tell()
        for atomic in self._forget_all():
            atomic.fail(OutcomeUnknown(f"{self}: closed before an atomic append was decided"))

    def _ours_or_others(self, header: EntryHeader, data: memoryview, entry: Entry) -> Entry | None:
        """What stands in the place once we have tried to create it."""
        try:
            self._book.log.commit(header, data)
            return entry
        except LaneRace:
            return self._book.log.entry_at(header.seq)

    def __str__(self) -> str:
        return f"lane {self.name}"


class _Sender:
    """A task that makes an upload and sees it through. A lane has as many as it may have uploads in flight."""

    def __init__(self, lane: Lane) -> None:
        self.upload: Upload | None = None
        self._lane = lane

    def run(self) -> None:
        self._lane.send_next(self)


class _Teller:
    """The task that calls back."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def run(self) -> None:
        self._lane.tell()


class _Leaver:
    """The task that ends the claims of a lane that is given up."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def run(self) -> None:
        self._lane.leave_soon()
