"""A deterministic scheduler: actors that share an object store, switched at each call to it.

    def writer(store): ...                       # an actor: any code that calls the store it is given

    for_every_schedule(lambda choices: Schedule(MemoryStore(), choices).run([writer, writer]))

Each actor runs in a thread of its own, and only one moves at a time: at each store call it stops until it is chosen. What it
does between two calls touches nothing that the others see, so the order of the calls is the whole schedule. A write that is
chosen ends in one of four ways: done or not done, answered or not; a read may be refused. The same choices give the same
run.

Waiting must not take time, or the schedule would hang on it: give each actor an `InstantClock`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from random import Random
from typing import NamedTuple, Protocol, TypeVar

from logstore.errors import Determinate, Indeterminate, StoreError
from logstore.objects.protocol import Buffer, ObjectInfo, ObjectStore
from logstore.testing.operations import WRITES

T = TypeVar("T")
_STUCK_S = 60.0
_STEPS_MAX = 100_000


class Outcome(Enum):
    """How a call ends: was it carried out, and does the caller learn of it?"""

    DONE = "done"
    DONE_UNANSWERED = "done, and the answer is lost"
    REFUSED = "not done, and the caller is told"
    LOST = "not done, and nobody can tell"


class Step(NamedTuple):
    actor: int
    operation: str
    key: str
    outcome: Outcome


class Choices(Protocol):
    def pick(self, options: int) -> int:
        """A number below `options`."""
        ...


class RandomChoices:
    """Seeded. Print the seed when a run fails."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = Random(seed)

    def pick(self, options: int) -> int:
        return self._rng.randrange(options)


class _Replay:
    """The given choices, then always the first; notes how many there were to choose from."""

    def __init__(self, given: Sequence[int]) -> None:
        self._given = given
        self.trail: list[tuple[int, int]] = []

    def pick(self, options: int) -> int:
        place = len(self.trail)
        chosen = self._given[place] if place < len(self._given) else 0
        self.trail.append((chosen, options))
        return chosen


def for_every_schedule(run: Callable[[Choices], object], *, limit: int = 1_000_000) -> int:
    """Call `run` once for every sequence of choices there is. Returns how many that were.

    Raises RuntimeError past `limit`: a smaller scenario, or `RandomChoices`, is wanted then.
    """
    given: list[int] = []
    for count in range(1, limit + 1):
        replay = _Replay(given)
        run(replay)
        trail = replay.trail
        while trail and trail[-1][0] + 1 == trail[-1][1]:
            trail.pop()
        if not trail:
            return count
        given = [chosen for chosen, _ in trail[:-1]] + [trail[-1][0] + 1]
    raise RuntimeError(f"more than {limit} schedules")


class Schedule:
    """One run. `faults_max`: how many calls may end otherwise than done; a run with endless faults would not end.
    `reads_fail`: reads too, not only writes.

    `steps` lists what happened, in order.
    """

    def __init__(
        self, inner: ObjectStore, choices: Choices, *, faults_max: int = 0, reads_fail: bool = False
    ) -> None:
        self.inner = inner
        self.steps: list[Step] = []
        self._choices = choices
        self._faults_left = faults_max
        self._reads_fail = reads_fail
        self._changed = threading.Condition()  # guards everything below
        self._calls: dict[int, _Call] = {}
        self._busy: set[int] = set()
        self._errors: list[BaseException] = []

    def run(self, actors: Sequence[Callable[[ObjectStore], object]]) -> list[Step]:
        """Run the actors to their ends. An actor's own exception is raised here, after all have ended."""
        self._busy = set(range(len(actors)))
        threads = [
            threading.Thread(target=self._act, args=(number, actor), name=f"actor-{number}", daemon=True)
            for number, actor in enumerate(actors)
        ]
        for thread in threads:
            thread.start()
        while (call := self._next()) is not None:
            call.go()
            if len(self.steps) > _STEPS_MAX:
                raise RuntimeError(f"the actors did not end within {_STEPS_MAX} calls")
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return self.steps

    def _act(self, number: int, actor: Callable[[ObjectStore], object]) -> None:
        try:
            actor(ScheduledStore(self, number))
        except BaseException as error:
            with self._changed:
                self._errors.append(error)
        finally:
            with self._changed:
                self._busy.discard(number)
                self._changed.notify_all()

    def _next(self) -> _Call | None:
        """Wait until every actor is at a call or has ended, then choose one call and how it ends."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._busy <= self._calls.keys(), _STUCK_S):
                running = sorted(self._busy - self._calls.keys())
                raise TimeoutError(f"actors {running} neither called the store nor ended in {_STUCK_S} s")
            if not self._calls:
                return None
            options = [
                (call, outcome) for _, call in sorted(self._calls.items()) for outcome in self._outcomes(call)
            ]
            call, outcome = options[self._choices.pick(len(options)) if len(options) > 1 else 0]
            call.outcome = outcome
            if call.outcome is not Outcome.DONE:
                self._faults_left -= 1
            del self._calls[call.actor]
            self.steps.append(Step(call.actor, call.operation, call.key, call.outcome))
            return call

    def _outcomes(self, call: _Call) -> tuple[Outcome, ...]:
        if not self._faults_left:
            return (Outcome.DONE,)
        if call.operation in WRITES:
            return tuple(Outcome)
        return (Outcome.DONE, Outcome.REFUSED) if self._reads_fail else (Outcome.DONE,)

    def arrive(self, call: _Call) -> None:
        """An actor is at a call."""
        with self._changed:
            assert call.actor not in self._calls, "an actor makes one call at a time"
            self._calls[call.actor] = call
            self._changed.notify_all()


class _Call:
    def __init__(self, actor: int, operation: str, key: str) -> None:
        self.actor = actor
        self.operation = operation
        self.key = key
        self.outcome = Outcome.DONE
        self._chosen = threading.Event()

    def go(self) -> None:
        self._chosen.set()

    def wait(self) -> None:
        self._chosen.wait()


class ScheduledStore:
    """What an actor sees: every call waits for its turn."""

    def __init__(self, schedule: Schedule, actor: int) -> None:
        self._schedule = schedule
        self._actor = actor

    def _through(self, operation: str, key: str, carry_out: Callable[[], T]) -> T:
        call = _Call(self._actor, operation, key)
        self._schedule.arrive(call)
        call.wait()
        what = f"{operation} {key}: {call.outcome.value}"
        if call.outcome is Outcome.REFUSED:
            refused = Determinate(what)
            refused.retriable = (
                False  # or a wrapper would repeat it before the one who is tested learns of it
            )
            raise refused
        if call.outcome is Outcome.LOST:
            raise Indeterminate(what)
        if call.outcome is Outcome.DONE_UNANSWERED:
            with suppress(StoreError):  # a refusal that nobody hears is lost too
                carry_out()
            raise Indeterminate(what)
        return carry_out()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._through("get", key, lambda: self._schedule.inner.get(key, start, end))

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        inner = self._schedule.inner
        return self._through("put", key, lambda: inner.put(key, data, if_absent=if_absent, if_match=if_match))

    def head(self, key: str) -> ObjectInfo | None:
        return self._through("head", key, lambda: self._schedule.inner.head(key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._through("list", prefix, lambda: self._schedule.inner.list(prefix, start_after))

    def delete(self, key: str) -> None:
        self._through("delete", key, lambda: self._schedule.inner.delete(key))


class InstantClock:
    """Waiting for a time takes none: the clock jumps there. Waiting for an event still waits."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._start_ms = start_ms
        self._seconds = 0.0

    def now_ms(self) -> int:
        return self._start_ms + int(self._seconds * 1000)

    def monotonic(self) -> float:
        return self._seconds

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        if timeout is None:
            condition.wait()
        elif timeout > 0:
            with self._lock:
                self._seconds += timeout
