"""The report: a verdict that other work on the machine would change is named."""

from __future__ import annotations

from benchmarks.measure import Figure, SuiteRun
from benchmarks.report import under_load


def run(**values: float) -> list[SuiteRun]:
    """One suite whose figures have to reach 1; `rate` is one that a busy machine may change."""
    units = {"rate": "records/s"}
    figures = [
        Figure("suite", name, value, units.get(name, "×"), 1.0, False, {}) for name, value in values.items()
    ]
    return [SuiteRun("suite", {"load": 9.0}, {}, figures)]


def test_a_ratio_that_says_something_else_under_load_is_named() -> None:
    text = "\n".join(under_load(run(kept=1.2, lost=1.1, rate=5.0), run(kept=1.4, lost=0.9, rate=0.5)))
    assert "1 of 2 ratios and exponents with a verdict say the same; these do not:" in text
    assert "| suite: lost | 1.1 | 0.9 | met | **missed** |" in text
    assert "kept |" not in text
    assert "rate" not in text


def test_where_all_say_the_same_there_is_no_table() -> None:
    text = "\n".join(under_load(run(kept=1.2), run(kept=1.4)))
    assert "1 of 1 ratios and exponents with a verdict say the same." in text
    assert "|" not in text
    assert "Not run so" not in text


def test_a_suite_that_was_not_run_under_load_is_named() -> None:
    text = "\n".join(under_load([*run(kept=1.2), SuiteRun("slow", {"load": 1.0}, {}, [])], run(kept=1.4)))
    assert "Not run so: slow." in text


def test_without_a_loaded_run_nothing_is_said_of_it() -> None:
    assert under_load(run(kept=1.2), []) == []
