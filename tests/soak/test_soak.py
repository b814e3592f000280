"""Real processes, kill -9, SIGSTOP, and a gateway that cuts, repeats, delays and lies; `check_history` judges.

The default run has a short edition. `make soak` has 500 crashes, on moto, SeaweedFS and a folder; `SOAK_SEED` begins it with
other choices. The same seed gives the same choices, not the same run: processes race.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.soak.chaos import Plan, Round, fork_server
from tests.soak.judge import Verdict
from tests.support.servers import Server, moto_server_process, seaweedfs_server

CRASHES = 500
CRASHES_A_ROUND = 25
HOMES = ("moto", "seaweedfs", "folder")
CASTS = (("shared", "lone"), ("rivals", "replica"), ("shared", "rivals"), ("lone", "replica"))


SHORT: dict[str, Any] = {
    "pause_s": (0.05, 0.2),
    "stop_max_s": 0.5,
    "late_max_s": 0.5,
    "sleep_s": (0.1, 0.3),
    "readers": 1,
    "maintainers": 1,
}


def check(verdict: Verdict, where: Path) -> None:
    assert not verdict.violations, f"{where}: " + "\n".join(verdict.violations)


def test_C04_C07_crashes_in_a_folder_beside_a_collection_without_grace(tmp_path: Path) -> None:
    plan = Plan(1, 6, ("lone", "shared"), **SHORT)
    with fork_server(tmp_path) as children:
        verdict = Round(plan, tmp_path / "round", children, None, "").run()
    check(verdict, tmp_path)
    assert verdict.counts["acked durable"] > 3
    assert verdict.counts["acked local"] > 0


@pytest.mark.s3
def test_C03_C05_C07_crashes_behind_a_gateway_that_repeats_delays_and_lies(
    tmp_path: Path, moto: Server
) -> None:
    plan = Plan(2, 4, ("shared",), writes=0.3, **SHORT)
    with fork_server(tmp_path) as children:
        verdict = Round(plan, tmp_path / "round", children, moto, tmp_path.name).run()
    check(verdict, tmp_path)
    assert verdict.counts["acked durable"] > 3
    assert sum(count for kind, count in verdict.counts.items() if kind.startswith("proxy: ")) > 50


def summary(counts: Counter[str], rounds: int, seconds: float, violations: int) -> str:
    """The line for docs/reliability.md."""

    def named(prefix: str) -> str:
        found = sorted(
            (kind.removeprefix(prefix), count) for kind, count in counts.items() if kind.startswith(prefix)
        )
        return ", ".join(f"{kind} {count}" for kind, count in found)

    killed = f"kill -9 {counts['kill -9']}, SIGSTOP {counts['SIGSTOP']}"
    crashes = f"{counts['kill -9'] + counts['SIGSTOP']} crashes ({killed})"
    done = f"{counts['appends']} appends, {counts['reads']} reads, {counts['merged']} segments merged"
    done += f", {counts['deleted']} objects deleted"
    return (
        f"soak: {crashes} in {rounds} rounds, {seconds:.0f} s; {done}; acked: {named('acked ')}; "
        f"not acked: {named('failed: ')}; proxy: {named('proxy: ')}; violations: {violations}"
    )


@pytest.mark.soak
@pytest.mark.s3
@pytest.mark.timeout(3600)
def test_L01_W04_W13_C01_C02_C03_C04_C05_C06_C07_500_crashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("SOAK_SEED", "1"))
    counts: Counter[str] = Counter()
    violations: list[str] = []
    began, number = time.monotonic(), 0
    with ExitStack() as stack:
        servers = {
            "moto": stack.enter_context(moto_server_process()),
            "seaweedfs": stack.enter_context(seaweedfs_server()),
            "folder": None,
        }
        children = stack.enter_context(fork_server(tmp_path))
        while counts["kill -9"] + counts["SIGSTOP"] < CRASHES:
            home = HOMES[number % len(HOMES)]
            number += 1
            cast = CASTS[number % len(CASTS)]
            # Retention in every third of those with shared writers: what it took away cannot be missed.
            retention = 5000 if number % 6 == 0 else None
            plan = Plan(seed * 1000 + number, CRASHES_A_ROUND, cast, writes=0.25, retention_bytes=retention)
            folder = tmp_path / f"{number:02}-{home}"
            verdict = Round(plan, folder, children, servers[home], f"soak-{number}").run()
            counts.update(verdict.counts)
            violations += [f"{folder.name}: {violation}" for violation in verdict.violations]
            with capsys.disabled():
                elapsed = time.monotonic() - began
                print(f"\n{folder.name}: {elapsed:.0f} s, {len(verdict.violations)} violations", flush=True)
        with capsys.disabled():
            print("\n" + summary(counts, number, time.monotonic() - began, len(violations)), flush=True)
    assert not violations, f"{tmp_path}: " + "\n".join(violations)
    # What the promises are about has happened.
    for kind in ("merged", "deleted", "acked local", "acked buffered", "proxy: done, but 412", "proxy: late"):
        assert counts[kind] > 0, kind
