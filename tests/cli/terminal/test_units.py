"""Sizes, times and dates on the command line, as people write them."""

from __future__ import annotations

import argparse
import math
import time
from importlib import import_module

import pytest

import logstore
from logstore.cli import COMMANDS, main
from logstore.cli.terminal import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10GB", 10**10),
        ("16MiB", 16 << 20),
        ("1.5k", 1500),
        ("1 kB", 1000),
        ("1e6", 10**6),
        ("7", 7),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert units.size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7d", 604800),
        ("1h30m", 5400),
        ("90", 90),
        ("250ms", 0.25),
        ("1w 1d", 691200),
        ("5min", 300),
        ("7days", 604800),
        ("2 hours 1 minute", 7260),
        ("-1", -1),
    ],
)
def test_durations(text: str, expected: float) -> None:
    assert units.duration(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-17T12:00", 1794916800000),
        ("2026-11-17", 1794873600000),
        ("2026-11-17T13:00+01:00", 1794916800000),
        ("1700000000000", 1700000000000),
        ("@1700000000000", 1700000000000),
    ],
)
def test_moments(text: str, expected: int) -> None:
    assert units.moment_ms(text) == expected


def test_moments_before_now() -> None:
    now_ms = time.time() * 1000
    assert units.moment_ms("-1h") == pytest.approx(now_ms - 3_600_000, abs=60_000)
    assert units.moment_ms("now") == pytest.approx(now_ms, abs=60_000)
    assert units.is_ago("-1h")
    assert not units.is_ago("-10")


@pytest.mark.parametrize(
    ("call", "text", "message"),
    [
        (units.size, "7 parsecs", "10GB"),
        (units.size, "1.5", "whole number"),
        (units.duration, "soon", "1h30m"),
        (units.size, "1e999", "whole number"),
        (units.duration, "7dd", "1h30m"),
        (units.duration, "7dayss", "1h30m"),
        (units.period, "0", "more than 0"),
        (units.period, "-1", "more than 0"),
        (units.period, "inf", "more than 0"),
        (units.period, "nan", "more than 0"),
        (units.moment_ms, "noon", "2026-11-17T12:00"),
        (units.moment_ms, "-inf", "2026-11-17T12:00"),
        (units.moment_ms, "-nan", "2026-11-17T12:00"),
        (units.rate, "fast", "50/s"),
    ],
)
def test_what_is_none_is_refused_with_an_example(call: object, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(text)  # type: ignore[operator]


def test_rates_and_limits() -> None:
    assert units.rate("50/s") == units.rate("3000/min") == units.rate("50") == 50
    assert units.rate("3.6k/h") == 1
    assert units.size_or_none("none") == units.duration_or_none("none") == math.inf


def test_what_is_shown_can_be_read() -> None:
    assert [units.shown_size(n) for n in (0, 999, 1500, 123456, 10**10)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "123 kB",
        "10.0 GB",
    ]
    assert [units.shown_duration(s) for s in (0.25, 90, 5400, 604800, None)] == [
        "250 ms",
        "90 s",
        "1 h 30 min",
        "7 d",
        "none",
    ]
    assert [units.shown_dollars(d) for d in (0, 0.0004, 12.3, 1234)] == [
        "$0.00",
        "<$0.01",
        "$12.30",
        "$1,234",
    ]
    assert [units.shown_age(s) for s in (None, 0.2, 119, 4260, 7200, 90_000, 864_000)] == [
        "-",
        "1 s",
        "119 s",
        "71 min",
        "2 h",
        "25 h",
        "10 d",
    ]
    assert units.shown_moment(-1) == "-"


def test_units_and_dates_work_where_numbers_did(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["create", "t", "--retention", "7d", "--retention-bytes", "10GB", "--segment-bytes", "1MiB"])
        == 0
    )
    with logstore.open(url) as store:
        topic = store.topic("t")
        assert topic.config == logstore.TopicConfig(604800.0, 10**10, 1 << 20)
        now_ms = time.time_ns() // 1_000_000
        for age_ms in (7_200_000, 60_000):
            topic.append(str(age_ms).encode(), timestamp_ms=now_ms - age_ms)
    capfd.readouterr()
    for start, expected in (
        ("-1h", "60000\n"),
        ("-3h", "7200000\n60000\n"),
        ("@2026-11-17T12:00+00:00", None),
        ("-1", "60000\n"),
    ):
        assert main(["cat", "t", "-o", start]) == 0
        shown = capfd.readouterr().out
        assert expected is None or shown == expected
    assert main(["alter", "t", "--retention", "none", "--json"]) == 0
    assert '"retention_seconds": null, "retention_bytes": 10000000000' in capfd.readouterr().out
    assert main(["create", "u", "--retention", "soon"]) == 2
    assert "7d, 12h" in capfd.readouterr().err


def test_every_time_on_the_command_line_takes_units() -> None:
    """Who writes `--retention 7d` writes `--interval 5m`, too: only shares are bare fractions."""
    bare = []
    for name, room in COMMANDS.items():
        parser = argparse.ArgumentParser()
        import_module(f"logstore.cli.commands.{room}.{name}").add_arguments(parser)
        bare += [f"{name} {each.dest}" for each in parser._actions if each.type is float]
    assert set(bare) == {"create dirty_ratio", "alter dirty_ratio"}
