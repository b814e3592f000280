"""U08: what a wake-up costs is counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

import logstore
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore
from logstore.upsert import UpsertView


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of Python the call runs."""
    count = 0

    def trace(frame: object, event: str, arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()  # of whoever measures coverage
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("times", [1, 50], ids=["one-time", "many-times"])
def test_U08_a_wake_up_with_nothing_eligible_does_not_look_at_the_backlog(times: int) -> None:
    """10 and 100,000 updates wait: the same lines are run, and the store is not asked."""
    costs = []
    for backlog in (10, 100_000):
        faulty = FaultyStore(MemoryStore())
        with logstore.open(faulty) as store:
            view = UpsertView(store.create_topic("t").partition(0), "a")
            view.apply_many((b"%d" % n, b"x", 1, 100 + n % min(times, backlog)) for n in range(backlog))
            view.advance(5)
            faulty.forget_calls()
            costs.append(lines_run(view.drain))
            assert faulty.calls == []
            assert view.stashed == backlog
    assert costs[0] == costs[1]


def test_U08_dropping_costs_what_is_dropped_not_what_waits() -> None:
    """A peer overtakes by one time with 3 updates, while 10 or 50,000 wait above."""
    costs = []
    for backlog in (10, 50_000):
        objects = MemoryStore()
        with logstore.open(objects) as a, logstore.open(objects) as b:
            mine = UpsertView(a.create_topic("t").partition(0), "mine")
            peer = UpsertView(b.topic("t").partition(0), "peer")
            mine.apply_many((b"%d" % n, b"x", 1, 0) for n in range(3))
            mine.apply_many((b"%d" % n, b"x", 1, 100 + n) for n in range(backlog))
            peer.advance(1)
            mine._writer.upper()
            costs.append(lines_run(mine._take_in))
            assert (mine.dropped, mine.stashed) == (3, backlog)
    assert costs[1] <= costs[0] * 1.5
