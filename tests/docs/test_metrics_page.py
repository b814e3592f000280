"""docs/metrics.md names what there is: every metric, every logger; and its alerts and its board ask for nothing else."""

from __future__ import annotations

import ast
import json
import re
from itertools import chain

from logstore.metrics import FAMILIES
from tests.docs import cost_plot, metrics_page
from tests.support.blocks import ROOT

SUFFIX = re.compile(r"_(bucket|sum|count)$")


def test_O01_the_page_has_every_metric_of_the_code_and_no_other() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "run python -m tests.docs.metrics_page"
    assert {name for name in metrics_page.names() if name.startswith("logstore_")} == set(FAMILIES)


def test_O01_alerts_and_board_ask_for_metrics_that_exist() -> None:
    page = metrics_page.PAGE.read_text()
    alerts = re.findall(r"expr: (.*)", page)
    assert len(alerts) == 5
    board = json.loads((ROOT / "docs" / "logstore-grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 10
    for expression in chain(alerts, asked):
        names = re.findall(r"\b(?:logstore|broker_shim)_[a-z_]+", expression)
        assert names, expression
        for name in names:
            assert name in FAMILIES or SUFFIX.sub("", name) in FAMILIES, expression


def test_every_logger_lies_below_one_that_the_page_explains() -> None:
    section = metrics_page.PAGE.read_text().partition("## Loggers")[2]
    explained = set(re.findall(r"^\| `([a-z_.]+)` \|", section, re.MULTILINE))
    for path in chain((ROOT / "logstore").rglob("*.py"), (ROOT / "broker_shim").rglob("*.py")):
        if any(
            isinstance(node, ast.Attribute) and node.attr == "getLogger"
            for node in ast.walk(ast.parse(path.read_text()))
        ):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            assert any(name == logger or name.startswith(logger + ".") for logger in explained), name


def test_O04_the_plot_of_the_cost_page_is_what_the_model_says() -> None:
    assert cost_plot.PLOT.read_text() == cost_plot.plot(), "run python -m tests.docs.cost_plot"
