"""`MeteredStore`: counts, bytes, errors and latencies, with a clock that the test moves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore.errors import Determinate, ObjectNotFound, PreconditionFailed
from logstore.objects import MemoryStore, MeteredStore
from logstore.testing import Fault, FaultyStore, SlowStore


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_requests_bytes_and_errors_by_operation() -> None:
    store = MeteredStore(MemoryStore())
    store.put("k", b"12345", if_absent=True)
    with pytest.raises(PreconditionFailed):
        store.put("k", b"12345", if_absent=True)
    assert store.get("k", 1, 4) == b"234"
    with pytest.raises(ObjectNotFound):
        store.get("missing")
    store.head("k")
    store.delete("k")
    found = store.snapshot()
    assert {name: (stats.requests, stats.bytes) for name, stats in found.items()} == {
        "get": (2, 3),
        "put": (2, 5),
        "head": (1, 0),
        "list": (0, 0),
        "delete": (1, 0),
    }
    assert found["put"].errors == {"PreconditionFailed": 1}
    assert found["get"].errors == {"ObjectNotFound": 1}
    assert store.requests == 6


def test_a_snapshot_stays_as_it_was() -> None:
    store = MeteredStore(MemoryStore())
    before = store.snapshot()
    store.put("k", b"x")
    assert before["put"].requests == 0


@pytest.mark.parametrize(("keys", "requests"), [(0, 1), (1, 1), (999, 1), (1000, 1), (1001, 2), (2500, 3)])
def test_a_listing_is_a_request_for_each_thousand_keys(keys: int, requests: int) -> None:
    inner = MemoryStore()
    for number in range(keys):
        inner.put(f"{number:05}", b"")
    store = MeteredStore(inner)
    assert len(list(store.list(""))) == keys
    assert store.snapshot()["list"].requests == requests


def test_a_listing_that_is_left_early_counts_and_one_that_is_not_begun_does_not() -> None:
    inner = MemoryStore()
    for number in range(10):
        inner.put(f"{number}", b"")
    store = MeteredStore(inner)
    found = store.list("")
    assert store.snapshot()["list"].requests == 0
    next(found)
    del found
    assert store.snapshot()["list"].requests == 1


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.CUT])
def test_a_listing_that_fails(fault: Fault) -> None:
    faulty = FaultyStore(MemoryStore())
    faulty.fail("list", with_=fault)
    store = MeteredStore(faulty)
    with pytest.raises(Determinate):
        list(store.list(""))
    stats = store.snapshot()["list"]
    assert (stats.requests, stats.errors) == (1, {"Determinate": 1})


def test_latencies_fall_into_buckets() -> None:
    clock = Clock()
    store = MeteredStore(SlowStore(MemoryStore(), put=0.040, sleep=clock.sleep), clock=clock)
    for number in range(99):
        store.put(f"{number}", b"x")
    slow = MeteredStore(SlowStore(MemoryStore(), put=60.0, sleep=clock.sleep), clock=clock)
    slow.put("k", b"x")
    stats = store.snapshot()["put"]
    assert stats.seconds == pytest.approx(99 * 0.040)
    assert stats.latency_s(0.5) == pytest.approx(0.064)
    assert stats.latency_s(0.99) == pytest.approx(0.064)
    assert slow.snapshot()["put"].latency_s(0.5) == float("inf")


def test_the_time_of_a_listing_is_the_stores_not_the_callers() -> None:
    clock = Clock()
    inner = MemoryStore()
    for number in range(5):
        inner.put(f"{number}", b"")
    store = MeteredStore(inner, clock=clock)
    for _ in store.list(""):
        clock.sleep(10.0)
    assert store.snapshot()["list"].seconds == 0.0


def test_no_count_is_lost_between_threads() -> None:
    store = MeteredStore(MemoryStore())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"{number}", b"xy"), range(2000)))
    stats = store.snapshot()["put"]
    assert (stats.requests, stats.bytes, sum(stats.latency_buckets)) == (2000, 4000, 2000)
