"""What a person does wrong on the command line, and what the command says about it. Never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore.cli import main


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    where = str(tmp_path / "store")
    monkeypatch.setenv("LOGSTORE_URL", where)
    with logstore.open(where) as store:
        orders = store.create_topic("orders", partitions=2)
        orders.partition(0).append([b"a", b"b", b"c"])
        orders.partition(1).append(b"d")
    return where


def code_of(*words: str) -> int:
    """The exit code, whether argparse or the command refuses."""
    try:
        return main(list(words))
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("topic",), 2, "No such command 'topic'. Did you mean topics?"),
        (("cat",), 2, "Missing argument 'TOPIC'"),
        (("append",), 2, "Missing argument 'TOPIC'"),
        (("cp", "orders"), 2, "Missing option '--to'"),
        (("trim", "orders", "-p", "0"), 2, "Missing option '--before'"),
        (("cat", "orders", "-p", "7"), 2, "has partitions 0 to 1, not 7"),
        (("tail", "orders", "-p", "-1"), 2, "has partitions 0 to 1, not -1"),
        (("append", "orders", "x", "-p", "7"), 2, "has partitions 0 to 1"),
        (("cat", "orders", "-c", "0"), 2, "at least 1"),
        (("cat", "orders", "-o", "4"), 1, "offset 4 is outside of orders/0, which holds 0 to 3"),
        (("cat", "orders", "-f", "%x"), 2, "there is no '%x'"),
        (("cat", "orders", "-f", r"\q"), 2, r"\xHH"),
        (("gc", "--grace", "-1"), 2, "delete_grace=-1.0"),
        (("create", "t", "--retention-bytes", "1e999"), 2, "no whole number of bytes"),
        (("cat", "orders", "-o", "-inf"), 2, "--start -inf: an offset"),
        (("maintain", "--every", "-1", "--rounds", "2"), 2, "more than 0"),
        (("mirror", "orders", "--to", "memory://", "--every", "0"), 2, "more than 0"),
        (("bench", "--records", "many"), 2, "at least 1"),
        (("trim", "orders", "-p", "0", "--before", "noon", "--yes"), 2, "--before noon: an offset"),
        (("create", "orders"), 1, "--exist-ok"),
        (("create", "orders", "-p", "3", "--exist-ok"), 1, "with 2 partitions, not 3"),
        (("append", "orders", "v", "--tombstone", "-k", "k"), 2, "no value"),
        (("append", "orders", "--tombstone"), 2, "--key"),
        (("append", "orders", "k:v", "-K", ":"), 2, "standard input"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_appended(
    words: tuple[str, ...], code: int, message: str, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert code_of(*words) == code
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said
    with logstore.open(url, writer="read_only") as store:
        orders = store.topic("orders")
        assert [orders.partition(number).durable_high_watermark for number in (0, 1)] == [3, 1]


@pytest.mark.parametrize(
    "command",
    [
        ("cat",),
        ("tail",),
        ("offsets",),
        ("inspect",),
        ("append",),
        ("compact",),
        ("gc",),
        ("delete", "--yes"),
        ("alter", "-p", "3"),
        ("trim", "-p", "0", "--before", "1", "--yes"),
    ],
)
def test_a_mistyped_topic_brings_the_one_that_was_meant(
    command: tuple[str, ...], url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert code_of(*command, "ordres") == 1
    assert "did you mean orders?" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("append", "orders", "x"),
        ("delete", "orders", "--yes"),
        ("alter", "orders", "-p", "3"),
        ("cat", "orders"),
        ("topics",),
    ],
)
def test_a_mistyped_store_is_named_and_not_created(
    words: tuple[str, ...], url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert code_of(*words, "--store", str(tmp_path / "stroe")) == 1
    assert f"LocalStore('{tmp_path}/stroe'): there is no log store here" in capfd.readouterr().err
    assert not (tmp_path / "stroe").exists()


def test_an_offset_past_the_end_of_one_partition_only_begins_at_its_end(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert code_of("cat", "orders", "-o", "2", "-f", r"%p/%o\n") == 0
    assert capfd.readouterr().out == "0/2\n"
    assert code_of("tail", "orders", "-o", "2", "-c", "1", "-f", r"%p/%o\n") == 0
    assert capfd.readouterr().out == "0/2\n"


def test_options_may_stand_between_the_arguments(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert code_of("append", "orders", "-k", "order-17", "paid", "-p", "1") == 0
    capfd.readouterr()
    assert code_of("cat", "-p", "1", "orders", "-o", "1", "-f", r"%k=%s\n") == 0
    assert capfd.readouterr().out == "order-17=paid\n"
    assert code_of("append", "orders", "paid", "twice") == 2
    assert "unexpected extra argument (twice)" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "--json", "--store", "URL"),
        ("--json", "topics", "--store", "URL"),
        ("--store", "URL", "topics", "--json"),
        ("--json", "--store", "URL", "topics"),
    ],
)
def test_the_store_and_the_form_of_the_output_may_be_said_before_the_command_or_after(
    words: tuple[str, ...], url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGSTORE_URL", "/nowhere")
    assert code_of(*(url if word == "URL" else word for word in words)) == 0
    assert capfd.readouterr().out.startswith('{"topic": "orders", "partitions": 2, "offsets": 4, ')
