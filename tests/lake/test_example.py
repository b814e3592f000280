"""The example of a topic that is also a table runs, twice on the same folder, and counts each event once."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path


def test_T05_the_events_example_counts_each_event_once_from_table_and_log(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "examples" / "github_events.py"
    spec = importlib.util.spec_from_file_location("github_events", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    first = example.main(tmp_path, events=2000)
    second = example.main(tmp_path, events=2000)
    assert (first.total(), second.total()) == (2100, 4200)
    assert {kind for _, kind in second} == set(example.KINDS)
    bars = ET.fromstring((tmp_path / "events.svg").read_text()).iter("{http://www.w3.org/2000/svg}rect")
    assert sum(1 for _ in bars) == 1 + 24 * 4 + 4
