"""The command in a pipeline: input that comes slowly, output that nobody reads, bytes that are no text, Ctrl-C."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli import main
from logstore.cli.commands.records.append import _lines
from logstore.cli.terminal.usage import seldom

SECONDS = 60


@pytest.fixture
def url(tmp_path: Path) -> str:
    where = str(tmp_path / "store")
    with logstore.open(where) as store:
        store.create_topic("t")
    return where


def command(url: str, *words: str | bytes) -> list[str | bytes]:
    return [sys.executable, "-m", "logstore.cli", *words, "--store", url]


def stored(url: str) -> list[bytes | None]:
    with logstore.open(url, writer="read_only") as store:
        return [record.value for record in store.topic("t").partition(0).records()]


@contextmanager
def running(words: list[str | bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A shell's background jobs ignore Ctrl-C, and so do their children: `make test &`. The command is to hear of it."""
    pipe = subprocess.PIPE
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=heard) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_line_is_appended_when_it_is_there_and_waits_for_no_other(url: str) -> None:
    with running(command(url, "append", "t")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, line in enumerate((b"one\n", b"two\nthr", b"ee\n")):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == b"t/0 @ %d (durable)\n" % number
        assert stored(url) == [b"one", b"two", b"three"]
        process.stdin.write(b"no newline at the end")
        process.stdin.close()
        assert process.stdout.readline() == b"t/0 @ 3 (durable)\n"
        assert process.wait(SECONDS) == 0
    assert stored(url)[-1] == b"no newline at the end"


def test_O03_an_append_that_is_interrupted_says_where_to_go_on(url: str) -> None:
    with running(command(url, "append", "t")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"whole\nhalf")
        process.stdin.flush()
        assert process.stdout.readline() == b"t/0 @ 0 (durable)\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr is not None
        said = process.stderr.read()
    assert b"the first 1 records of the input are stored, and none after them" in said
    assert b"--resume 1" in said
    assert stored(url) == [b"whole"]


def test_O03_a_ctrl_c_right_before_the_wait_for_input_is_seen_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python acts on a signal between two of its own steps: a wait that had just begun would go on until input comes."""
    waits: list[float] = []

    def no_input(_read: object, _write: object, _failed: object, timeout: float) -> tuple[list[int], ...]:
        waits.append(timeout)
        if len(waits) > 1:
            raise KeyboardInterrupt
        return [], [], []

    monkeypatch.setattr("select.select", no_input)
    ours, theirs = os.pipe()
    os.write(theirs, b"nobody reads this")
    with pytest.raises(KeyboardInterrupt):
        next(_lines(ours, 100))
    os.close(ours)
    os.close(theirs)
    assert max(waits) <= 1.0


def test_O03_what_was_interrupted_is_resumed_without_loss_or_duplicate(url: str, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a stream of lines: what it says is exactly what is stored, and --resume does the rest."""
    lines = [b"%d" % number for number in range(2_000)]  # what is in the pipes fits them
    (tmp_path / "input").write_bytes(b"\n".join(lines))
    with running(command(url, "append", "t")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n".join(lines[:1_500]) + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"t/0 @ 0 (durable)\n"
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(SECONDS) == 130
        assert process.stderr is not None
        said = process.stderr.read().decode()
    found = re.search(r"first (\d+) records .* --resume (\d+)", said)
    assert found is not None, said
    assert found[1] == found[2] == str(len(stored(url)))
    with open(tmp_path / "input", "rb") as again:
        words = command(url, "append", "t", "--quiet", "--resume", found[2])
        done = subprocess.run(words, stdin=again, capture_output=True, timeout=SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert stored(url) == lines


def test_a_resume_past_the_end_of_the_input_is_refused(url: str) -> None:
    done = subprocess.run(
        command(url, "append", "t", "--resume", "3"),
        input=b"one\ntwo\n",
        capture_output=True,
        timeout=SECONDS,
    )
    assert done.returncode == 2
    assert b"the input ends 1 records before that; nothing was appended" in done.stderr
    for words in (("append", "t", "v", "--resume", "1"), ("append", "t", "--resume", "-1")):
        assert subprocess.run(command(url, *words), capture_output=True, timeout=SECONDS).returncode == 2


def test_an_append_whose_receipts_nobody_reads_says_where_it_stopped(url: str) -> None:
    with running(command(url, "append", "t")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.wait(SECONDS) == 1
        assert process.stderr is not None
        assert b"stopped after 1 records" in process.stderr.read()
    assert stored(url) == [b"one"]


def test_receipts_that_cannot_be_printed_are_no_append_that_failed(url: str) -> None:
    """A full disk under `> receipts.txt`: the record is stored, and the message says so."""
    with open("/dev/full", "wb") as full:
        words = command(url, "append", "t", "one")
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=SECONDS)
    assert done.returncode == 1
    assert b"No space left on device; stopped after 1 records" in done.stderr
    assert stored(url) == [b"one"]


def test_a_line_that_fits_no_batch_is_named_and_not_read_to_its_end(url: str) -> None:
    with running(command(url, "append", "t", "--max-batch-bytes", "1000")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"t/0 @ 0 (durable)\n"
        assert process.stdout.readline() == b"t/0 @ 1 (durable)\n"
        process.stdin.write(b"x" * 2000)  # and no end of it
        process.stdin.flush()
        assert process.wait(SECONDS) == 1
        assert process.stderr is not None
        said = process.stderr.read()
    assert b"record 3 of the input is too large" in said
    assert b"the first 2 records are stored, and none after them" in said
    assert stored(url) == [b"one", b"two"]


@pytest.mark.parametrize("words", [("cat", "t"), ("cat", "t", "--json"), ("inspect", "t")])
def test_a_reader_that_has_seen_enough_is_no_error(words: tuple[str, ...], url: str) -> None:
    with logstore.open(url) as store:
        for _ in range(3):
            store.topic("t").partition(0).append([b"x" * 100] * 2000)
    with running(command(url, *words)) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_tail_ends_in_order_on_an_interrupt(url: str) -> None:
    with logstore.open(url) as store:
        store.topic("t").append(b"seen")
    with running(command(url, "tail", "t", "-o", "beginning")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"seen\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_tail_ends_when_the_topic_is_deleted(url: str) -> None:
    with logstore.open(url) as store, running(command(url, "tail", "t", "-o", "beginning")) as process:
        store.topic("t").append(b"one")
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        store.delete_topic("t")
        assert process.wait(SECONDS) == 1
        assert process.stderr is not None
        assert b"t/0: the topic was deleted" in process.stderr.read()


def test_bytes_that_are_no_text_go_in_and_come_out(url: str) -> None:
    words = command(url, "append", "t", b"\xff\x01", "-k", b"\xfe", "-H", b"name=\xfd")
    subprocess.run(words, check=True, capture_output=True, timeout=SECONDS)
    shown = subprocess.run(
        command(url, "cat", "t", "-f", "☃ %k|%s|%h|\\x41\\t%%\\n"),
        capture_output=True,
        check=True,
        timeout=SECONDS,
    )
    assert shown.stdout == "☃ ".encode() + b"\xfe|\xff\x01|name=\xfd|A\t%\n"


def test_a_terminal_without_unicode_gets_an_escape_and_no_traceback(url: str) -> None:
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "logstore.cli", "demo"], env=plain, capture_output=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert b"\\u2713 the next append gets offset" in done.stdout


@pytest.mark.parametrize("pure", ["", "1"])
def test_the_version_is_that_of_the_package_and_says_whether_the_kernels_are_in(pure: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "logstore.cli", "--version"],
        env={**os.environ, "LOGSTORE_PURE": pure},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    version, what = done.stdout.rstrip().split(" (")
    assert version == f"logstore {logstore.__version__}"
    if pure:
        assert what.startswith("without C kernels, LOGSTORE_PURE=1: ")
    else:
        assert what == "with C kernels)" or what.startswith("without C kernels, built without a compiler: ")


@pytest.mark.parametrize(
    ("words", "closed", "code", "message"),
    [
        (("topics",), ">&-", 1, "standard output is closed"),
        (("append", "t", "v"), ">&-", 1, "standard output is closed"),
        (("append", "t"), "<&-", 2, "standard input is closed"),
    ],
)
def test_a_stream_that_is_closed_is_named_before_anything_is_done(
    words: tuple[str, ...], closed: str, code: int, message: str, url: str
) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command(url, *words)]
    ended = subprocess.run(shell, capture_output=True, timeout=SECONDS)
    assert (ended.returncode, ended.stdout) == (code, b"")
    assert message in ended.stderr.decode()
    assert b"Traceback" not in ended.stderr
    assert stored(url) == []


def test_O03_an_append_that_fails_says_how_much_of_the_input_is_stored(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A disk that is full, say: the second batch of the input gets no answer in time."""
    append, calls = logstore.Topic.append_many, []

    def fails_later(
        self: logstore.Topic, records: list[logstore.Record], **how: Any
    ) -> list[logstore.Receipt]:
        calls.append(len(records))
        if len(calls) > 1:
            raise logstore.AppendTimeout("no answer")
        return append(self, records, **how)

    monkeypatch.setattr(logstore.Topic, "append_many", fails_later)
    (tmp_path / "input").write_bytes(b"%099d\n" % 7 * 20_000)
    with (tmp_path / "input").open() as given:
        monkeypatch.setattr(sys, "stdin", given)
        assert main(["append", "t", "--store", url, "--quiet"]) == 1
    first, second = calls
    assert len(stored(url)) == first
    said = f"the first {first} records of the input are stored, and perhaps some of the next {second}\n"
    assert said in capfd.readouterr().err


def test_a_warning_that_repeats_is_shown_less_and_less_often() -> None:
    """An upload that fails is tried again several times a second."""
    again = logging.LogRecord("logstore.test", logging.WARNING, "", 0, "upload %d failed", (1,), None)
    other = logging.LogRecord("logstore.test", logging.WARNING, "", 0, "another", (), None)
    assert [number for number in range(1, 70) if seldom(again)] == [1, 2, 4, 8, 16, 32, 64]
    assert seldom(other)
