"""`logstore verify`, and what it and `cat` say when they are interrupted: where to go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import logstore
from logstore.cli import main
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.progress import Progress


def run(*words: str) -> int:
    return main(list(words))


def damage_of(url: str, key: str, at: int) -> None:
    """Flip a bit of a segment that is a part of a lane's entry."""
    entry, _, place = key.partition("@")
    position, size = map(int, place.split("+"))
    path = Path(url) / entry
    content = bytearray(path.read_bytes())
    assert at < size
    content[position + at] ^= 1
    path.write_bytes(content)


def test_verify_names_the_damaged_object_and_reads_on(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url) as store:
        log = store.create_topic("t").partition(0)
        for value in (b"a", b"b", b"c"):
            log.append(value)
        damaged = log.segments()[1].key
    damage_of(url, damaged, 200)
    assert run("verify", "--json") == 1
    damage, summary = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (damage["key"], damage["offset"]) == (damaged, 1)
    assert summary == {"topic": "t", "partition": 0, "records": 2, "damaged": 1}


def test_O03_cat_and_verify_that_are_interrupted_say_where_to_go_on(
    url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with logstore.open(url) as store:
        topic = store.create_topic("t", 2)
        for number in (0, 1):
            for _ in range(3):
                topic.partition(number).append([b"a", b"b"])
    printed: list[object] = []

    def interrupt(self: Output, *args: object) -> None:
        printed.append(args)
        if len(printed) == 9:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Output, "record", interrupt)
        assert run("cat", "t") == 130
    assert "8 records were printed; go on with -p 1 -o 2" in capfd.readouterr().err
    checked: list[int] = []

    def stop(self: Progress, records: int = 0, size: int = 0, what: str | None = None) -> None:
        checked.append(records)
        if len(checked) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", stop)
        assert run("verify") == 130
    # The segment in which it was interrupted is read again.
    assert "what comes before t/1@2 was checked" in capfd.readouterr().err
    assert run("verify", "--from", "t/1@2", "--json") == 0
    assert [(line["partition"], line["records"]) for line in rows(capfd)] == [(1, 4)]
    assert run("verify", "t", "--from", "t/0", "--json") == 0
    assert [(line["partition"], line["records"]) for line in rows(capfd)] == [(0, 6), (1, 6)]


def rows(capfd: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--from", "t/2"), 2, "has partitions 0 to 1, not 2"),
        (("--from", "z/0"), 1, "there is no topic 'z'"),
        (("t", "--from", "u/0"), 2, "--from u/0: that is no partition of t"),
        (("--from", "t"), 2, "write orders/3"),
    ],
)
def test_verify_from_where_nothing_is_does_not_say_that_all_is_well(
    words: tuple[str, ...], code: int, message: str, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logstore.open(url) as store:
        store.create_topic("t", 2)
        store.create_topic("u")
    assert run("verify", *words) == code
    assert message in capfd.readouterr().err
    assert run("verify", "--from", "t") == 2
