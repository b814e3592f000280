"""Claims that go on in a lane of this process: those that are asked for at the same time share an entry.

One thread at a time puts transfers, one for each lane that the claims come from, and takes what was asked for meanwhile with
the next one. So opening a thousand partitions is a few requests, whichever way they are opened.

A writer may be made ahead of its claim: what it is given waits in its buffer until that is committed (`decided`).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from logstore.engine.lanes.transfers import Taken, Wanted
from logstore.engine.runtime import Runtime
from logstore.engine.write.lanes.flushed import Flushed
from logstore.engine.write.lanes.lane_book import LaneBook
from logstore.errors import LogStoreError, StoreError
from logstore.format.stored.entry import ClaimKey, Part
from logstore.objects.fan_out import fan_out

logger = logging.getLogger(__name__)

IDLE_S = 1.0
"""When nobody has asked for a claim for as long, checkpoints say what lanes hold that nobody owns."""


class _Asked(NamedTuple):
    lane: str
    wanted: Wanted
    outcome: Future[Taken | None]
    is_patient: bool


class Claiming:
    """`_lock` guards the queue, whether a thread is at work and `_unsaid`; no I/O is done with it. `at`: the lane's, for a
    writer whose claim is committed and that has waited to be flushed."""

    def __init__(self, runtime: Runtime, book: LaneBook, at: Callable[[Flushed, float], None]) -> None:
        self._runtime = runtime
        self._book = book
        self._at = at
        self._lock = threading.Lock()
        self._asked: list[_Asked] = []
        self._is_running = False
        self._failures = 0
        self.last_error: str | None = None  # why claims that are asked for do not stand yet
        self._doubtful: dict[str, set[ClaimKey]] = {}  # by lane, each of one thread at a time
        # Lanes that nobody owns, of which no checkpoint says the last entry.
        self._unsaid: set[str] = set()

    def take(self, lane: str, wanted: Wanted, *, is_patient: bool = False) -> Future[Taken | None]:
        """Let a claim of another lane go on in this one. What comes of it, once it is committed: None if its taker must look
        again. `is_patient`: it is tried until the store answers, or is closed."""
        start = max(wanted.end_offset, wanted.reserved_until)
        key = ClaimKey(wanted.key.prefix, wanted.key.epoch + 1)
        with self._book.lock:  # every checkpoint names it from now on
            self._book.known.begin(key, wanted.next_seq + 1, start, start + wanted.ahead)
        asked = _Asked(lane, wanted, Future(), is_patient)
        with self._lock:
            self._asked.append(asked)
            starts, self._is_running = not self._is_running, True
        if starts:
            self._runtime.spawn_or_run("claim", self._run)
        return asked.outcome

    def taken(self, fence: Part) -> bool:
        """It is committed, perhaps behind parts that were not known before. Whether it goes on, as far as was met."""
        with self._book.lock:
            known = self._book.known
            known.begun_at(fence.claim, fence.seq + 1, fence.end_offset, fence.reserved_until)
            return not known.is_left(fence.claim)

    def decided(self, writer: Flushed, former: ClaimKey) -> None:
        """What became of the claim that a writer was made ahead of, which was to be `former`: it is committed; or another
        one is instead, with which the writer was added again; or the writer has stopped. It need not wait any more."""
        with self._book.lock:
            due = self._book.unclaimed.pop(writer, math.inf)
            if former != writer.claim_key and self._book.writers.get(former) is writer:
                del self._book.writers[former]
        if due < math.inf:
            self._at(writer, due)

    def run(self) -> None:
        """As a task: nobody has asked for a while. Also at the end."""
        with self._lock:
            if self._asked:
                return
            lanes, self._unsaid = self._unsaid, set()
        for _ in fan_out(partial(self._say, lane, is_idle=True) for lane in lanes):
            pass

    def _run(self) -> None:
        while True:
            with self._lock:
                asked, self._asked = self._asked, []
                if not asked:
                    self._is_running = False
                    says_later = bool(self._unsaid)
                    break
            by_lane: dict[str, list[_Asked]] = {}
            for one in asked:
                by_lane.setdefault(one.lane, []).append(one)
            calls = [partial(self._transfer, lane, claims) for lane, claims in by_lane.items()]
            failed = [one for again in fan_out(calls, ahead=len(calls) > 1) for one in again]
            self._failures = self._failures + 1 if failed else 0
            if failed:
                with self._lock:
                    self._asked[:0] = failed
                self._runtime.pause(self._runtime.backoff(self._failures))
        if says_later:
            self._runtime.task_pool.at(self, self._runtime.clock.monotonic() + IDLE_S)

    def _transfer(self, lane: str, asked: list[_Asked]) -> list[_Asked]:
        """Returns those that are to be tried again."""
        runtime = self._runtime
        try:
            taken = runtime.lanes.transfer(
                lane,
                [one.wanted for one in asked],
                self._book.claim(),
                runtime.new_id,
                runtime.clock.now_ms(),
                runtime.presence.show().pack(),
                self._doubtful.setdefault(lane, set()),
            )
        except BaseException as error:
            again = isinstance(error, StoreError) and not runtime.closed
            logger.log(
                logging.WARNING if again else logging.DEBUG, "lane %s: no claim goes on yet: %s", lane, error
            )
            self.last_error = str(error)
            for one in asked:
                if not (again and one.is_patient):
                    one.outcome.set_exception(error)
            return [one for one in asked if again and one.is_patient]
        self.last_error = None
        for one in asked:
            one.outcome.set_result(taken.get(one.wanted.key))
        if taken:
            with self._lock:
                self._unsaid.add(lane)
            self._say(lane, is_idle=False)
        return []

    def _say(self, lane: str, *, is_idle: bool) -> None:
        with suppress(LogStoreError):
            self._runtime.lanes.checkpoint_ended(lane, self._runtime.rng.randbytes(8), is_idle=is_idle)
