"""The table of metrics in docs/metrics.md, from the catalogue in the code: `python -m tests.docs.metrics_page` writes it
again."""

from __future__ import annotations

import re

from logstore.metrics import FAMILIES, Family
from tests.support.blocks import ROOT

PAGE = ROOT / "docs" / "metrics.md"
HEAD = "| name | kind | labels | meaning |\n|---|---|---|---|\n"


def row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind}{' (a)' if family.whole else ''} | {labels} | {family.help} |\n"


def table() -> str:
    return HEAD + "".join(row(family) for family in FAMILIES.values())


def page() -> str:
    """The page with the table as it should be; all other words stay."""
    text = PAGE.read_text()
    start = text.index(HEAD)
    return text[:start] + table() + text[text.index("\n", text.rindex("| `logstore_")) + 1 :]


def names() -> set[str]:
    """Every metric that the page explains: what its tables have in their first column."""
    cells = re.findall(r"^\| (`[^|]*) \| (?:counter|gauge|histogram)", PAGE.read_text(), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


if __name__ == "__main__":
    PAGE.write_text(page())
