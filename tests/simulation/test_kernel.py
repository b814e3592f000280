"""The simulated threads: they wait, wake, time out and die as real ones do, in an order that the seed alone decides."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.simulation.kernel import Kernel, Killed, Life, Task


def run(call: Callable[[Kernel], object], seed: int = 1) -> Kernel:
    faults: list[tuple[Task, BaseException]] = []
    kernel = Kernel(seed, lambda task, error: faults.append((task, error)))
    kernel.run(lambda: call(kernel))
    for _, error in faults:
        raise error
    return kernel


def test_waiting_takes_no_time_and_moves_the_clock() -> None:
    seen: list[float] = []

    def body(kernel: Kernel) -> None:
        time.sleep(86_400.0)
        seen.append(kernel.now)
        condition = threading.Condition()
        with condition:
            assert not condition.wait(7.0)
        seen.append(kernel.now)

    run(body)
    assert seen == [86_400.0, 86_407.0]


def test_locks_conditions_events_and_joins() -> None:
    def body(kernel: Kernel) -> None:
        lock, ready, order = threading.Lock(), threading.Event(), list[int]()

        def work(number: int) -> None:
            ready.wait()
            with lock:
                time.sleep(1.0)
                order.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        threads[0].join(3.0)
        assert threads[0].is_alive()
        assert not lock.locked()
        ready.set()
        for thread in threads:
            thread.join()
        assert sorted(order) == list(range(5))
        assert kernel.now == 8.0
        assert lock.acquire()
        assert not lock.acquire(timeout=2.0)
        assert kernel.now == 10.0

    run(body)


def test_pools_and_futures() -> None:
    def slow_ident() -> int:
        time.sleep(1.0)
        return threading.get_ident()

    def body(kernel: Kernel) -> None:
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(slow_ident) for _ in range(8)]
            names = {future.result(timeout=60.0) for future in futures}
        assert 1 < len(names) <= 4
        assert kernel.now == pytest.approx(2.0)

    run(body)


def schedule_of(seed: int) -> list[int]:
    order: list[int] = []

    def body(kernel: Kernel) -> None:
        def work(number: int) -> None:
            for _ in range(5):
                time.sleep(1.0)
                order.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        order.append(int.from_bytes(os.urandom(4)))

    run(body, seed)
    return order


def test_C06_the_seed_decides_the_order() -> None:
    assert schedule_of(1) == schedule_of(1)
    assert schedule_of(1) != schedule_of(2)


def test_a_killed_life_ends_where_it_stands_and_its_locks_hold_nobody_up() -> None:
    ended: list[str] = []

    def body(kernel: Kernel) -> None:
        life, lock = Life("victim"), threading.Lock()

        def holder() -> None:
            try:
                with lock:
                    time.sleep(1_000.0)
            finally:
                ended.append("holder")

        def waiter() -> None:
            try:
                with lock:
                    ended.append("never")
            except Killed:
                ended.append("waiter")
                raise

        kernel.start(holder, life, "holder")
        kernel.sleep(1.0)
        kernel.start(waiter, life, "waiter")
        kernel.sleep(1.0)
        kernel.kill(life)
        kernel.sleep(1.0)
        assert kernel.now < 4.0

    run(body)
    assert sorted(ended) == ["holder", "waiter"]


def test_a_frozen_life_does_nothing_until_it_is_thawed() -> None:
    def body(kernel: Kernel) -> None:
        life, seen = Life("sleeper"), list[float]()

        def beat() -> None:
            while True:
                time.sleep(1.0)
                seen.append(kernel.now)

        kernel.start(beat, life, "beat")
        kernel.sleep(3.5)
        kernel.freeze(life)
        kernel.sleep(100.0)
        assert len(seen) == 3
        kernel.thaw(life)
        kernel.sleep(2.0)
        assert seen[3] == 103.5

    run(body)


def test_everybody_else_keeps_the_real_ones() -> None:
    real = threading.Lock

    def body(kernel: Kernel) -> None:
        assert type(threading.Lock()) is not type(real())

    run(body)
    assert threading.Lock is real
