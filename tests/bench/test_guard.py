"""The benchmarks' own arithmetic: a guard that cannot fail guards nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import check, measure
from benchmarks.check import FLOORS, Floor, read_floors, suite_of
from benchmarks.measure import Figure, Figures, Timing, in_turns, percentile, slope


def figure(value: float) -> Figure:
    return Figure("suite", "name", value, "×")


def test_a_figure_below_its_floor_is_named_with_both_numbers() -> None:
    floor = Floor("suite", "name", 2.0, is_ceiling=False)
    assert floor.judge(figure(2.0)) is None
    assert floor.judge(figure(1.5)) == "suite: name: 1.5 × is below its floor 2"


def test_a_figure_above_its_ceiling_is_named_with_both_numbers() -> None:
    ceiling = Floor("suite", "name", 2.0, is_ceiling=True)
    assert ceiling.judge(figure(2.0)) is None
    assert ceiling.judge(figure(2.5)) == "suite: name: 2.5 × is above its ceiling 2"


def test_a_figure_that_was_not_measured_has_fallen() -> None:
    assert Floor("suite", "name", 2.0, is_ceiling=False).judge(None) == "suite: name: was not measured"


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [([[2.0]], 0), ([[0.5], [2.0]], 0), ([[0.5], [0.5]], 1), ([[], []], 1), ([None], 1)],
    ids=["holds", "fell-once", "fell-twice", "not-measured", "suite-failed"],
)
def test_a_floor_has_to_fall_twice(
    runs: list[list[float] | None], verdict: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite of a floor that fell is measured once more, alone; what that says counts."""
    left = iter(runs)
    asked: list[list[str]] = []

    def run(modules: Sequence[str]) -> bool:
        asked.append(list(modules))
        values = next(left)
        if values is None:
            return False
        for module in modules:
            found = Figures("quick")
            found.add(suite_of(module), "something else", 1.0, "×")
            for value in values if module == "tracker" else [1.0]:
                found.add(suite_of(module), "name", value, "×")
            found.write()
        return True

    floors = tmp_path / "floors.toml"
    floors.write_text('[tracker]\nname = { at_least = 1 }\n["group commit"]\nname = { at_least = 1 }\n')
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(check, "FLOORS", floors)
    monkeypatch.setattr(check, "measure", run)
    assert check.main(["group_commit", "tracker"]) == verdict
    assert asked == [["group_commit", "tracker"], ["tracker"]][: len(runs)]


def test_the_floors_that_are_kept_can_be_read() -> None:
    floors = read_floors(FLOORS.read_text())
    assert Floor("group commit", "records a segment", 25.0, is_ceiling=False) in floors


@pytest.mark.parametrize("bound", ["{}", "{ at_least = 1, at_most = 2 }", "{ atleast = 1 }"])
def test_a_floor_with_anything_but_one_bound_is_refused(bound: str) -> None:
    with pytest.raises(ValueError, match="give at_least or at_most"):
        read_floors(f"[suite]\nname = {bound}\n")


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_slope_finds_the_exponent(exponent: float) -> None:
    assert slope([(x, 3.0 * x**exponent) for x in (1, 10, 100, 1000)]) == pytest.approx(exponent)


def test_candidates_take_turns_after_one_that_does_not_count() -> None:
    order: list[str] = []
    found = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, turns=2)
    assert order == ["a", "b"] * 3
    assert [len(found[name].seconds) for name in "ab"] == [2, 2]


SERVER = """
import sys, time
for _ in sys.stdin:
    began = time.process_time()
    while time.process_time() - began < 0.05: pass
    print(time.process_time() - began, flush=True)
"""


def test_the_cpu_time_of_a_server_counts_for_whom_it_works() -> None:
    spent: list[float] = []

    def ask(server: subprocess.Popen[str]) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("work\n")
        server.stdin.flush()
        spent.append(float(server.stdout.readline()))

    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        candidates = {"asks": lambda: ask(server)}
        alone = in_turns(candidates, turns=3)["asks"].cpu_seconds
        together = in_turns(candidates, turns=3, servers=[server.pid])["asks"].cpu_seconds
        assert server.stdin is not None
        server.stdin.close()
    assert all(own < work for own, work in zip(alone, spent[1:4], strict=True))
    assert all(both >= work for both, work in zip(together, spent[5:], strict=True))


def test_best_median_and_percentile() -> None:
    timing = Timing([3.0, 1.0, 2.0], [0.3, 0.1, 0.2])
    assert (timing.best, timing.median, timing.best_cpu) == (1.0, 2.0, 0.1)
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0
