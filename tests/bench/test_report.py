"""The report: who is ahead is said only where the turns leave no doubt, and a verdict that load changes is named."""

from __future__ import annotations

import pytest

from benchmarks.measure import Figure, Figures, SuiteRun, median_between
from benchmarks.report import newer, peer_table, renewed, section, sections_of, summary, under_load, verdict


def run(**values: float) -> list[SuiteRun]:
    """One suite whose figures have to reach 1."""
    figures = [Figure("suite", name, value, "×", 1.0, False, {}) for name, value in values.items()]
    return [SuiteRun("suite", {"load": 9.0}, {}, figures)]


def compared(*theirs: float) -> list[SuiteRun]:
    """Us, who take a second in every turn, with a peer that takes this long."""
    figures = Figures("quick")
    seconds = {"us": [1.0] * len(theirs), "them": theirs}
    figures.add_peers("suite", "race", "us", seconds, 1, "laps/s", {"us": "run", "them": "run"})
    return [SuiteRun("suite", {"load": 9.0}, {}, figures.found)]


@pytest.mark.parametrize(
    ("turns", "rank"), [(1, 0), (3, 0), (5, 0), (6, 0), (9, 1), (15, 3), (21, 5), (31, 9)]
)
def test_where_a_median_lies_is_known_the_better_the_more_turns_there_are(turns: int, rank: int) -> None:
    """The ranks are those that tables of the sign test give for 95 %."""
    assert median_between(range(turns)) == (rank, turns - 1 - rank)


def test_a_few_turns_that_met_other_work_do_not_change_a_verdict() -> None:
    (ahead,) = compared(*[1.3] * 11, *[0.2] * 2)
    (behind,) = compared(*[0.8] * 11, *[9.0] * 2)
    assert verdict(ahead.figures[0]) == "ahead"
    assert verdict(behind.figures[0]) == "**behind**"


def test_where_the_turns_disagree_nobody_is_ahead() -> None:
    (open_race,) = compared(*[1.3] * 8, *[0.8] * 7)
    assert verdict(open_race.figures[0]) == "level"
    assert (
        "ahead in 0, level in 1, behind in 0"
        in summary(["\n".join(peer_table("race", open_race.figures))])[0]
    )


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(0.89, "**behind**"), (0.91, "level"), (1.0, "level"), (1.09, "level"), (1.11, "ahead")],
)
def test_a_difference_of_less_than_a_tenth_is_none_however_sure(ratio: float, said: str) -> None:
    (race,) = compared(*[ratio] * 31)
    assert verdict(race.figures[0]) == said


def test_a_ratio_is_that_of_the_turns_not_of_their_medians() -> None:
    """Load that comes and goes meets both alike, turn by turn."""
    figures = Figures("quick")
    seconds = {"us": [1.0, 5.0, 9.0], "them": [2.0, 10.0, 18.0]}
    figures.add_peers("suite", "race", "us", seconds, 10, "laps/s", {"us": "run", "them": "run"})
    (figure,) = figures.found
    assert (figure.value, figure.details["low"], figure.details["high"]) == (2.0, 2.0, 2.0)
    assert (figure.details["ours"], figure.details["theirs"]) == (2.0, 1.0)


def test_a_figure_that_says_the_opposite_under_load_is_named() -> None:
    text = "\n".join(under_load(run(kept=1.2, lost=1.1), run(kept=1.4, lost=0.9)))
    assert "Of 2 verdicts 1 are the same, 0 are level in one of the two runs, 1 say the opposite:" in text
    assert "| suite: lost | 1.1 × | 0.9 × | met | **missed** |" in text
    assert "kept |" not in text


def test_a_figure_that_is_level_in_one_of_the_two_runs_is_named_too() -> None:
    text = "\n".join(under_load(compared(*[1.2] * 9), compared(*[1.2] * 5, *[0.9] * 4)))
    assert "Of 1 verdicts 0 are the same, 1 are level in one of the two runs, 0 say the opposite:" in text
    assert "| suite: race: us to them | 1.2 × | 1.2 × | ahead | level |" in text


def test_the_note_stands_below_what_has_changed() -> None:
    assert under_load(run(lost=1.1), run(lost=0.9), "Why it\nchanges.")[-2] == "Why it changes."


def test_where_all_say_the_same_there_is_no_table() -> None:
    text = "\n".join(under_load(run(kept=1.2), run(kept=1.4), "Why it changes."))
    assert "changes" not in text
    assert "Of 1 verdicts 1 are the same, 0 are level in one of the two runs, 0 say the opposite." in text
    assert "|" not in text
    assert "Not run so" not in text


def test_a_suite_that_was_not_run_under_load_is_named() -> None:
    text = "\n".join(under_load([*run(kept=1.2), SuiteRun("slow", {"load": 1.0}, {}, [])], run(kept=1.4)))
    assert "Not run so: slow." in text


def test_without_a_loaded_run_nothing_is_said_of_it() -> None:
    assert under_load(run(kept=1.2), []) == []


def measured(suite: str, at: str, **values: float) -> SuiteRun:
    (found,) = run(**values)
    return SuiteRun(suite, {"at": at, "load": 1.0}, {}, found.figures)


def test_a_suite_that_did_not_run_keeps_its_section_and_is_counted() -> None:
    first = [
        measured("a", "2026-11-17 10:00 UTC", quick=2),
        measured("b", "2026-11-17 10:05 UTC", slow=0.5),
    ]
    fresh = {one.suite: section(one, [], {}) for one in first} | {
        "Where": ["## Where", "", "Here."],
        "Under load": ["## Under load", "", "| b: slow | 1 × | 1 × | met | **missed** |"],
    }
    written = renewed("", fresh)
    assert "**1 of 2 targets met" in written
    again = measured("b", "2026-11-18 09:00 UTC", slow=3)
    later = renewed(written, {again.suite: section(again, [], {})})
    assert list(sections_of(later)) == ["Where", "a", "b", "Under load"]
    before, after = sections_of(written), sections_of(later)
    assert {title for title in before if before[title] != after[title]} == {"b"}
    assert "2026-11-18 09:00 UTC, load 1.0." in after["b"]
    assert "| slow | 3 × | ≥ 1 | met |" in after["b"]
    assert "**2 of 2 targets met" in later
    assert renewed(later, {}) == later, "to write it again changes nothing"


def test_results_that_are_older_than_the_report_do_not_replace_it() -> None:
    one = measured("a", "2026-11-17 10:00 UTC", quick=2)
    report = renewed("", {"a": section(one, [], {})})
    older, same = measured("a", "2026-11-17 09:59 UTC"), measured("a", "2026-11-17 10:00 UTC")
    assert newer([older, measured("b", "2020-01-01 00:00 UTC")], report) == [
        measured("b", "2020-01-01 00:00 UTC")
    ]
    assert newer([same], report) == [same]
