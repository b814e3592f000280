"""The pictures of a report: bars for peers, lines on logarithmic scales for sweeps, memory over time. Needs matplotlib."""

from __future__ import annotations

import math
import textwrap
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.measure import Figure, SuiteRun

matplotlib.use("Agg")
from matplotlib import pyplot

OURS, THEIRS, INK, GRID = "#1f6f8b", "#c9ced6", "#2b2f36", "#e6e8ec"
STYLE: dict[str, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.facecolor": "white",
    "font.size": 9,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
COLUMNS = 2


def draw_groups(run: SuiteRun, folder: Path) -> list[str]:
    """One panel for each comparison with peers: their rates, fastest at the top, ours coloured. Returns the file's name."""
    peers = [figure for figure in run.figures if "peer" in figure.details]
    groups = [(name, list(found)) for name, found in groupby(peers, key=lambda f: f.details["group"])]
    if not groups:
        return []
    return [_save(f"{run.suite}-peers.png", folder, [(_bars, name, found) for name, found in groups])]


def draw_sweeps(run: SuiteRun, folder: Path) -> list[str]:
    """One panel for each sweep, with the fitted exponent and, dotted, what linear growth would look like."""
    sweeps = [figure for figure in run.figures if "points" in figure.details]
    if not sweeps:
        return []
    return [_save(f"{run.suite}-sweeps.png", folder, [(_line, f.name, [f]) for f in sweeps])]


def draw_outages(run: SuiteRun, folder: Path) -> list[str]:
    """Resident memory, minute by minute, against the limit."""
    found = [figure for figure in run.figures if "resident_MiB_by_minute" in figure.details]
    if not found:
        return []
    return [
        _save(
            f"{run.suite}-outage.png",
            folder,
            [(_outage, "resident memory, " + f.name.rpartition(", ")[2], [f]) for f in found],
        )
    ]


def _save(name: str, folder: Path, panels: list[tuple[Any, str, list[Figure]]]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context(STYLE):
        rows = -(-len(panels) // COLUMNS)
        columns = min(COLUMNS, len(panels))
        figure, axes = pyplot.subplots(rows, columns, figsize=(5.4 * columns, 2.7 * rows), squeeze=False)
        for place, axis in enumerate(axes.flat):
            if place >= len(panels):
                axis.set_visible(False)
                continue
            draw, title, figures = panels[place]
            axis.set_title(textwrap.fill(title[:1].upper() + title[1:], 56), loc="left")
            draw(axis, figures)
        figure.tight_layout(h_pad=2.0, w_pad=2.5)
        figure.savefig(folder / name, dpi=130)
        pyplot.close(figure)
    return name


def _bars(axis: Any, figures: list[Figure]) -> None:
    first = figures[0].details
    rates = {first["us"]: first["ours"]} | {f.details["peer"]: f.details["theirs"] for f in figures}
    ordered = sorted(rates.items(), key=lambda item: item[1])
    names, values = [name for name, _ in ordered], [rate for _, rate in ordered]
    bars = axis.barh(names, values, color=[OURS if name == first["us"] else THEIRS for name in names])
    axis.bar_label(bars, labels=[_short(value) for value in values], padding=4)
    axis.set_xlabel(first["rate_unit"])
    axis.set_xlim(0, max(values) * 1.18)
    axis.tick_params(axis="y", length=0)
    axis.xaxis.grid(True, color=GRID)
    axis.set_axisbelow(True)


def _line(axis: Any, figures: list[Figure]) -> None:
    details = figures[0].details
    xs, ys = zip(*details["points"], strict=True)
    axis.loglog(xs, ys, "o-", color=OURS, label=f"measured, exponent {figures[0].value:.2f}")
    linear = [ys[0] * x / xs[0] for x in xs]
    axis.loglog(xs, linear, ":", color=INK, alpha=0.6, label="linear")
    # From one decade to another, so that a flat line looks flat and every axis has numbers.
    axis.set_ylim(10 ** math.floor(math.log10(min(ys) / 1.5)), 10 ** math.ceil(math.log10(max(ys) * 1.5)))
    axis.set_xticks(xs, [f"{x:,.0f}" for x in xs])
    axis.minorticks_off()
    axis.set_xlabel(details["axis"])
    axis.set_ylabel(details["measured"])
    axis.grid(True, color=GRID)
    axis.legend(frameon=False, loc="best")


def _outage(axis: Any, figures: list[Figure]) -> None:
    details = figures[0].details
    resident, limit = details["resident_MiB_by_minute"], details["limit_MiB"]
    axis.plot(range(len(resident)), resident, "o-", color=OURS, label="resident")
    axis.axhline(limit, linestyle=":", color=INK, alpha=0.6, label=f"limit, {limit:.0f} MiB")
    axis.set_ylim(0, limit * 1.25)
    axis.set_xlabel("minutes of outage")
    axis.set_ylabel("MiB")
    axis.grid(True, color=GRID)
    axis.legend(frameon=False, loc="lower right")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
