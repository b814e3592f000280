"""`GatedStore`: hold calls to an object store open, look around, then let them go, fail them or lose their
answers.

    gated = GatedStore(MemoryStore())
    with gated.hold("put", suffix=".seg") as gate:
        future = log.submit(b"x")
        gate.wait_held()                 # the upload has arrived and waits
        ...                              # the world as it is while the PUT is under way
        gate.release()                   # or gate.fail(error), or gate.release_lost()

Nothing here sleeps or polls: a held call waits on a condition until it is told what to do. Leaving the `with`
releases everything still held. With several gates, the one opened last that covers a call holds it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from logstore.errors import Indeterminate
from logstore.objects.protocol import ObjectStore
from logstore.objects.wrappers.wrapped import WrappedStore
from logstore.testing.operations import Match, match

T = TypeVar("T")


@dataclass(eq=False)
class HeldCall:
    """One call at a gate."""

    operation: str
    key: str
    decided: bool = False
    lost: bool = False
    error: BaseException | None = field(default=None, repr=False)


class Gate:
    """Where matching calls wait.

    Each method is about the calls held at that moment; later ones are held again.
    """

    def __init__(self, which: Match, *, after: bool) -> None:
        self._which = which
        self._after = after
        self._changed = threading.Condition()  # guards everything below
        self._held: list[HeldCall] = []
        self._open = False

    @property
    def held(self) -> tuple[HeldCall, ...]:
        """The calls that wait here, oldest first."""
        with self._changed:
            return tuple(self._held)

    def wait_held(self, timeout: float = 10.0, *, count: int = 1) -> tuple[HeldCall, ...]:
        """Wait until `count` calls are held, and return them.

        Raises TimeoutError, saying how many there were.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._held) >= count, timeout):
                raise TimeoutError(
                    f"{len(self._held)} of {count} calls arrived at the gate for {self._which} in {timeout} s"
                )
            return tuple(self._held)

    def release(self, count: int | None = None) -> None:
        """Carry out the oldest `count` held calls, or all, and deliver their answers."""
        self._decide(count)

    def release_lost(self, count: int | None = None, error: BaseException | None = None) -> None:
        """Carry them out, but lose the answer: the caller gets `Indeterminate`, or `error`."""
        self._decide(count, lost=True, error=error)

    def fail(self, error: BaseException, count: int | None = None) -> None:
        """Don't carry them out; the caller gets `error`. (After `hold(after=True)` they have been.)"""
        self._decide(count, error=error)

    def open(self) -> None:
        """Let go of all calls, and hold no more."""
        with self._changed:
            self._open = True
        self._decide(None)

    def _decide(self, count: int | None, *, lost: bool = False, error: BaseException | None = None) -> None:
        with self._changed:
            chosen = self._held[:count]
            del self._held[: len(chosen)]
            for call in chosen:
                call.decided, call.lost, call.error = True, lost, error
            self._changed.notify_all()

    def covers(self, operation: str, key: str) -> bool:
        return not self._open and self._which.covers(operation, key)

    def run(self, operation: str, key: str, carry_out: Callable[[], T]) -> T:
        """The call's way through the gate, in the caller's thread."""
        call = HeldCall(operation, key)
        if self._after:
            answer = carry_out()
            self._wait(call)
        else:
            self._wait(call)
            if call.error is not None and not call.lost:
                raise call.error
            answer = carry_out()
        if call.lost:
            raise call.error or Indeterminate(f"{operation} {key}: the answer was lost at a gate")
        if call.error is not None:
            raise call.error
        return answer

    def _wait(self, call: HeldCall) -> None:
        with self._changed:
            if self._open:
                return
            self._held.append(call)
            self._changed.notify_all()
            self._changed.wait_for(lambda: call.decided)


class GatedStore(WrappedStore):
    """An `ObjectStore` that passes every call on to `inner`, except while a gate holds it."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()  # guards _gates
        self._gates: tuple[Gate, ...] = ()

    @contextmanager
    def hold(
        self, operation: str, *, prefix: str = "", suffix: str = "", after: bool = False
    ) -> Iterator[Gate]:
        """Hold the calls of `operation` (`"*"`: any) on keys with this prefix and suffix.

        `after`: carry the call out first and hold its answer, so that the object is there and its writer
        doesn't know.
        """
        gate = Gate(match(operation, prefix, suffix), after=after)
        with self._lock:
            self._gates = (gate, *self._gates)
        try:
            yield gate
        finally:
            with self._lock:
                self._gates = tuple(other for other in self._gates if other is not gate)
            gate.open()

    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        for gate in self._gates:
            if gate.covers(operation, key):
                return gate.run(operation, key, call)
        return call()
