"""Shared writers of the product itself on one partition, at S3's latency for every request, in virtual time.

A run is a function of its arguments: the kernel of the simulation chooses which thread runs, and waiting takes no time.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import logstore
from logstore.objects import MemoryStore
from logstore.objects.protocol import ObjectStore
from logstore.testing import S3_LATENCY, SlowStore
from logstore.testing.slow import Latency
from tests.simulation.kernel import Kernel, Life

TOPIC = "t"
YEARS_MS = 8 * 365 * 86_400_000


class VirtualClock:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self._kernel.now * 1000)

    def monotonic(self) -> float:
        return self._kernel.now

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        if timeout is None or timeout > 0:
            condition.wait(timeout)


class SkewedClock(VirtualClock):
    """Its wall clock is off by up to years, and jumps now and then; its other one began at another time."""

    def __init__(self, kernel: Kernel, rng: random.Random) -> None:
        super().__init__(kernel)
        self._rng = rng
        self._skew_ms, self._began = rng.randint(-YEARS_MS, YEARS_MS), rng.uniform(-1e6, 1e6)

    def now_ms(self) -> int:
        if self._rng.random() < 0.1:
            self._skew_ms = self._rng.randint(-YEARS_MS, YEARS_MS)
        return super().now_ms() + self._skew_ms

    def monotonic(self) -> float:
        return super().monotonic() + self._began


class Counted:
    """Counts the requests, and names those that are of a kind of their own."""

    def __init__(self, inner: ObjectStore, counts: Counter[str]) -> None:
        self._inner = inner
        self._counts = counts

    def get(self, *args: Any, **kw: Any) -> bytes:
        self._counts["get"] += 1
        return self._inner.get(*args, **kw)

    def put(self, key: str, *args: Any, **kw: Any) -> Any:
        self._counts["aside" if "/pending/" in key else "put"] += 1
        return self._inner.put(key, *args, **kw)

    def head(self, *args: Any) -> Any:
        self._counts["head"] += 1
        return self._inner.head(*args)

    def list(self, *args: Any) -> Any:
        self._counts["list"] += 1
        return self._inner.list(*args)

    def delete(self, *args: Any) -> None:
        self._counts["delete"] += 1
        self._inner.delete(*args)


@dataclass
class Race:
    """What came of it, without the first seconds. `latencies`: of each writer's appends."""

    seconds: float
    latencies: list[list[float]]
    counts: Counter[str] = field(default_factory=Counter)
    segments: int = 0
    races_lost: int = 0

    @property
    def appends(self) -> int:
        return sum(map(len, self.latencies))

    @property
    def rate(self) -> float:
        return self.appends / self.seconds

    def quantile_s(self, quantile: float, writer: int | None = None) -> float:
        chosen = self.latencies if writer is None else [self.latencies[writer]]
        ordered = sorted(one for latencies in chosen for one in latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * quantile))]


def run_race(
    writers: int | Sequence[float],
    *,
    seconds: float,
    warm_up: float = 2.0,
    producers: int = 1,
    seed: int = 1,
    pause_s: float = 0.0,
    skewed: bool = False,
) -> Race:
    """`writers`: how many, or how much longer the requests of each take than S3's. Each of their `producers` appends one
    record after the other, after a pause of `pause_s` on the average. `skewed`: their clocks are. Everything that was acked
    is found where its ack says, once."""
    factors = [1.0] * writers if isinstance(writers, int) else list(writers)
    objects = MemoryStore()
    faults: list[BaseException] = []
    kernel = Kernel(seed, lambda task, error: faults.append(error))
    race = Race(seconds, [[] for _ in factors])
    acked: list[tuple[int, bytes]] = []
    counts: Counter[str] = Counter()
    start = 0.0
    counted = 0  # appends under way that count: until they are acked nobody stops

    def produce(log: logstore.PartitionLog, number: int, producer: int) -> None:
        nonlocal counted
        rng = random.Random(f"{seed}/{number}/{producer}")
        for count in range(10**9):
            if pause_s:
                kernel.sleep(rng.expovariate(1 / pause_s))
            began = kernel.now
            counts = start + warm_up <= began < start + warm_up + seconds
            if began >= start + warm_up + seconds and not counted:
                return
            value = b"%d-%d-%d" % (number, producer, count)
            counted += counts
            acked.append((log.append(value).offset, value))
            counted -= counts
            if counts:
                race.latencies[number].append(kernel.now - began)

    def drive() -> None:
        nonlocal start
        stores = []
        for number, factor in enumerate(factors):
            latency = {name: _slower(one, factor) for name, one in S3_LATENCY.items()}
            slow = SlowStore(objects, seed=seed * 1000 + number, sleep=kernel.sleep, **latency)
            counted = Counted(slow, counts)
            rng = random.Random(f"{seed}/{number}")
            clock = (
                SkewedClock(kernel, random.Random(f"{seed}/{number}/clock"))
                if skewed
                else VirtualClock(kernel)
            )
            stores.append(logstore.open(counted, writer="shared", clock=clock, rng=rng))
            stores[-1].create_topic(TOPIC, exist_ok=True)
        logs = [store.topic(TOPIC).partition(0) for store in stores]
        for log in logs:
            log.open_writer()
        start = kernel.now
        threads = [
            threading.Thread(target=produce, args=(log, number, producer))
            for number, log in enumerate(logs)
            for producer in range(producers)
        ]
        kernel.at(start + warm_up, counts.clear)
        kernel.at(start + warm_up + seconds, lambda: race.counts.update(counts))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        race.races_lost = sum(store.health()["partitions"][0]["races_lost"] for store in stores)
        for store in stores:
            store.close()

    def first() -> None:
        """What the first task starts ends with it, so the race has a life of its own."""
        task = kernel.start(drive, Life("race"), "race")
        task.joiners.append(kernel.current)
        kernel.park()

    kernel.run(first)
    if faults:
        raise faults[0]
    with logstore.open(objects, writer="read_only") as store:
        stored = [(record.offset, record.value) for record in store.topic(TOPIC).partition(0).records()]
    assert sorted(acked) == stored
    assert [offset for offset, _ in stored] == list(range(len(stored)))
    race.segments = sum(info.key.endswith(".seg") for info in objects.list("topics/"))
    return race


def _slower(latency: Latency, factor: float) -> Latency:
    """The sizes here are all small."""
    return Latency(latency.p50_s * factor, latency.p99_s * factor)
