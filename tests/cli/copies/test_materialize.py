"""`logstore materialize`: T02 and T04 from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.cli import main
from logstore.lake import Materializer
from logstore.lake.materializer import Progress
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

    code, said = run("--to", target, "--infer", "--partition-by", "day", "--once", "--hold", "1m")
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
    assert run("--forget", target)[0] == 2, "it waits for none"
    assert run()[0] == 2
    assert run("--to", "parquet:/x")[0] == 2


def test_O03_a_copy_into_a_table_says_how_far_it_is_and_when_interrupted_goes_on_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after its first commit of several."""
    url, target = str(tmp_path / "shop"), f"delta:{tmp_path / 'lake'}"
    with logstore.open(url) as store:
        topic = store.create_topic("orders")
        for first in range(0, 40, 10):
            topic.append_many(events(first, first + 10))
        expected = durable(topic)
    seen: list[tuple[int, int]] = []
    run_once = Materializer.run_once

    def interrupted(copier: Materializer, report: Callable[[Progress], None] | None = None) -> Progress:
        assert report is not None
        copier._commit_bytes = 1

        def watch(progress: Progress) -> None:
            report(progress)
            seen.append((progress.rows, progress.behind))
            if len(seen) == 2:
                raise KeyboardInterrupt

        return run_once(copier, watch)

    monkeypatch.setattr(Materializer, "run_once", interrupted)
    words = ["--store", url, "materialize", "orders", "--to", target, "--once"]
    assert main(words) == 130
    (begun, rows), said = seen, capsys.readouterr().err
    assert begun == (0, 40)
    assert 0 < rows[0] < 40
    assert rows[0] + rows[1] == 40
    assert f"{rows[0]} rows in 1 commits are in the table; the same command goes on there" in said
    assert main(words) == 0
    assert seen[-1][1] == 0
    assert places(rows_of(target)) == expected


def test_T03_what_does_not_agree_with_the_table_that_is_there_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, target = str(tmp_path / "shop"), f"delta:{tmp_path / 'lake'}"
    with logstore.open(url) as store:
        store.create_topic("orders").append_many(events(0, 3))
    command = ["--store", url, "materialize", "orders"]
    assert main([*command, "--to", target, "--infer", "--once"]) == 0
    capsys.readouterr()
    unreachable = f"iceberg:shop.orders?type=sql&uri=sqlite:///{tmp_path / 'nowhere' / 'x.db'}&warehouse=/x"
    for words, code, why in (
        (("--to", target, "--once"), 2, "no table of a topic with raw values"),
        (("--to", target, "--once", "--infer", "--partition-by", "day"), 2, "not by day"),
        (("--to", f"{target}2", "--compact"), 2, "there is no table yet"),
        (("--forget", f"{target}2"), 2, f"waits for no such table; for {target}"),
        (("--to", unreachable, "--once"), 1, "its catalog cannot be asked"),
    ):
        assert main([*command, *words]) == code
        said = capsys.readouterr().err
        assert why in said
        assert "Traceback" not in said
        assert len(said.splitlines()) <= 3
