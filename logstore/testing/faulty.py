"""`FaultyStore`: an object store that fails as real ones do, when told to or at random, and writes down each
call.

    faulty = FaultyStore(MemoryStore(), seed=7)
    faulty.fail("put", prefix="topics/", times=3)    # the next three are refused
    faulty.fail("put", with_=Fault.LOSE_ANSWER)      # the next one is stored, but the answer is lost
    faulty.random(put=0.2, get=0.1)                  # from now on, each call with that probability
    faulty.down()                                    # nothing works
    faulty.heal()                                    # everything works again

    faulty.fail("put", with_=Delivery.DENIED)        # the next conditional put is done, and answered 412
    faulty.fail("put", with_=Delivery.LATE)          # the next one is not answered, and carried out by `deliver()`
    faulty.random(put=0.1, faults=ANY_DELIVERY, within=50)   # late and second ones come within 50 calls

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

from logstore.errors import Determinate, Indeterminate, PreconditionFailed, StoreError, StoreUnavailable
from logstore.objects.protocol import Buffer, ObjectInfo, ObjectStore
from logstore.objects.wrappers.wrapped import WrappedStore
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


class Delivery(Enum):
    """How a write that works reaches the store otherwise than once and at once, and what the caller sees.

    Whatever comes late or again meets the store as it is then: its condition is looked at when it is carried out. Reads
    change nothing, so these fail them as any `Fault` does.
    """

    DENIED = (
        "carried out, and answered 412, because something between repeated it and passed on the second answer: "
        "PreconditionFailed for a conditional put; other writes may be repeated, so they are answered as they went"
    )
    LATE = "not answered, and carried out later, when its sender may be dead: Indeterminate"
    TWICE = "carried out and answered, and carried out again later"


ANY_DELIVERY = tuple(Delivery)


class Call(NamedTuple):
    """One call and how it ended: `"ok"`, a fault, or the type of the error that `inner` raised."""

    operation: str
    key: str
    outcome: str


@dataclass(eq=False)
class Rule:
    """Which calls a fault hits, and how many more. Returned by `fail`, `delay` and `random`, for `remove`."""

    which: Match
    faults: Sequence[Fault | Delivery]
    times: int | None
    skip: int
    probability: float
    delay_s: float = 0.0
    hits: int = 0
    within: int | None = None

    def fires(self, operation: str, key: str, rng: Callable[[], Random]) -> bool:
        if self.times == 0 or not self.which.covers(operation, key):
            return False
        if self.probability < 1.0 and rng().random() >= self.probability:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        self.hits += 1
        return True


@dataclass(eq=False)
class _Undelivered:
    """A write on its way. `due`: the number of the call before which it arrives; None: when the test says so."""

    operation: str
    key: str
    carry_out: Callable[[], object]
    due: int | None


class FaultyStore(WrappedStore):
    """An `ObjectStore` round `inner` that fails by rule.

    `calls` lists every call, in the order they ended, and each late or second delivery when it came: its outcome is then
    `"LATE ok"`, say, or `"TWICE PreconditionFailed"`.
    """

    def __init__(
        self, inner: ObjectStore, *, seed: int = 0, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        super().__init__(inner)
        self._seed = seed
        self._sleep = sleep
        self._lock = threading.Lock()  # guards everything below
        self._rules: list[Rule] = []
        self._count: Counter[tuple[str, str]] = Counter()
        self._calls: list[Call] = []
        self._number = 0
        self._undelivered: list[tuple[Delivery, _Undelivered]] = []

    # Making rules

    def fail(
        self,
        operation: str,
        *,
        prefix: str = "",
        suffix: str = "",
        times: int | None = 1,
        skip: int = 0,
        with_: Fault | Delivery = Fault.REFUSE,
        probability: float = 1.0,
        within: int | None = None,
    ) -> Rule:
        """Fail the next `times` matching calls (None: all of them) after letting `skip` pass.

        `"*"` is any operation. `within`: what comes late or again arrives before one of the next so many calls of any
        kind, which one the seed says; None: it waits for `deliver()`.
        """
        which = match(operation, prefix, suffix)
        return self._add(Rule(which, (with_,), times, skip, probability, within=within))

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
        faults: Sequence[Fault | Delivery] = ANY_FAULT,
        within: int | None = None,
        **probability_by_operation: float,
    ) -> list[Rule]:
        """Fail each call of `put=`, `get=`, `head=`, `list=`, `delete=` with that probability; `within` as for `fail`."""
        return [
            self._add(
                Rule(match(operation, prefix, suffix), tuple(faults), None, 0, probability, within=within)
            )
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
        """Take every rule back. What is on its way stays on its way."""
        with self._lock:
            self._rules.clear()

    # What is on its way

    @property
    def undelivered(self) -> list[tuple[str, str]]:
        """Operation and key of each write that is still to be carried out late or again, in the order they were sent."""
        with self._lock:
            return [(one.operation, one.key) for _, one in self._undelivered]

    def deliver(self, *, prefix: str = "", suffix: str = "", count: int | None = None) -> list[Call]:
        """Carry out now what is on its way, the oldest `count` or all. Returns how each ended, which nobody else is told."""
        with self._lock:
            chosen = [
                pair
                for pair in self._undelivered
                if pair[1].key.startswith(prefix) and pair[1].key.endswith(suffix)
            ][:count]
        return self._carry_out(chosen)

    def _carry_out(self, chosen: Sequence[tuple[Delivery, _Undelivered]]) -> list[Call]:
        ended = []
        for pair in chosen:
            delivery, one = pair
            with self._lock:
                if pair not in self._undelivered:
                    continue  # another thread was faster
                self._undelivered.remove(pair)
            try:
                one.carry_out()
                outcome = "ok"
            except Exception as error:
                outcome = type(error).__name__
            ended.append(Call(one.operation, one.key, f"{delivery.name} {outcome}"))
            self._note(*ended[-1])
        return ended

    def _arrivals(self) -> None:
        """Before each call: what is due by now."""
        with self._lock:
            self._number += 1
            number = self._number
            due = [pair for pair in self._undelivered if pair[1].due is not None and pair[1].due <= number]
        if due:
            self._carry_out(due)

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
        """Start the list of calls again."""
        with self._lock:
            self._calls.clear()

    # The calls

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        kept = bytes(data)  # a delivery may come when the caller has used its buffer again
        return self._through(
            "put",
            key,
            lambda: self.inner.put(key, kept, if_absent=if_absent, if_match=if_match),
            conditional=if_absent or if_match is not None,
        )

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """A listing that is cut gives its first half and then raises, as a page that fails does."""
        self._arrivals()
        fault, _ = self._fault("list", prefix)
        if fault is None:
            self._note("list", prefix, "ok")
            return self.inner.list(prefix, start_after)
        self._note("list", prefix, fault.name)
        if fault is Fault.CUT:
            return _first_half(self.inner.list(prefix, start_after), _error(fault, "list", prefix))
        raise _error(fault, "list", prefix)

    def _through(self, operation: str, key: str, call: Callable[[], T], *, conditional: bool = False) -> T:
        self._arrivals()
        fault, due = self._fault(operation, key)
        if isinstance(fault, Delivery) and operation in WRITES:
            return self._misdeliver(fault, _Undelivered(operation, key, call, due), call, conditional)
        if fault is None:
            return self._answered(operation, key, call)
        if operation in WRITES and fault in (Fault.LOSE_ANSWER, Fault.CUT):
            with suppress(StoreError):  # the store may say no, and that answer is lost too
                call()
        self._note(operation, key, fault.name)
        raise _error(fault, operation, key)

    def _answered(self, operation: str, key: str, carry_out: Callable[[], T]) -> T:
        try:
            answer = carry_out()
        except Exception as error:
            self._note(operation, key, type(error).__name__)
            raise
        self._note(operation, key, "ok")
        return answer

    def _misdeliver(
        self, delivery: Delivery, write: _Undelivered, carry_out: Callable[[], T], conditional: bool
    ) -> T:
        operation, key = write.operation, write.key
        if delivery is Delivery.DENIED:
            if not conditional:
                return self._answered(operation, key, carry_out)
            try:
                carry_out()
            except Exception as error:  # a refusal that is true
                self._note(operation, key, type(error).__name__)
                raise
            self._note(operation, key, delivery.name)
            raise PreconditionFailed(f"{operation} {key}: injected: carried out, and answered 412")
        with self._lock:
            self._undelivered.append((delivery, write))
        if delivery is Delivery.TWICE:
            return self._answered(operation, key, carry_out)
        self._note(operation, key, delivery.name)
        raise Indeterminate(f"{operation} {key}: injected: not answered, and carried out later")

    def _fault(self, operation: str, key: str) -> tuple[Fault | Delivery | None, int | None]:
        """Sleep if a rule says so; then the fault that hits this call, if any, and when a late delivery is due."""
        delay_s = 0.0
        chosen: Fault | Delivery | None = None
        due: int | None = None
        with self._lock:
            nth = self._count[operation, key]
            self._count[operation, key] += 1
            rng: Random | None = None

            def roll() -> Random:
                nonlocal rng
                rng = rng or Random(f"{self._seed}/{operation}/{key}/{nth}")
                return rng

            for rule in self._rules:
                if not rule.fires(operation, key, roll):
                    continue
                delay_s += rule.delay_s
                if rule.faults:
                    chosen = rule.faults[0] if len(rule.faults) == 1 else roll().choice(rule.faults)
                    if rule.within is not None:
                        due = self._number + roll().randint(1, rule.within)
                    break
        if delay_s:
            self._sleep(delay_s)
        return chosen, due

    def _note(self, operation: str, key: str, outcome: str) -> None:
        with self._lock:
            self._calls.append(Call(operation, key, outcome))


def _error(fault: Fault | Delivery, operation: str, key: str) -> StoreError:
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
