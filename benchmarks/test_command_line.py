"""What a person waits for: a command that starts, one that lists ten thousand partitions, a broker for a test. Each is a
process of its own, as it is for them: CPU of that process, and the clock."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import logstore
from benchmarks.measure import Figures

SUITE = "command line"
BROKER = """
import json, time
import pytest
from logstore.testing.pytest_plugin import Broker

found = []
for _ in range(5):
    began, cpu = time.perf_counter(), time.process_time()
    broker = Broker()
    found.append((time.process_time() - cpu, time.perf_counter() - began))
    broker.stop()
print(json.dumps(found))
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """As an installed package has it: compiled once, by the first turn, which does not count."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    root = str(Path(__file__).parents[1])
    return {**kept, "PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"), "PYTHONPATH": root}


def timed(words: list[str], environment: dict[str, str]) -> tuple[float, float, str]:
    """CPU seconds of the process, seconds by the clock, and what it printed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return cpu, seconds, done.stdout


def topics(
    url: str, environment: dict[str, str], turns: int
) -> tuple[list[float], list[float], list[dict[str, object]]]:
    """`logstore topics` so many times, and once before: CPU seconds, seconds, and the rows of the last."""
    words = [sys.executable, "-m", "logstore.cli", "topics", "--json", "--store", url]
    timed(words, environment)
    runs = [timed(words, environment) for _ in range(turns)]
    rows = [json.loads(line) for line in runs[-1][2].splitlines()]
    return [cpu for cpu, _, _ in runs], [seconds for _, seconds, _ in runs], rows


def test_a_look_at_a_local_store(
    figures: Figures, quick: bool, tmp_path: Path, environment: dict[str, str]
) -> None:
    url = str(tmp_path / "shop")
    with logstore.open(url) as store:
        store.create_topic("orders", 2).append(b"paid")
    cpu, clock, rows = topics(url, environment, 5 if quick else 21)
    assert [(row["topic"], row["records"]) for row in rows] == [("orders", 1)]
    figures.add(
        SUITE,
        "`logstore topics`, a local store with one topic",
        statistics.median(cpu),
        "s of CPU",
        target=0.25,
        lower_is_better=True,
        best=min(cpu),
        by_the_clock=statistics.median(clock),
    )


@pytest.mark.parametrize(("count", "partitions"), [(1, 10_000), (1_000, 10)])
def test_ten_thousand_partitions(
    count: int, partitions: int, figures: Figures, quick: bool, tmp_path: Path, environment: dict[str, str]
) -> None:
    if quick:
        count, partitions = max(1, count // 10), partitions if count > 1 else partitions // 10
    url = str(tmp_path / "shop")
    with logstore.open(url, flush_interval=3600) as store:
        made = [store.create_topic(f"t{number:04d}", partitions) for number in range(count)]
        for topic in made:
            for number in range(partitions):
                topic.partition(number).submit(b"x")
        store.flush()
    cpu, clock, rows = topics(url, environment, 3 if quick else 9)
    assert [row["records"] for row in rows] == [partitions] * count
    figures.add(
        SUITE,
        f"`logstore topics`, {count:,} of {partitions:,} partitions in a lane",
        statistics.median(cpu),
        "s of CPU",
        target=2.0,
        lower_is_better=True,
        best=min(cpu),
        by_the_clock=statistics.median(clock),
    )


def test_a_broker_for_a_test(figures: Figures, quick: bool, environment: dict[str, str]) -> None:
    """Of a session's tests the first that asks for `logstore_broker` pays for what is imported; pytest itself is there."""
    words = [sys.executable, "-c", BROKER]
    timed(words, environment)
    runs = [json.loads(timed(words, environment)[2]) for _ in range(3 if quick else 9)]
    first = [run[0] for run in runs]
    further = [each for run in runs for each in run[1:]]
    for name, found in (
        ("`logstore_broker`, the first of a session", first),
        ("`logstore_broker`, a further one", further),
    ):
        figures.add(
            SUITE,
            name,
            statistics.median(cpu for cpu, _ in found),
            "s of CPU",
            target=0.5,
            lower_is_better=True,
            best=min(cpu for cpu, _ in found),
            by_the_clock=statistics.median(seconds for _, seconds in found),
        )


if __name__ == "__main__":
    pytest.main([__file__, "-q"])
