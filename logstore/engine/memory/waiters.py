"""Who waits for which offset to reach a watermark.

A waiter waits for its own offset and for nothing else: not for "a flush", whose failure it might miss, and not for the
mark to move, which others may have moved. Kept in a heap, so that a commit costs O(waiters released · log n).
"""

from __future__ import annotations

import heapq
import threading
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Generic, TypeVar

from logstore.errors import LogStoreError, fresh

T = TypeVar("T")
_SWEEP_AT = 64


class BlockingWait(Future[T]):
    """A future that is waited for and handed to nobody: no callbacks, and a plain lock in place of the condition, which is
    most of what a durable append of one record would cost its caller."""

    def __init__(self) -> None:
        # Not Future's own: nothing of that is used.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._told: T | None = None
        self._error: BaseException | None = None
        self._is_told = self._is_cancelled = False

    def result(self, timeout: float | None = None) -> T:
        if not self._gate.acquire(timeout=-1 if timeout is None else timeout):
            raise FutureTimeout
        self._gate.release()
        if self._is_cancelled:
            raise CancelledError
        if self._error is not None:
            raise self._error
        return self._told  # type: ignore[return-value]

    def done(self) -> bool:
        return self._is_told or self._is_cancelled

    def cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> bool:
        if self._is_told:
            return self._is_cancelled
        self._is_cancelled = True
        self._open()
        return True

    def set_running_or_notify_cancel(self) -> bool:
        return not self._is_cancelled

    def set_result(self, result: T) -> None:
        self._told, self._is_told = result, True
        self._open()

    def set_exception(self, exception: BaseException | None) -> None:
        self._error, self._is_told = exception, True
        self._open()

    def _open(self) -> None:
        with suppress(RuntimeError):  # its owner gave up in the very moment
            self._gate.release()


class OffsetWaiters(Generic[T]):
    """Guarded by the partition's lock. The futures are completed by the caller *after* it has released that lock:
    a done-callback may run any code, an append to the same partition among it."""

    __slots__ = ("_cancelled", "_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Future[T], T]] = []
        self._order = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, offset: int, result: T, future: Future[T] | None = None) -> Future[T]:
        """A future for `result`, due when the high watermark passes `offset`: a new one, or the one that is given."""
        future = Future() if future is None else future
        self._order += 1
        heapq.heappush(self._heap, (offset, self._order, future, result))
        return future

    def release(self, mark: int) -> list[tuple[Future[T], T]]:
        """Take out those whose offset is below the high watermark, in offset order."""
        released = []
        while self._heap and self._heap[0][0] < mark:
            _, _, future, result = heapq.heappop(self._heap)
            released.append((future, result))
        return released

    def discard(self, future: Future[T]) -> None:
        """Its owner waits no longer. Swept now and then, so that giving up often costs no memory."""
        if future.cancel():
            self._cancelled += 1
            if self._cancelled > _SWEEP_AT and self._cancelled * 2 > len(self._heap):
                self._heap = [entry for entry in self._heap if not entry[2].cancelled()]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def move_up(self, base_offset: int, count: int) -> list[T]:
        """`count` records from `base_offset` on will not be stored. Returns the results of those who wait for later ones:
        these have other offsets from now on. Who waits for one of them waits for what is before."""
        moved: list[T] = []
        heap = []
        for offset, order, future, result in self._heap:
            if offset >= base_offset + count:
                offset -= count
                moved.append(result)
            elif offset >= base_offset:
                offset = base_offset - 1
            heap.append((offset, order, future, result))
        heapq.heapify(heap)
        self._heap = heap
        return moved

    def rebase(self, grown: int) -> list[T]:
        """All records that are waited for have offsets that are larger by so much. Returns the results of those who wait."""
        self._heap = [(offset + grown, *rest) for offset, *rest in self._heap]  # type: ignore[misc]
        return [result for *_, result in self._heap]

    def take_all(self) -> list[Future[T]]:
        """Take out everybody: the partition cannot serve them any more."""
        everybody = [entry[2] for entry in self._heap]
        self._heap.clear()
        return everybody


def complete(released: list[tuple[Future[T], T]]) -> None:
    """Tell them. A future that its owner cancelled is left alone."""
    for future, result in released:
        if future.set_running_or_notify_cancel():
            future.set_result(result)


def fail(futures: list[Future[T]], error: LogStoreError) -> None:
    """Tell each of them the same bad news."""
    for future in futures:
        if future.set_running_or_notify_cancel():
            future.set_exception(fresh(error))
