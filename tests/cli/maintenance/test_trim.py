"""`logstore trim`: the records before an offset go, and nothing else; it asks first."""

from __future__ import annotations

import json

import pytest

import logstore
from logstore.cli import main


def run(*words: str) -> int:
    return main(list(words))


def test_trim_deletes_what_lies_before(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url) as store:
        store.create_topic("t").partition(0).append([b"a", b"b", b"c", b"d"])
    assert run("trim", "t", "-p", "0", "--before", "3") == 2
    assert "before offset 3: say so with --yes" in capfd.readouterr().err
    assert run("trim", "t", "-p", "0", "--before", "-2", "--yes", "--json") == 0
    assert json.loads(capfd.readouterr().out) == {"topic": "t", "partition": 0, "low": 2}
    assert run("cat", "t") == 0
    assert capfd.readouterr().out.split() == ["c", "d"]
    assert run("trim", "t", "-p", "0", "--before", "5", "--yes") == 1
    assert "OffsetOutOfRange" in capfd.readouterr().err
    assert run("trim", "t", "-p", "7", "--before", "0", "--yes") == 2
