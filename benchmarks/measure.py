"""How a figure is measured here, and where it goes.

The machines are shared and noisy, so an absolute number says little. `in_turns` runs the candidates one after the other, again
and again (A B A B …), and takes the best or the median of each: load that comes and goes meets all of them alike. A ratio of
two of those is a figure; `Figures` keeps it, with the target it has to meet, for `report.py` and `check.py`.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / ".results"


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate, over all turns."""

    seconds: list[float]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def in_turns(candidates: dict[str, Callable[[], Any]], turns: int = 5) -> dict[str, Timing]:
    """Time each candidate once a turn; one untimed turn first."""
    for run in candidates.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(turns):
        for name, run in candidates.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return {name: Timing(found) for name, found in seconds.items()}


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def slope(points: list[tuple[float, float]]) -> float:
    """The exponent of growth: 1.0 is linear, 0.0 is constant (least squares on logarithms)."""
    import math

    xs = [math.log(x) for x, _ in points]
    ys = [math.log(max(y, 1e-12)) for _, y in points]
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mean_x) ** 2 for x in xs
    )


@dataclass(frozen=True)
class Figure:
    """One line of RESULTS.md. `target` is a floor for `value` (or a ceiling, if `lower_is_better`)."""

    suite: str
    name: str
    value: float
    unit: str
    target: float | None = None
    lower_is_better: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.lower_is_better else self.value >= self.target


class Figures:
    """What a run of the suites found, written when it ends."""

    def __init__(self) -> None:
        self.found: list[Figure] = []

    def add(
        self,
        suite: str,
        name: str,
        value: float,
        unit: str,
        *,
        target: float | None = None,
        lower_is_better: bool = False,
        **details: Any,
    ) -> Figure:
        figure = Figure(suite, name, value, unit, target, lower_is_better, details)
        self.found.append(figure)
        verdict = {None: "", True: "  (target met)", False: "  (TARGET MISSED)"}[figure.met]
        goal = "" if target is None else f", target {'≤' if lower_is_better else '≥'} {target:g}"
        print(f"\n{suite}: {name}: {value:.4g} {unit}{goal}{verdict}")
        return figure

    def write(self) -> None:
        RESULTS.mkdir(exist_ok=True)
        for suite in {figure.suite for figure in self.found}:
            lines = [asdict(figure) for figure in self.found if figure.suite == suite]
            (RESULTS / f"{suite}.json").write_text(json.dumps(lines, indent=1))


def load() -> list[Figure]:
    """The figures of the last run of each suite."""
    return [
        Figure(**line) for path in sorted(RESULTS.glob("*.json")) for line in json.loads(path.read_text())
    ]
