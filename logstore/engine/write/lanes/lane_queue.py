"""What waits for a lane's next entries: writers that are due, atomic appends, and loads that must be sent again.

* Below `ENTRY_BYTES` of waiting data one upload is in flight at a time, and what arrives meanwhile is the next one; above,
  several are.
* What must be sent again goes before everything else, one entry after the other until the first of them is committed.
* The producers that a commit releases share the next entry (`GroupCommitWait`), whatever partitions they append to.
* `durable_linger` is the least time between the starts of two uploads: what a busy process pays has an upper bound.
"""

from __future__ import annotations

import threading
from collections import deque

from logstore.engine.host.stall_watch import GIVEN_UP
from logstore.engine.runtime import Runtime
from logstore.engine.write.group_commit import GroupCommitWait
from logstore.engine.write.lanes.atomic_append import AtomicAppend
from logstore.engine.write.lanes.flight import Flight
from logstore.engine.write.lanes.flushed import Flushed
from logstore.engine.write.lanes.lane_book import LaneBook
from logstore.engine.write.lanes.upload import Load, Windows

ENTRY_BYTES = 4 << 20
"""An entry takes no further partition once it is as large, and another upload begins beside those in flight once as much
waits: so a loud partition delays the others by its share and no more."""
SMALL_BYTES = ENTRY_BYTES // 4
"""A PUT of so many takes S3 about twice as long as one of a few: where somebody waits for a reservation, an entry has no
more. An entry that has room for less takes no part of a partition's."""


class LaneQueue:
    """Guarded by the lane's lock, which is held by whoever calls a method or uses a field; `load` takes it by itself."""

    def __init__(self, runtime: Runtime, book: LaneBook, flight: Flight) -> None:
        self.due: dict[Flushed, float] = {}
        self.atomics: list[AtomicAppend] = []  # that wait for their entry, in the order in which they came
        self.again: deque[Load] = deque()  # what must be sent again, behind another's entry
        self.again_at = float("-inf")  # and not before then
        self.waiting = 0  # durable appends since the last window was taken
        self.holds = 0
        self.began_at = float("-inf")  # the newest upload
        self.is_closing = False
        self.moved = threading.Condition(book.lock)
        self.group_commit = GroupCommitWait(runtime.clock, self.moved)
        self._runtime = runtime
        self._lock = book.lock
        self._flight = flight

    def add(self, writer: Flushed, due: float) -> bool:
        """Whether that is news: it was not due, or later."""
        known = self.due.get(writer)
        if known is not None and known <= due:
            return False
        self.due[writer] = due
        return True

    def on_append(self) -> None:
        """One more append waits for a commit."""
        self.waiting += 1
        self.group_commit.on_append(self.waiting)

    def may_begin(self) -> bool:
        """Whether an upload may begin, now or later; else those in flight must end first."""
        if not self._flight.idle or self.holds:
            return False
        return not self._flight.uploads or self.may_send_again() or self._fills_an_entry()

    def may_send_again(self) -> bool:
        """Whether there is a load to be sent again, now."""
        if not self.again or self._runtime.clock.monotonic() < self.again_at:
            return False
        flight = self._flight
        return not flight.uploads or not (flight.is_held or flight.ends_with_atomic or flight.is_refused)

    def _fills_an_entry(self) -> bool:
        """Whether enough waits for another upload beside those in flight, and may be sent. Not while the store refuses one
        of them: nothing behind it is acked before it is there, and each holds its bytes a second time."""
        if self.again or self._flight.ends_with_atomic or self._flight.is_refused:
            return False
        if self._runtime.budget.used < ENTRY_BYTES:
            return False  # of all that waits, here or elsewhere: each append asks, so the due ones are not summed up
        return sum(writer.waiting_bytes for writer in self.due) >= ENTRY_BYTES

    def next_at(self) -> float | None:
        """When the next upload is due, if somebody waits for one and it may begin before another ends."""
        now, flight = self._runtime.clock.monotonic(), self._flight
        due = min(self.due.values(), default=None)
        if self.atomics or (not flight.uploads and flight.unanswered()):
            due = now
        if self.again and (not flight.uploads or self.may_send_again()):
            due = max(self.again_at, now)
        elif due is not None:
            due = max(due, self.began_at + (0.0 if self.is_closing else self._runtime.config.durable_linger))
        return due if due is not None and self.may_begin() else None

    def take_due(self) -> list[Flushed]:
        """Whose turn it is: all that are due, and those that would be soon. May wait, without the lock, for the producers
        that the last commit has released."""
        clock, config, budget = self._runtime.clock, self._runtime.config, self._runtime.budget
        if self.again or self.holds or (self._flight.uploads and not self._fills_an_entry()):
            return []
        if clock.monotonic() < self.began_at + config.durable_linger and not self.is_closing:
            return []
        for (
            atomic
        ) in self.atomics:  # also one that did not fit before, and whose partitions asked for nothing
            self.due.update(dict.fromkeys(atomic.writers, clock.monotonic()))
        if not self._flight.uploads and any(due <= clock.monotonic() for due in self.due.values()):
            self.group_commit.wait(lambda: self.waiting, lambda: self.is_closing)
        now, pressed = clock.monotonic(), budget.pressed
        due = [writer for writer, at in self.due.items() if at <= now or pressed]
        if due:
            soon = now + config.flush_interval / 2
            due = [writer for writer, at in self.due.items() if at <= soon or pressed]
        chosen = sorted(due, key=self.due.__getitem__)
        for writer in chosen:
            del self.due[writer]
        self.waiting = 0
        return chosen

    def load(self, writers: list[Flushed]) -> Load:
        """What they have, up to the size of an entry; the rest is due at once. Takes the locks, one after the other."""
        atomics = self._fitting()
        windows: Windows = []
        size = 0
        whole = dict.fromkeys(writer for atomic in atomics for writer in atomic.writers)
        alone = [writer for writer in writers if writer.reserves_alone and writer not in whole]
        limit = SMALL_BYTES if alone and not whole else ENTRY_BYTES
        waiting = list(dict.fromkeys([*whole, *alone, *writers]))
        for place, writer in enumerate(waiting):
            least = 0 if writer in alone else min(writer.waiting_bytes, SMALL_BYTES)
            if windows and size + least > limit and writer not in whole:
                now = self._runtime.clock.monotonic()
                with self._lock:
                    for left in waiting[place:]:
                        self.due.setdefault(left, now)
                break
            window = writer.prepare(atomics, limit - size)
            if window is not None:
                windows.append((writer, window))
                size += window.charged
        self.watch([writer for writer, _ in windows])
        return Load(windows, atomics)

    def watch(self, writers: list[Flushed]) -> None:
        """They wait for the store from now on. One that has stopped meanwhile has said that it does not, perhaps before."""
        watch = self._runtime.watch
        watch.all_began(writers)
        watch.all_ended([writer for writer in writers if writer.failed is not None], GIVEN_UP)

    def _fitting(self) -> list[AtomicAppend]:
        """The atomic appends that go along with the next entry: in their order, as many as fit it together with everything
        that their partitions have before them. Takes the locks, one after the other."""
        chosen: list[AtomicAppend] = []
        taken: dict[Flushed, int] = {}
        with self._lock:
            waiting = list(self.atomics)
        for atomic in waiting:
            taken |= {writer: writer.waiting_until(atomic) for writer in atomic.writers}
            if sum(taken.values()) > max(ENTRY_BYTES, atomic.size):
                break
            chosen.append(atomic)
        with self._lock:
            self.atomics = [atomic for atomic in self.atomics if atomic not in chosen]
        return chosen
