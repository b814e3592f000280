"""Many processes on a store that misdelivers, with clocks that say anything: nothing acked is lost, doubled or moved.

The short edition. `make simulate` goes on to a million requests; `python -m tests.simulation --seed N` replays one run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from logstore.engine.lanes.lane_log import LaneLog
from logstore.format.stored.entry import EntryHeader
from tests.simulation.scenario import ROLES, Scenario, roles_of, simulate

_SEEDS = range(12)
_STEPS = 1_000


@pytest.fixture(scope="module")
def counted() -> Counter[str]:
    return Counter()


@pytest.mark.parametrize("seed", _SEEDS)
def test_C01_C02_C03_C04_C05_C06_C07_nothing_acked_is_lost_doubled_or_moved(
    seed: int, counted: Counter[str]
) -> None:
    result = simulate(Scenario(seed, _STEPS))
    assert result.violation is None, f"{result.violation}\nreplay: {result.scenario.command}\n" + "\n".join(
        result.trace[-60:]
    )
    counted.update(result.counts)
    counted.update(
        {"acks": result.acks, "reads": result.reads, "late": sum(" LATE " in x for x in result.trace)}
    )


def test_C01_the_runs_are_worth_something(counted: Counter[str]) -> None:
    """Everything that may go wrong did, and was survived by somebody who then did something."""
    wanted = (
        "acks",
        "reads",
        "late",
        "killed",
        "suspended",
        "wakes",
        "clock",
        "compacted",
        "collected",
        "reopened",
    )
    assert {name: counted[name] > 5 for name in wanted} == dict.fromkeys(wanted, True)


def test_N03_nothing_is_lost_where_takers_ask_busy_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three that append at every moment, and take each other's partitions over."""
    asks, commit = 0, LaneLog.commit

    def counted(log: LaneLog, header: EntryHeader, *args: Any, **kw: Any) -> None:
        nonlocal asks
        commit(log, header, *args, **kw)
        asks += header.is_ask

    monkeypatch.setattr(LaneLog, "commit", counted)
    for seed in range(6, 13):
        result = simulate(Scenario(seed, _STEPS, writers=("busy", "busy", "busy")))
        assert result.violation is None, f"{result.violation}\nreplay: {result.scenario.command}"
    assert asks, "else the runs are worth nothing"


def test_C03_a_store_that_breaks_its_promise_is_seen_by_the_judge() -> None:
    """The contrast: now and then a condition is ignored, which no engine can survive."""
    found = [simulate(Scenario(seed, _STEPS, lies=0.2)).violation for seed in range(4)]
    assert any(found)


def test_every_role_is_drawn() -> None:
    drawn = {kind for seed in range(200) for kind in roles_of(Scenario(seed))}
    assert drawn == set(ROLES)


def digests(hash_seed: str) -> str:
    arguments = ["--seed", "3", "--steps", "600", "--total", "2600", "--digest", "--survey"]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "trace" in ended.stdout, ended.stderr
    return "".join(line for line in ended.stdout.splitlines(keepends=True) if line.startswith("seed"))


def test_C06_the_same_seed_gives_the_same_trace_in_every_interpreter() -> None:
    first = digests("1")
    assert first.count("trace") >= 2
    assert digests("2") == first
    assert len(set(first.split("trace ")[1:])) > 1
