"""The guard: ratios of the last quick run against the floors in `floors.toml`. Exit status 1 if one fell through.

    BENCH_QUICK=1 python -m pytest benchmarks … && python -m benchmarks.check        # what `make bench-check` does

Only ratios, exponents and counts are guarded: they hold on a busy machine and on another one. A figure that has a floor and
was not measured counts as fallen: a guard that is asleep is none.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, load

FLOORS = Path(__file__).with_name("floors.toml")


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


def main() -> int:
    found = {(run.suite, figure.name): figure for run in load(quick=True) for figure in run.figures}
    floors = read_floors(FLOORS.read_text())
    problems = [why for floor in floors if (why := floor.judge(found.get((floor.suite, floor.figure))))]
    for why in problems:
        print(why, file=sys.stderr)
    print(f"{len(floors) - len(problems)} of {len(floors)} floors hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
