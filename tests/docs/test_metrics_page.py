"""docs/metrics.md names what there is: every metric, every logger; and its alerts and its board ask for nothing else."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from itertools import chain

from prometheus_client import CollectorRegistry

import logstore
from logstore.ingest import FlushTracker
from logstore.metrics import FAMILIES, collector
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore
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
    asked = board_expressions()
    assert len(asked) > 10
    for expression in chain(alerts, asked):
        names = re.findall(r"\b(?:logstore|broker_shim)_[a-z_]+", expression)
        assert names, expression
        for name in names:
            assert name in FAMILIES or SUFFIX.sub("", name) in FAMILIES, expression


def test_O01_every_panel_of_the_board_finds_samples_of_a_store_that_was_used() -> None:
    """Names, the labels that a panel sums by or picks by, and the values that it picks: as a scrape has them."""
    asked = board_expressions()
    samples = scraped_after_work()
    for expression in asked:
        for name, picked, summed_by in selectors(expression):
            mine = [labels for sample, labels in samples if sample == name]
            assert mine, f"{expression}: nothing has the name {name}"
            for label in summed_by:
                assert any(label in labels for labels in mine), (
                    f"{expression}: no {name} has the label {label}"
                )
            for label, operator, value in picked:
                values = {labels.get(label) for labels in mine}
                assert value in values, f"{expression}: {label} of {name} is one of {values}"
                assert operator == "=" or values - {value}, f"{expression}: nothing is left but {value}"


def board_expressions() -> list[str]:
    board = json.loads((ROOT / "docs" / "logstore-grafana.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def selectors(expression: str) -> Iterator[tuple[str, list[tuple[str, str, str]], list[str]]]:
    """Each metric with what it is picked by, and the labels that stand in the `by (…)` of the whole expression."""
    grouped = re.search(r"by \(([a-z, ]+)\)", expression)
    summed_by = grouped.group(1).replace(" ", "").split(",") if grouped else []
    for name, picked in re.findall(r"\b(logstore_[a-z_]+)(?:\{([^}]*)\})?", expression):
        yield name, re.findall(r'([a-z_]+)(!?=)"([^"]*)"', picked), summed_by


def scraped_after_work() -> list[tuple[str, dict[str, str]]]:
    """Of a store that has appended, read, been refused and been asked for lags."""
    registry = CollectorRegistry()
    objects = FaultyStore(MemoryStore(), seed=1)
    tracker: FlushTracker[int] = FlushTracker(0, lambda boundary: None)
    tracker.register("sink")
    tracker.commit(7, ["sink"])
    with logstore.open(objects, probe_interval=0.01) as store:
        collector(
            store, registry=registry, readers={"mailer": lambda: {("t", 0): 4}}, trackers={"orders": tracker}
        )
        topic = store.create_topic("t")
        objects.fail("put", with_=Fault.UNAVAILABLE, times=1)
        topic.append(b"durable")
        topic.append(b"buffered", ack="buffered")
        assert [record.value for record in topic.partition(0).records()] == [b"durable", b"buffered"]
        return [(sample.name, sample.labels) for family in registry.collect() for sample in family.samples]


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
