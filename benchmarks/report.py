"""RESULTS.md and its plots, from the last full run of each suite.

    python -m benchmarks.report            # benchmarks/RESULTS.md, benchmarks/plots/*.png
    python -m benchmarks.report --quick    # from a quick run, to look at; not to be committed

RESULTS.md is also what the report remembers: raw results are not kept in the repository, so the section of a suite that has
none here, or older ones, stays as it is. One suite can be measured again, on its own, in a fresh checkout.

A figure with a target has met or missed it; a comparison with a peer is ahead, behind or, if its turns leave open whether
the difference is one that a reader should care about, level. For each one that missed or is not ahead there should be a
paragraph in `reasons.toml` that says why and what would change it; those that lack one are named on standard error.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.measure import RESULTS, Figure, SuiteRun, load

HERE = Path(__file__).parent
REASONS = HERE / "reasons.toml"
CHANGES = HERE / "changes.toml"
LEVEL = 0.9, 1.1
"""Ratios that nobody would choose by: the same two programs differ by more from one day, or one machine, to the next."""
_VERDICT = re.compile(r"\| \*{0,2}(met|missed|ahead|level|behind)\*{0,2} (?=\|)")
_MEASURED = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d UTC), load", re.MULTILINE)
_BEFORE, _BEHIND = ("Where",), ("Under load", "Before and after")
"""Sections that are no suite's, and where they stand."""
INTRODUCTION = """# What was measured

Written by `python -m benchmarks.report` from the last full run of each suite; do not edit. How to read it is in
[README.md](README.md). Candidates of one table ran in turns (A B A B …) in the same run, so a ratio means more than a time.
Everything that was stored was read back and compared before its figure counted. When a suite ran, and what load the machine
had at its end (other work included; the number of cores would be full), stands under its title.
"""


def is_peer(figure: Figure) -> bool:
    return "peer" in figure.details


def needs_reason(figure: Figure) -> bool:
    return verdict(figure) not in ("", "ahead", "met")


def verdict(figure: Figure) -> str:
    if is_peer(figure):
        if figure.details["low"] > LEVEL[1]:
            return "ahead"
        return "**behind**" if figure.details["high"] < LEVEL[0] else "level"
    return {None: "", True: "met", False: "**missed**"}[figure.met]


def number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_unit(figure: Figure) -> str:
    return f"{number(figure.value)} {figure.unit}"


def target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'≤' if figure.lower_is_better else '≥'} {number(figure.target)}"


def table(header: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> list[str]:
    rule = tuple("---" if place == 0 else "---:" for place in range(len(header)))
    return [f"| {' | '.join(line)} |" for line in (header, rule, *lines)]


def plain_table(figures: list[Figure]) -> list[str]:
    lines = [(f.name, with_unit(f), target(f), verdict(f), asides(f)) for f in figures]
    return table(("figure", "value", "target", "verdict", "with it"), lines)


def asides(figure: Figure) -> str:
    """The details that are single numbers."""
    return ", ".join(
        f"{name.replace('_', ' ').replace(' per ', '/')} {number(value)}"
        for name, value in figure.details.items()
        if isinstance(value, int | float)
    )


def peer_table(group: str, figures: list[Figure]) -> list[str]:
    first = figures[0].details
    header = (group, f"rate, {first['rate_unit']}", "ratio", "verdict", "what its ack promises")
    lines = [(first["us"], number(first["ours"]), "1", "", first["our_level"])]
    for figure in sorted(figures, key=lambda figure: figure.value):
        peer, theirs = figure.details["peer"], number(figure.details["theirs"])
        ratio = f"{figure.value:.2f} × ({figure.details['low']:.2f} to {figure.details['high']:.2f})"
        lines.append((peer, theirs, ratio, verdict(figure), figure.details["their_level"]))
    return table(header, lines)


def reasons_for(suite: str, figures: list[Figure], reasons: dict[str, dict[str, str]]) -> list[str]:
    lines = []
    for figure in figures:
        if needs_reason(figure):
            why = reasons.get(suite, {}).get(figure.name, "*No reason is known yet.*")
            lines += [f"* **{figure.name}** ({with_unit(figure)}): {' '.join(why.split())}"]
    return ["", "Where we are not ahead, and why:", "", *lines] if lines else []


def section(run: SuiteRun, plots: list[str], reasons: dict[str, dict[str, str]]) -> list[str]:
    plain = [figure for figure in run.figures if not is_peer(figure)]
    peers = [figure for figure in run.figures if is_peer(figure)]
    lines = [f"## {run.suite}", "", f"{run.run['at']}, load {run.run['load']}.", ""]
    if plain:
        lines += [*plain_table(plain), ""]
    for group, members in groupby(peers, key=lambda figure: figure.details["group"]):
        lines += [*peer_table(group, list(members)), ""]
    lines += [f"![{run.suite}](plots/{name})" for name in plots]
    if note := reasons.get(run.suite, {}).get("note"):
        lines += ["", " ".join(note.split())]
    lines += reasons_for(run.suite, run.figures, reasons)
    if run.skipped:
        lines += ["", "Not measured here:", ""]
        lines += [f"* {what.partition(': ')[2]}: {why}" for what, why in run.skipped.items()]
    return [*lines, ""]


def machine(runs: list[SuiteRun]) -> list[str]:
    newest = max((run.run for run in runs), key=lambda run: run["at"])
    kernels = {"speed": "C kernels", "plain": "plain Python kernels"}[newest["kernels"]]
    return [
        "## Where",
        "",
        f"{newest['cpu']}, {newest['cores']} cores, {newest['memory_gib']} GiB, {newest['system']}, "
        f"Python {newest['python']}, {kernels}.",
        "",
        "Command: `make bench`; for a suite that ran apart from the others, `python -m pytest -s` with its file.",
        "",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in newest["versions"].items()) + ".",
        "",
    ]


def summary(sections: Iterable[str]) -> list[str]:
    """Counted from the tables as they are printed: kept sections have nothing else."""
    said = Counter(found for text in sections for found in _VERDICT.findall(text))
    aimed, compared = said["met"] + said["missed"], said["ahead"] + said["level"] + said["behind"]
    return [
        f"**{said['met']} of {aimed} targets met; of {compared} comparisons with a peer we are ahead in {said['ahead']}, "
        f"level in {said['level']}, behind in {said['behind']}.**",
        "",
    ]


def sections_of(report: str) -> dict[str, str]:
    """By their titles."""
    parts = re.split(r"^## ", report, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: f"## {part}" for part in parts}


def newer(runs: list[SuiteRun], former: str) -> list[SuiteRun]:
    """Those that the report does not have a later run of: it may have been written elsewhere."""
    known = {
        title: found[1] for title, text in sections_of(former).items() if (found := _MEASURED.search(text))
    }
    return [run for run in runs if run.run["at"] >= known.get(run.suite, "")]


def renewed(former: str, fresh: Mapping[str, list[str]]) -> str:
    """A report with these sections, and for what they leave out those of the former one."""
    found = sections_of(former) | {title: "\n".join(lines) for title, lines in fresh.items()}
    found = {title: text.rstrip("\n") + "\n" for title, text in found.items()}
    suites = [found[title] for title in sorted(found.keys() - {*_BEFORE, *_BEHIND})]
    before, behind = ([found[title] for title in titles if title in found] for titles in (_BEFORE, _BEHIND))
    return "\n".join([INTRODUCTION, *summary(suites), *before, *suites, *behind])


def changes() -> list[str]:
    """What was done about a figure that was missed, with the figure before and after."""
    kept: list[dict[str, str]] = tomllib.loads(CHANGES.read_text())["change"]
    lines = [(each["what"], each["figure"], each["before"], each["after"]) for each in kept]
    return ["## Before and after", "", *table(("what was changed", "figure", "before", "after"), lines), ""]


def under_load(runs: list[SuiteRun], loaded: list[SuiteRun], note: str = "") -> list[str]:
    """What the same figures said while each core had another process to run; the note is for those that changed."""
    before = {(run.suite, f.name): f for run in runs for f in run.figures if verdict(f)}
    pairs = [
        (key, before[key], f) for run in loaded for f in run.figures if (key := (run.suite, f.name)) in before
    ]
    if not pairs:
        return []
    changed = [pair for pair in pairs if verdict(pair[1]) != verdict(pair[2])]
    open_now = sum("level" in (verdict(quiet), verdict(busy)) for _, quiet, busy in changed)
    lines = [
        (f"{suite}: {name}", with_unit(quiet), with_unit(busy), verdict(quiet), verdict(busy))
        for (suite, name), quiet, busy in changed
    ]
    apart = sorted({run.suite for run in runs} - {run.suite for run in loaded})
    return [
        "## Under load",
        "",
        f"`make bench-loaded` runs every suite while each core has another process to run (load up to "
        f"{max(run.run['load'] for run in loaded)}). Of {len(pairs)} verdicts {len(pairs) - len(changed)} are the same, "
        f"{open_now} are level in one of the two runs, {len(changed) - open_now} say the opposite"
        + (":" if changed else "."),
        "",
        *(table(("figure", "above", "under load", "verdict above", "under load"), lines) if lines else []),
        "",
        *([" ".join(note.split()), ""] if lines and note else []),
        *([f"Not run so: {', '.join(apart)}.", ""] if apart else []),
    ]


def write(runs: list[SuiteRun], loaded: list[SuiteRun], out: Path, plots: Path) -> list[str]:
    """Write the report; returns the names of figures whose reason is missing."""
    # Here, because it needs matplotlib: the tools for tests do without it.
    from benchmarks.plots import draw_groups, draw_outages, draw_sweeps

    reasons = tomllib.loads(REASONS.read_text())
    former = out.read_text() if out.exists() else ""
    runs = newer(runs, former)
    fresh = {}
    for run in runs:
        drawn = [*draw_groups(run, plots), *draw_sweeps(run, plots), *draw_outages(run, plots)]
        fresh[run.suite] = section(run, drawn, reasons)
    if runs:
        fresh["Where"] = machine(runs)
    if busy := under_load(runs, loaded, reasons["under load"]["note"]):
        fresh["Under load"] = busy
    out.write_text(renewed(former, fresh | {"Before and after": changes()}))
    return [
        f"{run.suite}: {figure.name}"
        for run in runs
        for figure in run.figures
        if needs_reason(figure) and figure.name not in reasons.get(run.suite, {})
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write RESULTS.md from the last run.")
    parser.add_argument("--quick", action="store_true", help="from the last quick run")
    quick = parser.parse_args().quick
    runs = load("quick" if quick else "full")
    if not runs:
        print("there are no results: run `make bench` first", file=sys.stderr)
        return 2
    folder = RESULTS / "quick" if quick else HERE
    missing = write(runs, [] if quick else load("loaded"), folder / "RESULTS.md", folder / "plots")
    print(f"wrote {folder / 'RESULTS.md'}")
    for name in missing:
        print(f"no reason in reasons.toml: {name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
