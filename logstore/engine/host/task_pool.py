"""The task pool: uploads run here, never in an unlucky caller's thread.

A task asks to be run at a time (`at`); asking again only ever makes it earlier. One task never runs twice at once, and tasks
of different partitions run side by side on up to `workers_max` threads, which start when there is work for them and wait on
an event, so an idle store costs nothing. A task must not raise: an error it does not know is a bug, and is logged.
"""

from __future__ import annotations

import heapq
import logging
import threading
from itertools import count
from typing import Protocol

from logstore.engine.host.clock import Clock, waitable

logger = logging.getLogger(__name__)


class Task(Protocol):
    def run(self) -> None: ...


class TaskPool:
    """`_wake`'s lock guards everything below it. It is held for memory work only, and no other lock is taken inside it."""

    def __init__(self, clock: Clock, workers_max: int, name: str = "flush") -> None:
        self._clock = clock
        self._name = name
        self._workers_max = workers_max
        self._wake = threading.Condition(threading.Lock())
        self._due: dict[Task, float] = {}
        self._heap: list[tuple[float, int, Task]] = []
        self._order = count()
        self._running: set[Task] = set()
        self._workers: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    @property
    def has_threads(self) -> bool:
        return bool(self._workers)

    def at(self, task: Task, due: float) -> None:
        """Run the task when the clock reaches `due`, or earlier if that was asked for before."""
        with self._wake:
            if self._closed:
                return
            known = self._due.get(task)
            if known is not None and known <= due:
                return
            self._due[task] = due
            heapq.heappush(self._heap, (due, next(self._order), task))
            if self._idle == 0 and len(self._workers) < self._workers_max:
                self._start_worker()
            self._wake.notify()

    def all_now(self) -> None:
        """Run everything that waits for a time: the reason to wait is gone."""
        now = self._clock.monotonic()
        with self._wake:
            for task in self._due:
                self._due[task] = now
                heapq.heappush(self._heap, (now, next(self._order), task))
            self._wake.notify_all()

    def close(self, timeout: float) -> bool:
        """Run nothing more and wait for what is running, except for who calls this from a task: that one ends when it comes
        back. False if some other did not end in time."""
        with self._wake:
            self._closed = True
            self._due.clear()
            self._heap.clear()
            self._wake.notify_all()
            workers = [worker for worker in self._workers if worker is not threading.current_thread()]
        deadline = self._clock.monotonic() + timeout
        for worker in workers:
            worker.join(waitable(deadline - self._clock.monotonic()))
        return not any(worker.is_alive() for worker in workers)

    def _start_worker(self) -> None:
        """One more, or none: Python 3.12 starts no thread once the interpreter ends, and the system may have none left. Then
        those that there are do the work; without any, nothing would ever run, and that is an error."""
        worker = threading.Thread(
            target=self._work, name=f"logstore-{self._name}-{len(self._workers)}", daemon=True
        )
        try:
            worker.start()
        except RuntimeError:
            if not self._workers:
                raise
            return
        self._workers.append(worker)

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                task.run()
            except Exception:
                logger.exception("a flush task failed in a way it should have handled itself")
            with self._wake:
                self._running.discard(task)
                if task in self._due:
                    self._wake.notify()

    def _next(self) -> Task | None:
        """The next task that is due and not running; None when closed."""
        with self._wake:
            while not self._closed:
                task, left = self._pick()
                if task is not None:
                    if self._heap and self._idle == 0 and len(self._workers) < self._workers_max:
                        self._start_worker()
                    return task
                self._idle += 1
                try:
                    self._clock.wait(self._wake, left)
                finally:
                    self._idle -= 1
            return None

    def _pick(self) -> tuple[Task | None, float | None]:
        """Take the earliest runnable task, or say how long until there may be one."""
        now = self._clock.monotonic()
        skipped = []
        found: Task | None = None
        left: float | None = None
        while self._heap:
            due, _, task = self._heap[0]
            if self._due.get(task) != due:
                heapq.heappop(self._heap)  # it was made earlier, or has run since
            elif due > now:
                left = due - now
                break
            elif task in self._running:
                skipped.append(heapq.heappop(self._heap))
            else:
                heapq.heappop(self._heap)
                del self._due[task]
                self._running.add(task)
                found = task
                break
        for entry in skipped:
            heapq.heappush(self._heap, entry)
        return found, left
