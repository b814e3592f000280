"""docs/cost.svg, from the model: dollars a month over appends a second. `python -m tests.docs.cost_plot` writes it."""

from __future__ import annotations

from math import log10

from logstore.cost.estimate import Plan, estimate
from logstore.cost.prices import STANDARD
from tests.support.blocks import ROOT

PLOT = ROOT / "docs" / "cost.svg"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 400, 64, 20, 190, 48
RATES = [10 ** (step / 8) for step in range(33)]
DOLLARS = (1.0, 10000.0)
LINES: list[tuple[str, str, dict[str, object]]] = [
    ("4 partitions, lanes=0", "#b3261e", {"partitions": 4, "lanes": 0}),
    ("one lane, no linger", "#e07a5f", {"partitions": 4}),
    ("one lane, linger 0.1 s", "#1d6fb8", {"partitions": 4, "linger": 0.1}),
    ("one lane, linger 1 s", "#2e7d4f", {"partitions": 4, "linger": 1.0}),
]


def _x(rate: float) -> float:
    return LEFT + log10(rate) / 4 * (WIDTH - LEFT - RIGHT)


def _y(dollars: float) -> float:
    low, high = map(log10, DOLLARS)
    return TOP + (high - log10(dollars)) / (high - low) * (HEIGHT - TOP - BOTTOM)


def plot() -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(5):
        x, y = _x(10**power), _y(10**power)
        parts += [
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>',
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{10**power:,}</text>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">${10**power:,}</text>',
        ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">appends a second, 200 bytes each</text>'
    )
    parts.append(f'<text x="{LEFT}" y="{TOP - 6}">requests, a month, S3 Standard</text>')
    for number, (name, colour, options) in enumerate(LINES):
        points = []
        for rate in RATES:
            dollars = estimate(Plan(rate=rate, size=200, **options), STANDARD).request_dollars  # type: ignore[arg-type]
            points.append(f"{_x(rate):.1f},{_y(max(dollars, DOLLARS[0])):.1f}")
        y = TOP + 14 + number * 20
        x = WIDTH - RIGHT + 12
        parts += [
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<line x1="{x}" y1="{y - 4}" x2="{x + 18}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>',
            f'<text x="{x + 24}" y="{y}">{name}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PLOT.write_text(plot())
