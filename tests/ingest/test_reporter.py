"""F04: reports rise, one at a time, whoever delivers them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from logstore.ingest.reporter import Reporter
from tests.support.patience import PATIENCE_S


def test_F04_what_settles_meanwhile_is_reported_by_the_thread_that_is_at_it() -> None:
    entered, go_on, seen = threading.Event(), threading.Event(), []

    def on_flushed(boundary: int) -> None:
        seen.append((boundary, threading.current_thread().name))
        entered.set()
        assert go_on.wait(PATIENCE_S)

    reporter = Reporter(0, on_flushed)
    reporter.settle(1)
    first = threading.Thread(target=reporter.deliver, name="first")
    first.start()
    assert entered.wait(PATIENCE_S)
    reporter.settle(2)
    reporter.settle(3)
    reporter.deliver()  # returns at once: another one is at it
    go_on.set()
    first.join(PATIENCE_S)
    assert seen == [(1, "first"), (3, "first")]


def test_F04_waiting_sees_another_threads_report_to_its_end() -> None:
    entered, go_on, seen = threading.Event(), threading.Event(), []

    def on_flushed(boundary: int) -> None:
        entered.set()
        assert go_on.wait(PATIENCE_S)
        seen.append(boundary)

    reporter = Reporter(0, on_flushed)
    reporter.settle(1)
    first = threading.Thread(target=reporter.deliver)
    first.start()
    assert entered.wait(PATIENCE_S)
    threading.Timer(0, go_on.set).start()
    reporter.deliver(wait=True)
    assert seen == [1]
    first.join(PATIENCE_S)


def test_F04_a_callback_may_deliver_or_wait_and_is_not_entered_again() -> None:
    seen: list[Any] = []

    def on_flushed(boundary: int) -> None:
        seen.append(boundary)
        reporter.settle(2)
        reporter.deliver(wait=True)

    reporter = Reporter(0, on_flushed)
    reporter.settle(1)
    reporter.deliver()
    assert seen == [1, 2]


def test_F04_a_refused_report_is_repeated_with_the_newest_boundary() -> None:
    seen: list[Any] = []

    def on_flushed(boundary: int) -> None:
        if not seen:
            seen.append("refused")
            raise ConnectionError
        seen.append(boundary)

    reporter = Reporter(0, on_flushed)
    reporter.settle(1)
    with pytest.raises(ConnectionError):
        reporter.deliver()
    reporter.settle(2)
    reporter.deliver()
    reporter.deliver()
    assert seen == ["refused", 2]


def test_F10_nothing_is_reported_after_stop() -> None:
    seen: list[Any] = []
    reporter = Reporter(0, seen.append)
    reporter.settle(1)
    reporter.stop()
    reporter.deliver()
    assert seen == []
