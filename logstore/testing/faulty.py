"""`FaultyStore`: an object store that fails as real ones do, when told to or at random, and writes down each
call.

    faulty = FaultyStore(MemoryStore(), seed=7)
    faulty.fail("put", prefix="topics/", times=3)    # the next three are refused
    faulty.fail("put", with_=Fault.LOSE_ANSWER)      # the next one is stored, but the answer is lost
    faulty.random(put=0.2, get=0.1)                  # from now on, each call with that probability
    faulty.down()                                    # nothing works
    faulty.heal()                                    # everything works again

Rules are tried in the order they were made; the first that fires decides. A random decision depends on the
seed, the operation, the key and how often that pair was called before, and on nothing else: threads that race
do not change it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import NamedTuple, TypeVar

from logstore.errors import Determinate, Indeterminate, StoreError, StoreUnavailable
from logstore.objects.protocol import Buffer, ObjectInfo, ObjectStore
from logstore.testing.operations import WRITES, Match, match

T = TypeVar("T")


class Fault(Enum):
    """What goes wrong, and what the caller sees.

    A read that fails is always `Determinate`: it changed nothing.
    """

    REFUSE = "refused before anything happened: Determinate"
    SLOW_DOWN = "503, nothing happened: Determinate"
    CONFLICT = "409, another conditional write is under way, nothing happened: Determinate"
    UNAVAILABLE = "the store cannot be reached: StoreUnavailable"
    LOSE_ANSWER = "carried out, but the answer was lost: Indeterminate"
    LOSE_REQUEST = "not carried out, but nobody can tell: Indeterminate"
    CUT = "the answer ended early, which the client notices: Determinate for reads, Indeterminate for writes"


ANY_FAULT = tuple(Fault)


class Call(NamedTuple):
    """One call and how it ended: `"ok"`, a fault, or the type of the error that `inner` raised."""

    operation: str
    key: str
    outcome: str


@dataclass(eq=False)
class Rule:
    """Which calls a fault hits, and how many more. Returned by `fail`, `delay` and `random`, for `remove`."""

    which: Match
    faults: Sequence[Fault]
    times: int | None
    skip: int
    probability: float
    delay_s: float = 0.0
    hits: int = 0

    def fires(self, operation: str, key: str, dice: Callable[[], Random]) -> bool:
        if self.times == 0 or not self.which.covers(operation, key):
            return False
        if self.probability < 1.0 and dice().random() >= self.probability:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        self.hits += 1
        return True


class FaultyStore:
    """An `ObjectStore` round `inner` that fails by rule.

    `calls` lists every call, in the order they ended.
    """

    def __init__(
        self, inner: ObjectStore, *, seed: int = 0, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.inner = inner
        self._seed = seed
        self._sleep = sleep
        self._lock = threading.Lock()  # guards everything below
        self._rules: list[Rule] = []
        self._count: Counter[tuple[str, str]] = Counter()
        self._calls: list[Call] = []

    # Making rules

    def fail(
        self,
        operation: str,
        *,
        prefix: str = "",
        suffix: str = "",
        times: int | None = 1,
        skip: int = 0,
        with_: Fault = Fault.REFUSE,
        probability: float = 1.0,
    ) -> Rule:
        """Fail the next `times` matching calls (None: all of them) after letting `skip` pass.

        `"*"` is any operation.
        """
        return self._add(Rule(match(operation, prefix, suffix), (with_,), times, skip, probability))

    def delay(
        self,
        operation: str,
        seconds: float,
        *,
        prefix: str = "",
        suffix: str = "",
        times: int | None = 1,
        probability: float = 1.0,
    ) -> Rule:
        """Sleep, through the `sleep` that was passed in, before each of the next `times` matching calls."""
        return self._add(Rule(match(operation, prefix, suffix), (), times, 0, probability, delay_s=seconds))

    def random(
        self,
        *,
        prefix: str = "",
        suffix: str = "",
        faults: Sequence[Fault] = ANY_FAULT,
        **probability_by_operation: float,
    ) -> list[Rule]:
        """Fail each call of `put=`, `get=`, `head=`, `list=`, `delete=` with that probability."""
        return [
            self._add(Rule(match(operation, prefix, suffix), tuple(faults), None, 0, probability))
            for operation, probability in probability_by_operation.items()
        ]

    def down(self) -> Rule:
        """Nothing reaches the store until `heal()`: every call is `StoreUnavailable`."""
        rule = Rule(match("*", "", ""), (Fault.UNAVAILABLE,), None, 0, 1.0)
        with self._lock:
            self._rules.insert(0, rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Take one rule back. Taking back one that is gone is no error."""
        with self._lock:
            self._rules = [other for other in self._rules if other is not rule]

    def heal(self) -> None:
        """Take every rule back."""
        with self._lock:
            self._rules.clear()

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    # Looking back

    @property
    def calls(self) -> list[Call]:
        """A copy of the list of calls."""
        with self._lock:
            return list(self._calls)

    def count(self, operation: str, *, prefix: str = "", suffix: str = "") -> int:
        """How many calls there were, whatever came of them."""
        which = match(operation, prefix, suffix)
        return sum(which.covers(call.operation, call.key) for call in self.calls)

    def forget_calls(self) -> None:
        """Start the list of calls anew."""
        with self._lock:
            self._calls.clear()

    # The five verbs

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._call("get", key, lambda: self.inner.get(key, start, end))

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return self._call(
            "put", key, lambda: self.inner.put(key, data, if_absent=if_absent, if_match=if_match)
        )

    def head(self, key: str) -> ObjectInfo | None:
        return self._call("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """A listing that is cut gives its first half and then raises, as a page that fails does."""
        fault = self._fault("list", prefix)
        if fault is None:
            self._note("list", prefix, "ok")
            return self.inner.list(prefix, start_after)
        self._note("list", prefix, fault.name)
        if fault is Fault.CUT:
            return _first_half(self.inner.list(prefix, start_after), _error(fault, "list", prefix))
        raise _error(fault, "list", prefix)

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.inner.delete(key))

    def _call(self, operation: str, key: str, carry_out: Callable[[], T]) -> T:
        fault = self._fault(operation, key)
        if fault is None:
            try:
                answer = carry_out()
            except Exception as error:
                self._note(operation, key, type(error).__name__)
                raise
            self._note(operation, key, "ok")
            return answer
        if operation in WRITES and fault in (Fault.LOSE_ANSWER, Fault.CUT):
            with suppress(StoreError):  # the store may say no, and that answer is lost too
                carry_out()
        self._note(operation, key, fault.name)
        raise _error(fault, operation, key)

    def _fault(self, operation: str, key: str) -> Fault | None:
        """Sleep if a rule says so; then the fault that hits this call, if any."""
        delay_s = 0.0
        chosen: Fault | None = None
        with self._lock:
            nth = self._count[operation, key]
            self._count[operation, key] += 1
            dice: Random | None = None

            def roll() -> Random:
                nonlocal dice
                dice = dice or Random(f"{self._seed}/{operation}/{key}/{nth}")
                return dice

            for rule in self._rules:
                if not rule.fires(operation, key, roll):
                    continue
                delay_s += rule.delay_s
                if rule.faults:
                    chosen = rule.faults[0] if len(rule.faults) == 1 else roll().choice(rule.faults)
                    break
        if delay_s:
            self._sleep(delay_s)
        return chosen

    def _note(self, operation: str, key: str, outcome: str) -> None:
        with self._lock:
            self._calls.append(Call(operation, key, outcome))


def _error(fault: Fault, operation: str, key: str) -> StoreError:
    what = f"{operation} {key}: injected: {fault.value.partition(':')[0]}"
    if fault is Fault.UNAVAILABLE:
        return StoreUnavailable(what)
    if operation in WRITES and fault in (Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.CUT):
        return Indeterminate(what)
    return Determinate(what)


def _first_half(found: Iterator[ObjectInfo], error: StoreError) -> Iterator[ObjectInfo]:
    everything = tuple(found)
    yield from everything[: len(everything) // 2]
    raise error
