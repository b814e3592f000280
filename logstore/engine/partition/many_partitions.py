"""Reading many partitions at once, of one topic or several: what `Topic.tail` and groups stand on.

A partition whose writer is in this process wakes its readers and costs no request. Of those that others write, at most
`LOOKS` are asked for in a `follow_interval`, in turn, and all that are in one lane count as one: so the requests of a reader
that waits do not grow with the number of partitions, and with more of them than that, a quiet one's next record is seen
later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from typing import NamedTuple

from logstore.config import Visibility, check_visibility
from logstore.engine.chain.many_chains import load_all
from logstore.engine.host.clock import Clock
from logstore.engine.partition.internal import Partition
from logstore.engine.partition.partition_log import PartitionLog
from logstore.format.batches.record import TopicRecord
from logstore.objects.fan_out import fan_out

LOOKS = 16
TAKE_BYTES = 1 << 17
"""Of one partition at a time: what is taken is decoded at once, and the next ones wait for their turn."""
_WAIT_MAX_S = 3600.0


def look_at(logs: Iterable[Partition]) -> None:
    """All of them as they are now: those that nobody has looked at are loaded, the others are followed, and a lane is asked
    once for all. What their watermarks say afterwards is not older than this call."""
    known = list(logs)
    if not known:
        return
    began_at = known[0].lanes.now()
    new = load(known)
    calls = [partial(log.refresh_since, began_at) for log in known if log not in new]
    for _ in fan_out(calls):
        pass


def load(logs: Iterable[Partition]) -> set[Partition]:
    """Those that were not loaded, which are then: many of a lane with few requests. Returns them."""
    found = [(log, chain) for log in logs if (chain := log.chain_to_load) is not None]
    if not found:
        return set()
    for (log, _), view in zip(found, load_all([chain for _, chain in found], found[0][0].lanes), strict=True):
        log.take_view(view)
    return {log for log, _ in found}


class Cursor:
    """Where reading one partition has come to. `position` None: at its low watermark, once that is known."""

    def __init__(self, find: Callable[[], PartitionLog], position: int | None) -> None:
        self._find = find
        self.log = find()._internal
        self.topic, self.partition = self.log.topic, self.log.partition
        self.position = position
        self.paused = False
        self.is_open = False

    def open(self, visibility: Visibility) -> None:
        """The first look at it. Raises `OffsetOutOfRange` if the position lies past the end."""
        end = self.log.high_watermark(visibility)
        if self.position is None:
            self.position = self.log.state.low
        elif self.position > end:
            self.log.bounds(self.position, None, visibility)
        self.is_open = True

    def renew(self) -> None:
        """Take the log that was reopened meanwhile. Raises `Closed` or `UnknownTopic` if there is none."""
        if self.log.closed:
            if not self.log.replaced:
                self.log.objects  # noqa: B018  # says why
            self.log, self.is_open = self._find()._internal, False


class Taken(NamedTuple):
    """Records of one partition, and where to read on after them."""

    cursor: Cursor
    records: list[TopicRecord]
    next_offset: int


class ManyPartitions:
    """One reader takes; others may wake it. `woken` grows when a partition has moved: who found nothing waits until it is
    another than before. `on_wake` is called then, too, by whichever thread."""

    def __init__(self, clock: Clock, follow_interval: float, visibility: Visibility) -> None:
        check_visibility(visibility)
        self._clock = clock
        self._interval = follow_interval
        self._visibility: Visibility = visibility
        self._cursors: list[Cursor] = []
        self._moved = threading.Condition(threading.Lock())
        self.woken = 0
        self.on_wake: Callable[[], None] = lambda: None
        self._look_at = -inf

    def put(self, cursors: Iterable[Cursor]) -> None:
        """These are read from now on, and no others."""
        kept = list(cursors)
        for gone in {*self._cursors} - {*kept}:
            if gone.is_open:
                gone.log.remove_listener(self.wake)
        self._cursors = kept

    def close(self) -> None:
        """Read no more."""
        self.put(())

    def wake(self) -> None:
        """End a wait."""
        with self._moved:
            self.woken += 1
            self._moved.notify_all()
        self.on_wake()

    def take(self, records_max: int) -> list[Taken]:
        """What there is now, from each partition in turn, whole reads, until it is so many records or more. Asks the store
        for what others have written when that is due, and does not wait.

        Raises `OffsetOutOfRange`, `CorruptData`, `UnknownTopic` or `Closed`; nothing was taken then.
        """
        self._open_all()
        self._look()
        taken: list[Taken] = []
        count = 0
        for place, cursor in enumerate(self._cursors):
            if count >= records_max:
                self._cursors = [*self._cursors[place:], *self._cursors[:place]]
                break
            found = None if cursor.paused else self._read(cursor)
            if found is not None:
                taken.append(found)
                count += len(found.records)
        for each in taken:
            each.cursor.position = each.next_offset
        return taken

    def _read(self, cursor: Cursor) -> Taken | None:
        position = cursor.position
        if position is None or cursor.log.readable_end(self._visibility) <= position:
            return None
        result = cursor.log.read(position, TAKE_BYTES, visibility=self._visibility)
        records = TopicRecord.all_at(cursor.topic, cursor.partition, result.records())
        return Taken(cursor, records, result.next_offset) if result.next_offset > position else None

    def delay(self) -> float:
        """For how long there is nothing to do, if nobody wakes us."""
        if not any(cursor.log.follows and not cursor.paused for cursor in self._cursors):
            return _WAIT_MAX_S
        return min(_WAIT_MAX_S, max(0.0, self._look_at - self._clock.monotonic()))

    def wait(self, woken: int, timeout: float) -> None:
        """Until something is due, or somebody has woken us since `woken` was read, or so many seconds have passed."""
        with self._moved:
            if self.woken == woken:
                self._clock.wait(self._moved, min(timeout, self.delay()))

    def _open_all(self) -> None:
        for cursor in self._cursors:
            cursor.renew()
        new = [cursor for cursor in self._cursors if not cursor.is_open]
        load(cursor.log for cursor in new)
        for _ in fan_out([lambda each=each: each.open(self._visibility) for each in new]):  # type: ignore[misc]
            pass
        for cursor in new:
            cursor.log.add_listener(self.wake)

    def _look(self) -> None:
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self._interval
        asked = {*self._next_to_ask()}
        due = [cursor for cursor in self._cursors if cursor in asked]
        if due:
            began_at = due[0].log.lanes.now()
            for _ in fan_out([partial(each.log.refresh_since, began_at) for each in due]):
                pass
        self._cursors = [*(each for each in self._cursors if each not in asked), *due]

    def _next_to_ask(self) -> Iterator[Cursor]:
        """Those of so many lanes, or so many that are in none."""
        chosen: set[object] = set()
        for cursor in self._cursors:
            if self._is_due(cursor):
                one = cursor.log.lane_name or cursor
                if one in chosen or len(chosen) < LOOKS:
                    chosen.add(one)
                    yield cursor

    def _is_due(self, cursor: Cursor) -> bool:
        """Whether somebody else may have written what we have not seen, and there is nothing else to read first."""
        at_end = cursor.position is None or cursor.log.readable_end(self._visibility) <= cursor.position
        return at_end and not cursor.paused and cursor.log.follows
