"""Buffered appends through one lane at S3's latency, in virtual time: requests take time, and all else nothing.

So the rate says what the shape allows: how many uploads are in flight, how large they are, what an append waits for. What
the CPU allows is another matter. A run is a function of its arguments.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from unittest.mock import patch

import logstore
from logstore.engine.write.lanes.lane_queue import ENTRY_BYTES
from logstore.objects import MemoryStore
from logstore.objects.fan_out import fan_out
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import S3_LATENCY, SlowStore
from tests.simulation.kernel import Kernel, Life
from tests.support.engine.virtual_race import VirtualClock

PUT_OF_AN_ENTRY_S = S3_LATENCY["put"].p50_large_s or 0.0


def limit_of(uploads: int) -> float:
    """What so many uploads in flight can carry, in bytes a second: each of an entry's size, in the time of such a PUT."""
    return uploads * ENTRY_BYTES / PUT_OF_AN_ENTRY_S


class _Watched(SlowStore):
    """Notes the most puts under way at the same time, and the size of each."""

    def __init__(self, inner: MemoryStore, kernel: Kernel, seed: int) -> None:
        super().__init__(inner, **S3_LATENCY, seed=seed, sleep=kernel.sleep)
        self.now = self.most = 0
        self.sizes: list[int] = []

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        self.now += 1
        self.most = max(self.most, self.now)
        self.sizes.append(len(data))
        try:
            return super().put(key, data, if_absent=if_absent, if_match=if_match)
        finally:
            self.now -= 1


@dataclass
class Load:
    """`seconds`: until all was durable. `most`: uploads at the same time. `sizes`: of all puts."""

    seconds: float = 0.0
    appended: int = 0
    most: int = 0
    sizes: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.appended / self.seconds


def run_load(partitions: int, lists: int, *, seed: int = 1) -> Load:
    """One producer appends so many lists of 1,000 records of 1,000 bytes, buffered, to one partition after another, as fast
    as it may, and flushes."""
    load, faults, objects = Load(appended=lists * 1_000_000), list[BaseException](), MemoryStore()
    kernel = Kernel(seed, lambda task, error: faults.append(error))
    slow = _Watched(objects, kernel, seed)
    pad = random.Random(seed).randbytes(994)

    def drive() -> None:
        with logstore.open(
            slow,
            clock=VirtualClock(kernel),
            rng=random.Random(seed),
            ack="buffered",
            compression="none",
            lanes=1,
        ) as store:
            topic = store.create_topic("t", partitions)
            for number in range(partitions):
                topic.partition(number).append(b"first")
            store.flush()
            slow.sizes.clear()
            began = kernel.now
            for number in range(lists):
                topic.partition(number % partitions).append([b"%06d" % number + pad] * 1000, timeout=1e6)
            store.flush(timeout=1e6)
            load.seconds, load.most, load.sizes = kernel.now - began, slow.most, list(slow.sizes)

    def first() -> None:
        task = kernel.start(drive, Life("load"), "load")
        task.joiners.append(kernel.current)
        kernel.park()

    with patch.object(fan_out, "__defaults__", (lambda: kernel.now,)):  # else all requests look quick
        kernel.run(first)
    if faults:
        raise faults[0]
    with logstore.open(objects, writer="read_only") as store:
        for place in range(partitions):
            stored = [(record.value or b"")[:6] for record in store.topic("t").partition(place).records()]
            numbers = range(place, lists, partitions)
            assert stored == [b"first", *(b"%06d" % number for number in numbers for _ in range(1000))]
    return load
