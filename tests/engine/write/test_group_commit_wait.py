"""L04: how long an upload waits for the producers that the last one released, whatever the machine does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from logstore.engine.write.group_commit import Linger

UPLOAD_S = 8.0
PATIENCE_S = 2.0


class Machine:
    """A clock whose waits take as long as they are asked to, or as long as `waits` says; after a wait so many more producers
    are back. It has one thread, so nothing depends on luck."""

    def __init__(self, released: int, waits: list[tuple[float | None, int]] | None = None) -> None:
        self.now = 100.0
        self.back = 0
        self._waits: Iterator[tuple[float | None, int]] = iter(waits or [])
        self.linger = Linger(self, threading.Condition())
        self.linger.after_commit(released, 0, UPLOAD_S)

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        assert timeout is not None
        took, more = next(self._waits, (None, 0))
        self.now += timeout if took is None else took
        self.back += more

    def flush_waits(self, come_first: int, after_s: float = 0.0) -> float:
        """Seconds that a flush waits which the first ones ask for, so long after the commit."""
        self.now += after_s
        self.back += come_first
        began = self.now
        self.linger.wait(lambda: self.back, lambda: False)
        return self.now - began


def test_L04_it_waits_a_quarter_of_an_upload_for_those_who_do_not_come() -> None:
    assert Machine(released=16).flush_waits(come_first=1) == PATIENCE_S


def test_L04_it_waits_no_longer_when_the_last_one_has_come() -> None:
    machine = Machine(16, [(0.1, 5), (0.2, 10)])
    assert machine.flush_waits(come_first=1) == pytest.approx(0.3)


def test_L04_it_waits_from_the_first_one_on_not_from_the_commit() -> None:
    """The whole crowd was stopped for longer than the patience lasts: it comes back together all the same."""
    machine = Machine(16, [(0.4, 15)])
    assert machine.flush_waits(come_first=1, after_s=PATIENCE_S + 1) == pytest.approx(0.4)
    assert machine.back == 16


def test_L04_who_comes_when_another_upload_would_be_over_waits_for_nobody() -> None:
    assert Machine(released=16).flush_waits(come_first=1, after_s=UPLOAD_S) == 0.0


def test_L04_a_machine_that_stops_does_not_use_up_the_patience() -> None:
    """Stopped for 30 s in the first of the short waits; those it waits for were stopped, too, and come in the second."""
    machine = Machine(16, [(30.0, 0), (0.1, 15)])
    machine.flush_waits(come_first=1)
    assert machine.back == 16


def test_L04_a_flush_that_nobody_waits_for_keeps_the_patience_for_the_first_who_does() -> None:
    machine = Machine(16, [(0.1, 15)])
    assert machine.flush_waits(come_first=0) == 0.0
    assert machine.flush_waits(come_first=1) == pytest.approx(0.1)


def test_L04_it_waits_once_for_a_crowd_that_has_left() -> None:
    machine = Machine(released=16)
    assert machine.flush_waits(come_first=1) == PATIENCE_S
    assert machine.flush_waits(come_first=0) == 0.0


def test_L04_a_producer_that_is_alone_never_waits() -> None:
    assert Machine(released=1).flush_waits(come_first=1) == 0.0


def test_L04_an_upload_in_which_the_process_was_stopped_for_days_is_not_lingered_for() -> None:
    machine = Machine(released=2)
    machine.linger.after_commit(2, 0, 1_000_000.0)
    assert machine.flush_waits(come_first=1) <= UPLOAD_S
