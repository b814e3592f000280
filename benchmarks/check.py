"""The guard: ratios against the floors in `floors.toml`. Exit status 1 if one fell through.

    python -m benchmarks.check codec growth …        # suites; what `make bench-check` does

Runs the suites' quick editions and judges what they found. Only ratios, exponents and counts are guarded: they hold on a
busy machine and on another one. A suite in which a floor fell is measured once more, alone, and judged by that: a machine
that stops for a moment breaks one run, what has become slow breaks both. A figure that has a floor and was not measured
counts as fallen: a guard that is asleep is none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, load

FOLDER = Path(__file__).parent
FLOORS = FOLDER / "floors.toml"


@dataclass(frozen=True)
class Floor:
    """`limit` is the least the figure may be; the most, if `is_ceiling`."""

    suite: str
    figure: str
    limit: float
    is_ceiling: bool

    def judge(self, found: Figure | None) -> str | None:
        """What is wrong, or None."""
        where = f"{self.suite}: {self.figure}"
        if found is None:
            return f"{where}: was not measured"
        if self.is_ceiling and found.value > self.limit:
            return f"{where}: {found.value:.3g} {found.unit} is above its ceiling {self.limit:g}"
        if not self.is_ceiling and found.value < self.limit:
            return f"{where}: {found.value:.3g} {found.unit} is below its floor {self.limit:g}"
        return None


def read_floors(text: str) -> list[Floor]:
    """One table for each suite; each figure has `at_least` or `at_most`, and nothing else."""
    floors = []
    suites: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(text)
    for suite, figures in suites.items():
        for figure, bound in figures.items():
            if len(bound) != 1 or not bound.keys() <= {"at_least", "at_most"}:
                raise ValueError(f"{suite}: {figure}: give at_least or at_most, not {bound}")
            ((kind, limit),) = bound.items()
            floors.append(Floor(suite, figure, float(limit), kind == "at_most"))
    return floors


def suite_of(module: str) -> str:
    """The suite that `benchmarks/test_‹module›.py` measures, by its own word for it."""
    found = re.search(r'^SUITE = "(.+)"$', (FOLDER / f"test_{module}.py").read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"benchmarks/test_{module}.py names no SUITE")
    return found[1]


def measure(modules: Sequence[str]) -> bool:
    """Run the quick editions. False if a suite found something wrong by itself: a record that did not come back, say."""
    options = ("-q", "-s", "-p", "no:cacheprovider", "--timeout=900", "--benchmark-disable")
    files = [str(FOLDER / f"test_{module}.py") for module in modules]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=FOLDER.parent,
        env={**os.environ, "BENCH_EDITION": "quick"},
        check=False,
    )
    return ran.returncode == 0


def judge(floors: Sequence[Floor]) -> dict[Floor, str]:
    """Which floors fell in the last run of each suite, and how."""
    found = {(run.suite, figure.name): figure for run in load("quick") for figure in run.figures}
    return {floor: why for floor in floors if (why := floor.judge(found.get((floor.suite, floor.figure))))}


def main(modules: Sequence[str]) -> int:
    suites = {suite_of(module): module for module in modules}
    floors = [floor for floor in read_floors(FLOORS.read_text()) if floor.suite in suites]
    if not measure(modules):
        return 1
    fallen = judge(floors)
    if fallen:
        again = list(dict.fromkeys(suites[floor.suite] for floor in fallen))
        print("\nonce more, alone:", *fallen.values(), sep="\n  ", flush=True)
        for module in again:
            if not measure([module]):
                return 1
        fallen = judge(floors)
    for why in fallen.values():
        print(why, file=sys.stderr)
    print(f"{len(floors) - len(fallen)} of {len(floors)} floors hold")
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
