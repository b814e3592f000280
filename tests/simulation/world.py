"""The simulated world: one object store that misdelivers, and processes on it that know only their own clocks."""

from __future__ import annotations

import heapq
import logging
import random
import re
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from zlib import crc32

from logstore.objects import MemoryStore
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import Delivery, Fault, FaultyStore
from tests.simulation.kernel import Kernel, Killed, Life, Task
from tests.simulation.oracle import Oracle, Violation

T = TypeVar("T")
YEAR_S = 365 * 86_400.0
_EPOCH_MS = 1_700_000_000_000
_LATE_WITHIN = 400  # requests
_PID = re.compile(r"\bprocess \d+")

RATES: dict[str, tuple[Fault | Delivery, float]] = {
    "denied": (Delivery.DENIED, 0.12),
    "unanswered": (Fault.LOSE_ANSWER, 0.10),
    "lost": (Fault.LOSE_REQUEST, 0.08),
    "late": (Delivery.LATE, 0.06),
    "twice": (Delivery.TWICE, 0.06),
}
"""Of every put, by the name under which `--without` switches it off."""


class ProcessClock:
    """The clock of one process: it runs at its own pace, its wall clock is set now and then, and while the process is
    suspended its monotonic one may stand still, as it does in a machine that sleeps, or go on, as for a process that was
    stopped."""

    def __init__(self, kernel: Kernel, pace: float, ahead_s: float) -> None:
        self._kernel = kernel
        self._pace = pace
        self.ahead_s = ahead_s
        self._stood_s = 0.0

    def monotonic(self) -> float:
        return (self._kernel.now - self._stood_s) * self._pace

    def now_ms(self) -> int:
        return max(0, _EPOCH_MS + int((self._kernel.now * self._pace + self.ahead_s) * 1000))

    def jump(self, seconds: float) -> None:
        """The wall clock alone is set."""
        self.ahead_s = max(-50 * YEAR_S, min(50 * YEAR_S, self.ahead_s + seconds))

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        if timeout is None or timeout > 0:
            condition.wait(None if timeout is None else min(timeout / self._pace, 10 * YEAR_S))

    def stood(self, seconds: float) -> None:
        self._stood_s += seconds


@dataclass
class Weather:
    """How fast the store answers, drawn for each request."""

    rng: random.Random
    slow: float

    def seconds(self) -> float:
        if self.rng.random() < self.slow:
            return self.rng.uniform(0.5, 20.0)
        return self.rng.expovariate(1 / 0.02)


class World:
    """`steps` counts the requests that the store was sent. `trace` keeps the last of what happened, in order."""

    def __init__(
        self, seed: object, steps_max: int, rates: dict[str, float], free_low: set[str], keep: int
    ) -> None:
        self.seed = seed
        self.steps = 0
        self.steps_max = steps_max
        self.kernel = Kernel(seed, self._fault)
        self.memory = MemoryStore()
        self.objects = FaultyStore(self.memory, seed=hash_of(seed))
        self._rates = rates
        self.weather = Weather(random.Random(f"weather/{seed}"), 0.03)
        self.oracle = Oracle(free_low)
        self.trace: deque[str] = deque(maxlen=keep)
        self.digest = 0
        self.counts: Counter[str] = Counter()
        self.violation: Violation | None = None
        self.finale = False
        self.processes: list[Process] = []
        self.trims = True
        self.lies = 0.0  # of the conditional puts, how many are carried out whatever their condition says
        self.topic_settings: dict[str, dict[str, Any]] = {}
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._order = 0
        self._driver: Task | None = None

    def start_faults(self) -> None:
        """In proportion: of several rules the first that fires decides, so each but the first is asked less often."""
        left = 1.0
        for name, rate in self._rates.items():
            self.objects.fail(
                "put", times=None, with_=RATES[name][0], probability=rate / left, within=_LATE_WITHIN
            )
            left -= rate
        self.objects.fail("delete", times=None, with_=Delivery.LATE, probability=0.02, within=_LATE_WITHIN)
        self.objects.fail("delete", times=None, with_=Fault.LOSE_ANSWER, probability=0.03)
        self.objects.random(get=0.02, head=0.02, list=0.02, faults=(Fault.REFUSE, Fault.SLOW_DOWN))

    def note(self, who: str, what: str) -> None:
        what = _PID.sub("process", what)  # which differs from run to run
        line = f"{self.steps:6} {self.kernel.now:14.3f} {who:<5} {what}"
        self.digest = (self.digest * 1_000_003 + hash_of(line)) & 0xFFFFFFFFFFFFFFFF
        self.trace.append(line)
        self.counts[what.split(" ", 1)[0]] += 1
        for kind, broken in self.oracle.broken:
            self.fail(kind, broken)
        self.oracle.broken.clear()

    def fail(self, kind: str, what: str) -> None:
        if self.violation is None:
            self.violation = Violation(kind, what, self.steps, self.kernel.now)
            self.trace.append(f"{self.steps:6} {self.kernel.now:14.3f} ***** {kind}: {what}")
            self._end()

    def _fault(self, task: Task, error: BaseException) -> None:
        where = " <- ".join(
            f"{frame.filename.rsplit('/', 2)[-1]}:{frame.lineno}"
            for frame in reversed(traceback.extract_tb(error.__traceback__)[-6:])
        )
        self.fail(
            f"an error that nobody expects: {type(error).__name__}", f"{task.life.name}: {error} ({where})"
        )

    def requested(self) -> None:
        self.steps += 1
        while self._due and self._due[0][0] <= self.steps:
            heapq.heappop(self._due)[2]()
        if self.steps >= self.steps_max:
            self._end()

    def after(self, steps: int, call: Callable[[], object]) -> None:
        """Call it, in nobody's name, when the store has been sent so many more requests."""
        self._order += 1
        heapq.heappush(self._due, (self.steps + steps, self._order, call))

    def days_pass(self, seconds: float) -> None:
        """On every wall clock, without a step: as if all of them had been quiet for so long."""
        for process in self.processes:
            process.machine.ahead_s += seconds
            process.clock.jump(seconds)

    def _end(self) -> None:
        if self._driver is not None:
            self.kernel.unpark(self._driver)

    def wait_for_the_end(self) -> None:
        self._driver = self.kernel.current
        while self.steps < self.steps_max and self.violation is None:
            before = self.steps
            if not self.kernel.park(10 * 86_400.0) and self.steps == before and self._due:
                heapq.heappop(self._due)[
                    2
                ]()  # nobody sends anything: what waits for requests waits no longer
        self._driver = None

    def begin_finale(self) -> None:
        """Nothing is asked for any more, nobody sleeps, and what is on its way still comes."""
        self.finale = True
        self._due.clear()
        self.objects.heal()
        self.weather.slow = 0.0
        for process in self.processes:
            process.wake_up()
            process.kill_in = None
            process.stop_idling()


def hash_of(text: object) -> int:
    """Of a text, the same in every interpreter."""
    return crc32(str(text).encode())


@dataclass
class Machine:
    """What outlives a process: its number, its clock's habits, and what the seed makes of it."""

    number: int
    pace: float
    ahead_s: float
    lives: int = 0


class Process:
    """One life of one process: its view of the store, its clock, its rng, its tasks."""

    def __init__(self, world: World, machine: Machine) -> None:
        machine.lives += 1
        self.world = world
        self.machine = machine
        self.name = f"p{machine.number}.{machine.lives}"
        self.life = Life(self.name)
        self.clock = ProcessClock(world.kernel, machine.pace, machine.ahead_s)
        self.rng = random.Random(f"{world.seed}/{self.name}")
        self.objects = ProcessStore(self)
        self.kill_in: int | None = None  # requests
        self.kill_after = False
        self.values = 0
        self._idler: Task | None = None
        self.turn: Callable[[], object] | None = None
        self.waits: Task | None = None
        world.processes = [other for other in world.processes if not other.life.dead] + [self]

    def start(self, call: Callable[[Process], object]) -> None:
        self.world.kernel.start(lambda: call(self), self.life, "main")

    def note(self, what: str) -> None:
        self.world.note(self.name, what)

    def new_values(self, count: int) -> list[str]:
        self.values += count
        return [f"{self.name}-{number}" for number in range(self.values - count, self.values)]

    def idle(self, seconds: float, steps: int | None = None) -> None:
        """Wait on nobody's clock, or until others have sent so many requests. The finale cuts it short."""
        world = self.world
        if world.finale:
            return
        me = self._idler = world.kernel.current
        if steps is not None:
            world.after(steps, self.stop_idling)
        world.kernel.park(seconds)
        if self._idler is me:
            self._idler = None

    def stop_idling(self) -> None:
        if self._idler is not None and not self.life.dead:
            self.world.kernel.unpark(self._idler)

    def await_turn(self) -> Callable[[], object]:
        """In the finale: what the driver wants next."""
        self.turn = None
        self.waits = self.world.kernel.current
        while not (turn := self.turn):
            self.world.kernel.park()
        self.waits = None
        return turn

    def suspend(self, steps: int, seconds: float, *, asleep: bool) -> None:
        """It stands still while others send `steps` requests, in which `seconds` pass on the calendar."""
        kernel, world = self.world.kernel, self.world
        if self.life.dead or self.life.frozen:
            return
        began = kernel.now
        kernel.freeze(self.life)

        def wake_up() -> None:
            if (
                self.wake_up is wake_up and self.life.frozen and not self.life.dead
            ):  # else it was woken up before
                self.note(f"wakes up, {seconds:.0f} s later")
                self.clock.stood(kernel.now - began if asleep else -seconds)
                kernel.thaw(self.life)

        self.wake_up = wake_up
        world.days_pass(seconds)
        world.after(steps, wake_up)
        kernel.at(kernel.now + 7 * 86_400, wake_up)

    wake_up: Callable[[], None] = staticmethod(lambda: None)

    def kill(self) -> None:
        self.note("killed")
        self.world.kernel.kill(self.life)


class _Request:
    """One call on its way. It is carried out when it arrives, also if its sender is dead by then."""

    def __init__(self) -> None:
        self.answered = False
        self.answer: Any = None
        self.error: BaseException | None = None


class ProcessStore:
    """The object store as one process sees it: each call takes time, both ways."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __repr__(self) -> str:
        return "the simulated store"

    def _call(self, operation: str, key: str, carry_out: Callable[[], T]) -> T:
        process, world = self._process, self._process.world
        kernel = world.kernel
        if process.life.dead or kernel.over:
            raise Killed
        if process.kill_in is not None:
            process.kill_in -= 1
            if process.kill_in <= 0 and not process.kill_after:
                process.kill()
                raise Killed
        request, me = _Request(), kernel.current
        there, back = world.weather.seconds(), world.weather.seconds()
        kernel.at(kernel.now + there, lambda: self._arrive(request, operation, key, carry_out, me, back))
        while not request.answered:
            kernel.park()
        if process.kill_in is not None and process.kill_in <= 0:
            process.kill()
            raise Killed
        if request.error is not None:
            raise request.error
        return request.answer  # type: ignore[no-any-return]

    def _arrive(
        self,
        request: _Request,
        operation: str,
        key: str,
        carry_out: Callable[[], T],
        sender: Task,
        back: float,
    ) -> None:
        process, world = self._process, self._process.world
        if process.life.dead and world.weather.rng.random() < 0.5:
            return  # it was still in the dead one's buffers
        world.requested()
        seen = len(world.objects.calls)
        try:
            request.answer = carry_out()
        except Exception as error:
            request.error = error
        for call in world.objects.calls[seen:]:
            who = process.name if call.key == key and " " not in call.outcome else "late"
            world.note(who, f"{call.operation} {call.key} {call.outcome}")
        world.objects.forget_calls()

        def hear() -> None:
            request.answered = True
            world.kernel.unpark(sender)

        world.kernel.at(world.kernel.now + back, hear)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._call("get", key, lambda: self._process.world.objects.get(key, start, end))

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        kept, world = bytes(data), self._process.world
        if world.lies and world.weather.rng.random() < world.lies:
            if_absent, if_match = False, None
        return self._call(
            "put", key, lambda: world.objects.put(key, kept, if_absent=if_absent, if_match=if_match)
        )

    def head(self, key: str) -> ObjectInfo | None:
        return self._call("head", key, lambda: self._process.world.objects.head(key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return iter(
            self._call("list", prefix, lambda: list(self._process.world.objects.list(prefix, start_after)))
        )

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self._process.world.objects.delete(key))


class Loud(logging.Handler):
    """An error that the engine says it did not expect is a finding."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None and record.name.startswith("logstore"):
            self._world._fault(self._world.kernel.current, record.exc_info[1])
