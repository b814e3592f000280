"""Requests one after the other or several at a time: the same results, in order, and no thread is left."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

import pytest

from logstore.objects.fan_out import AT_ONCE, QUICK_S, fan_out
from tests.support.patience import PATIENCE_S


class Times:
    """A clock of which each call takes as long as the next of `taken` says, then as the last. In each thread they are
    timed one after the other."""

    def __init__(self, *taken: float) -> None:
        self._taken = taken
        self._calls = count()
        self._under_way: dict[int, int] = {}

    def __call__(self) -> float:
        call = self._under_way.pop(threading.get_ident(), None)
        if call is None:
            self._under_way[threading.get_ident()] = next(self._calls)
            return 0.0
        return self._taken[min(call, len(self._taken) - 1)]


def whose_thread(ran: list[str], result: int) -> int:
    ran.append(threading.current_thread().name)
    return result


def calls(ran: list[str], number: int) -> Iterator[Callable[[], int]]:
    return (partial(whose_thread, ran, one) for one in range(number))


def test_L29_quick_calls_need_no_thread() -> None:
    ran: list[str] = []
    assert list(fan_out(calls(ran, 100), Times(QUICK_S / 2))) == list(range(100))
    assert set(ran) == {threading.current_thread().name}


def test_a_single_slow_call_among_quick_ones_changes_nothing() -> None:
    ran: list[str] = []
    times = Times(*([1.0, 0.0] * 50))
    assert list(fan_out(calls(ran, 100), times)) == list(range(100))
    assert set(ran) == {threading.current_thread().name}


def test_slow_calls_are_under_way_together_and_come_back_in_order() -> None:
    """All of them wait until as many have arrived: one after the other they would wait for ever."""
    all_here = threading.Barrier(AT_ONCE)

    def call(number: int) -> int:
        if 2 <= number < 2 + AT_ONCE:
            all_here.wait(PATIENCE_S)
        return number

    found = list(fan_out((partial(call, number) for number in range(40)), Times(1.0)))
    assert found == list(range(40))
    assert not [thread for thread in threading.enumerate() if "logstore-side" in thread.name]


def test_the_last_slow_call_needs_no_thread_either() -> None:
    ran: list[str] = []
    assert list(fan_out(calls(ran, 3), Times(1.0))) == list(range(3))
    assert set(ran) == {threading.current_thread().name}


def test_a_few_slow_calls_are_under_way_together_as_many_are() -> None:
    ran: list[str] = []
    assert list(fan_out(calls(ran, 4), Times(1.0))) == list(range(4))
    assert sum("logstore-side" in name for name in ran) == 2


def test_who_begins_ahead_waits_for_none_before_others_are_under_way() -> None:
    all_here = threading.Barrier(3)
    waiting = (partial(all_here.wait, PATIENCE_S) for _ in range(3))
    assert sorted(fan_out(waiting, at_once=3, ahead=True)) == [0, 1, 2]


def test_when_calls_are_quick_again_no_more_are_handed_over() -> None:
    """Those that were under way by then come first."""
    ran: list[str] = []
    found = list(fan_out(calls(ran, 20), Times(0.0), at_once=3, ahead=True))
    assert found == list(range(20))
    handed_over = [name for name in ran if "logstore-side" in name]
    assert len(handed_over) == 4
    assert ran[-16:] == [threading.current_thread().name] * 16


def test_threads_of_the_caller_are_used_and_left_to_him() -> None:
    ran: list[str] = []
    with ThreadPoolExecutor(3, "his") as pool:
        for _ in range(2):
            assert list(fan_out(calls(ran, 9), Times(1.0), at_once=3, ahead=True, pool=pool)) == list(
                range(9)
            )
    assert all(name.startswith("his") for name in ran)


@pytest.mark.parametrize("far", [True, False])
def test_the_first_that_raises_ends_it_and_no_thread_is_left(far: bool) -> None:
    def call(number: int) -> int:
        if number in (12, 13):
            raise ValueError(number)
        return number

    found: list[int] = []
    with pytest.raises(ValueError, match="12"):
        for one in fan_out((partial(call, number) for number in range(100)), Times(1.0 if far else 0.0)):
            found.append(one)  # noqa: PERF402
    assert found == list(range(12))
    assert not [thread for thread in threading.enumerate() if "logstore-side" in thread.name]


def test_who_has_seen_enough_starts_no_more() -> None:
    ran: list[str] = []
    some = fan_out(calls(ran, 1000), Times(1.0))
    assert [next(some) for _ in range(20)] == list(range(20))
    some.close()
    assert len(ran) < 20 + 2 * AT_ONCE


AT_THE_END = """
import atexit
from itertools import count
from logstore.objects.fan_out import fan_out

def fails():
    raise ValueError("the twelfth")

@atexit.register
def end():
    clock = count()
    try:
        for one in fan_out([*(lambda n=n: n for n in range(12)), fails], lambda: next(clock)):
            print(one)
    except ValueError as error:
        print(error)
"""


def test_requests_are_made_in_order_where_the_interpreter_ends_and_no_pool_takes_work() -> None:
    command = [sys.executable, "-c", AT_THE_END]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stdout.split("\n")) == (
        0,
        [*map(str, range(12)), "the twelfth", ""],
    ), ended.stderr
