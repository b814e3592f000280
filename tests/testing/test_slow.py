"""`SlowStore`: waits as told, through the sleep that was passed in."""

from __future__ import annotations

import random

import pytest

from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import S3_LATENCY, Latency, SlowStore


def test_each_operation_waits_its_own_time() -> None:
    slept: list[float] = []
    store = SlowStore(MemoryStore(), get=0.1, put=0.2, head=0.3, list=0.4, delete=0.5, sleep=slept.append)
    store.put("k", b"x", if_absent=True)
    assert store.get("k") == b"x"
    store.head("k")
    assert [info.key for info in store.list("")] == ["k"]
    store.delete("k")
    assert slept == [0.2, 0.1, 0.3, 0.4, 0.5]
    assert isinstance(store, ObjectStore)


def test_no_latency_no_sleep() -> None:
    slept: list[float] = []
    SlowStore(MemoryStore(), sleep=slept.append).put("k", b"x")
    assert slept == []


@pytest.mark.parametrize(("size", "p50", "p99"), [(4 << 10, 0.028, 0.067), (4 << 20, 0.141, 0.252)])
def test_s3_has_the_measured_median_and_tail(size: int, p50: float, p99: float) -> None:
    dice = random.Random(1)
    drawn = sorted(S3_LATENCY["put"].draw_s(size, dice) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(p50, rel=0.05)
    assert drawn[19_800] == pytest.approx(p99, rel=0.1)


def test_a_seed_gives_the_same_waits() -> None:
    def waits(seed: int) -> list[float]:
        slept: list[float] = []
        store = SlowStore(MemoryStore(), **S3_LATENCY, seed=seed, sleep=slept.append)
        for number in range(20):
            store.put(f"{number}", bytes(number * 1000))
        return slept

    assert waits(1) == waits(1)
    assert waits(1) != waits(2)


def test_a_bad_latency_is_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        Latency(0.2, 0.1)
