"""`logstore gc`: how far it is, and what it says when it is interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import logstore
from logstore.cli import main
from logstore.cli.terminal.progress import Progress

TOPICS = ("a", "b", "c")


def merged_store(folder: Path) -> list[str]:
    """Three topics, each with segments that a merged one has replaced."""
    with logstore.open(folder, lanes=0) as store:
        for name in TOPICS:
            log = store.create_topic(name).partition(0)
            for number in range(6):
                log.append(b"%d" % number)
    return ["--store", str(folder)]


def gc(where: list[str], *more: str) -> int:
    return main([*where, "gc", "--grace", "0", *more])


def test_O03_gc_counts_what_went_and_interrupted_says_how_many(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = merged_store(tmp_path / "shop")
    for name in TOPICS:
        assert main([*where, "compact", name]) == 0
    capfd.readouterr()
    assert gc(where, "--dry-run", "--json") == 0
    listed = [json.loads(line)["key"] for line in capfd.readouterr().out.splitlines()]
    told: list[int] = []
    advance = Progress.advance

    def interrupt(self: Progress, records: int = 0, size: int = 0, what: str | None = None) -> None:
        advance(self, records, size, what)
        told.append(records)
        if sum(map(bool, told)) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", interrupt)
        assert gc(where) == 130
    assert 0 < sum(told) < len(listed)
    assert f"interrupted: {sum(told):,} objects were deleted" in capfd.readouterr().err
    assert gc(where, "--json") == 0
    rest = [json.loads(line)["key"] for line in capfd.readouterr().out.splitlines()]
    assert len(rest) == len(listed) - sum(told)
    assert set(rest) < set(listed)
    for name in TOPICS:
        with logstore.open(tmp_path / "shop", writer="read_only") as store:
            assert [record.value for record in store.topic(name).records()] == [b"%d" % n for n in range(6)]
