"""S13: how far behind a stream is, from the progress that Spark gives."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.errors import StoreUnavailable
from logstore.spark import Lag, LagListener, lag, lag_report
from tests.support.spark.material import START_MS, numbered

pytestmark = pytest.mark.spark
MakeLog = Callable[..., str]


def progress(end: dict[str, Any] | None, latest: dict[str, Any] | None) -> dict[str, Any]:
    """As `query.lastProgress` has it."""
    sources = [
        {"description": "RateStreamV2", "endOffset": "17", "latestOffset": "17"},
        {"description": "Python@4b", "endOffset": json.dumps(end), "latestOffset": json.dumps(latest)},
    ]
    return {"id": "q", "sources": sources}


def test_S13_lag_is_told_in_the_names_of_sparks_kafka_source() -> None:
    found = lag(progress({"orders": {"0": 5, "1": 9}}, {"orders": {"0": 10, "1": 9, "2": 4}}))
    assert found is not None
    assert found.behind == {("orders", 0): 5, ("orders", 1): 0, ("orders", 2): 4}
    assert found.total == 9
    assert found.metrics == {
        "minOffsetsBehindLatest": "0",
        "avgOffsetsBehindLatest": "3.0",
        "maxOffsetsBehindLatest": "5",
    }
    assert str(found) == "orders: 9 records behind in 3 partitions, at most 5 in one"


def test_S13_lag_is_told_in_seconds_if_the_store_may_be_asked(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 10), numbered(10, 20)], [numbered(0, 5)])
    now = lambda: START_MS / 1000 + 60  # noqa: E731
    behind = lag(progress({"orders": {"0": 12, "1": 5}}, {"orders": {"0": 20, "1": 5}}), where, clock=now)
    assert behind is not None
    assert behind.seconds == pytest.approx(59.99), "the segment from 10 on is the first with something unread"
    level = lag(progress({"orders": {"0": 20}}, {"orders": {"0": 20}}), where, clock=now)
    assert level is not None
    assert level.seconds == 0


@pytest.mark.parametrize(
    "given", [{"sources": []}, {}, progress(None, None), progress({"orders": {"0": 1}}, None)]
)
def test_S13_a_progress_that_says_nothing_of_a_log_has_no_lag(given: dict[str, Any]) -> None:
    assert lag(given) is None


def event(end: int, latest: int) -> Any:
    sources = [
        SimpleNamespace(
            endOffset=f'{{"orders": {{"0": {end}}}}}', latestOffset=f'{{"orders": {{"0": {latest}}}}}'
        )
    ]
    return SimpleNamespace(progress=SimpleNamespace(id="q-1", name="totals", sources=sources))


def test_S13_a_listener_reports_the_lag_of_each_micro_batch(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, Lag]] = []
    LagListener(lambda name, found: told.append((name, found))).onQueryProgress(event(3, 10))
    assert [(name, found.total) for name, found in told] == [("totals", 7)]
    caplog.set_level(logging.INFO, lag_report.__name__)
    LagListener().onQueryProgress(event(3, 10))
    assert "query totals: orders: 7 records behind" in caplog.text


def test_S13_a_store_that_cannot_be_asked_does_not_end_the_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> float:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(lag_report, "_seconds", fail)
    LagListener(url="/shop").onQueryProgress(event(3, 10))
    assert "cannot be told: no answer" in caplog.text
