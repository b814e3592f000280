"""`logstore materialize`: T02 and T04 from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import logstore
from logstore.cli import main
from tests.support.lake.tables import durable, events, places, rows_of


def test_T02_T04_a_topic_is_copied_listed_compacted_and_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, target = str(tmp_path / "shop"), f"delta:{tmp_path / 'lake'}"
    with logstore.open(url) as store:
        topic = store.create_topic("orders", partitions=2)
        topic.append_many(events(0, 30))
        expected = durable(topic)

    def run(*words: str) -> tuple[int, str]:
        code = main(["--json", "--store", url, "materialize", "orders", *words])
        return code, capsys.readouterr().out

    code, said = run("--to", target, "--infer", "--partition-by", "day", "--once", "--hold-seconds", "60")
    assert code == 0
    assert {name: json.loads(said)[name] for name in ("rows", "behind", "unparsed")} == {
        "rows": 30,
        "behind": 0,
        "unparsed": 0,
    }
    assert places(rows_of(target)) == expected
    code, said = run("--list")
    listed = json.loads(said)
    assert (listed["target"], listed["hold_seconds"], sum(listed["offsets"].values())) == (target, 60, 30)
    assert run("--to", target, "--compact")[0] == 0
    assert run("--forget", target)[0] == 0
    assert run("--list") == (0, "")
    assert run()[0] == 2
    assert run("--to", "parquet:/x")[0] == 2
