"""How a figure is measured here, and where it goes.

The machines are shared and noisy, so an absolute number says little. `in_turns` runs the candidates one after the
other, again and again (A B A B …), and takes the best or the median of each: load that comes and goes meets all of them
alike. A ratio of two of those is a figure; `Figures` keeps it, with the target it has to meet, for `report.py` and
`check.py`.

A figure is one number with a verdict. What was compared or swept to get it goes along as `details`, and has one of two
shapes that the report can draw: `group`, `ours`, `theirs`, `low`, `high` (a peer) or `axis`, `points` (a sweep).
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.machine import describe
from tests.support.cpu_clock import cpu_seconds_of

RESULTS = Path(__file__).parent / ".results"

Edition = Literal["full", "quick", "loaded"]
"""Whole; smaller and with fewer turns; whole, while each core has another process to run."""
Point = tuple[float, float]


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate, over all turns: on the clock, and of CPU, all threads and servers together."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def best_cpu(self) -> float:
        """For work of ours alone: what others do on the machine adds little to it."""
        return min(self.cpu_seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def in_turns(
    candidates: Mapping[str, Callable[[], Any]], turns: int = 5, servers: Collection[int] = ()
) -> dict[str, Timing]:
    """Time each candidate once a turn; one untimed turn first. `servers` are processes that work for a candidate, by pid:
    their CPU time counts, too. In the turns of the others they are idle."""

    def cpu_seconds() -> float:
        return time.process_time() + sum(map(cpu_seconds_of, servers))

    for run in candidates.values():
        run()
    timings = {name: Timing() for name in candidates}
    with own_garbage_alone():
        for _ in range(turns):
            for name, run in candidates.items():
                began, cpu = time.perf_counter(), cpu_seconds()
                run()
                timings[name].cpu_seconds.append(cpu_seconds() - cpu)
                timings[name].seconds.append(time.perf_counter() - began)
    return timings


@contextmanager
def own_garbage_alone() -> Iterator[None]:
    """A collection does not walk what was there before: all modules and fixtures, 25 ms in whose turn it happens to fall."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median_between(values: Sequence[float]) -> tuple[float, float]:
    """Between which two of the values the median of all turns that could have been lies, in 19 cases of 20 or more.

    Each value lies below it with a chance of one half, so only the number of values matters, not how they are spread. Of
    five and fewer no two are far enough apart; then it is the lowest and the highest.
    """
    ordered, count = sorted(values), len(values)
    outside, chance = 0, 2 / 2**count
    while (chance := chance + 2 * math.comb(count, outside + 1) / 2**count) <= 0.05:
        outside += 1
    return ordered[outside], ordered[-1 - outside]


def slope(points: Sequence[Point]) -> float:
    """The exponent of growth: 1.0 is linear, 0.0 is constant (least squares on logarithms)."""
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
    """What a run of the suites found, written as each of them ends. `quick` runs are kept apart from full ones."""

    def __init__(self, edition: Edition) -> None:
        self.edition = edition
        self.found: list[Figure] = []
        self._written = 0
        self.skipped: dict[str, str] = {}

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

    def add_peers(
        self,
        suite: str,
        group: str,
        ours: str,
        seconds: Mapping[str, Sequence[float]],
        amount: float,
        unit: str,
        levels: Mapping[str, str],
    ) -> None:
        """One figure for each peer: how much faster we did `amount` than it did, in the median turn, and between which two
        ratios that median lies. `levels` says in words what each one's ack promised."""
        rates = {name: amount / statistics.median(taken) for name, taken in seconds.items()}
        for peer, taken in seconds.items():
            if peer != ours:
                ratios = [theirs / mine for theirs, mine in zip(taken, seconds[ours], strict=True)]
                low, high = median_between(ratios)
                self.add(
                    suite,
                    f"{group}: {ours} to {peer}",
                    statistics.median(ratios),
                    "×",
                    low=low,
                    high=high,
                    group=group,
                    us=ours,
                    peer=peer,
                    ours=rates[ours],
                    theirs=rates[peer],
                    rate_unit=unit,
                    our_level=levels[ours],
                    their_level=levels[peer],
                )

    def add_sweep(
        self,
        suite: str,
        name: str,
        axis: str,
        measured: str,
        points: Sequence[Point],
        *,
        target: float | None = None,
        lower_is_better: bool = True,
    ) -> Figure:
        """The exponent with which what was `measured` grows along `axis`."""
        return self.add(
            suite,
            name,
            slope(points),
            "exponent",
            target=target,
            lower_is_better=lower_is_better,
            axis=axis,
            measured=measured,
            points=[list(point) for point in points],
        )

    def skip(self, suite: str, what: str, why: str) -> None:
        """Something that could not be measured here: said aloud, and in the report."""
        self.skipped[f"{suite}: {what}"] = why
        print(f"\n{suite}: NOT MEASURED: {what}: {why}")

    def write(self) -> None:
        """The suites that have found something since the last call."""
        folder = RESULTS / self.edition
        folder.mkdir(parents=True, exist_ok=True)
        fresh, self._written = self.found[self._written :], len(self.found)
        for suite in {figure.suite for figure in fresh}:
            written = {
                "run": describe(),
                "skipped": {k: v for k, v in self.skipped.items() if k.startswith(f"{suite}: ")},
                "figures": [asdict(figure) for figure in self.found if figure.suite == suite],
            }
            (folder / f"{suite}.json").write_text(json.dumps(written, indent=1))


@dataclass(frozen=True)
class SuiteRun:
    """One suite's last run: where and when, its figures, and what it could not measure."""

    suite: str
    run: dict[str, Any]
    skipped: dict[str, str]
    figures: list[Figure]


def load(edition: Edition) -> list[SuiteRun]:
    """The last run of each suite."""
    runs = []
    for path in sorted((RESULTS / edition).glob("*.json")):
        found = json.loads(path.read_text())
        figures = [Figure(**line) for line in found["figures"]]
        runs.append(SuiteRun(path.stem, found["run"], found["skipped"], figures))
    return runs
