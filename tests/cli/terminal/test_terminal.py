"""On a terminal: nothing is wider than it is, and colours only where they are wanted."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

import logstore
from logstore.cli import main
from logstore.cli.commands.copies.ingest import StatusLine
from logstore.cli.terminal import frame
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.progress import Progress, print_table
from logstore.ingest.postgres import PostgresIngest, PostgresSettings
from tests.support.patience import PATIENCE_S

ESCAPE = re.compile(r"\x1b\[\??[0-9;]*[A-Za-z]")
ERASED = "\x1b[2K"


def on_a_terminal(words: list[str], **environment: str) -> str:
    """What the command prints on a terminal of 80 columns."""
    code, shown = at_a_terminal(words, stderr=None, environment=environment)
    assert code == 0
    return shown


def at_a_terminal(
    words: list[str],
    *,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = subprocess.STDOUT,
    typed: bytes = b"",
    environment: dict[str, str] | None = None,
) -> tuple[int, str]:
    """The exit code and what a terminal of 80 columns shows: all of it, but for the streams that go elsewhere."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        [sys.executable, "-m", "logstore.cli", *words],
        stdin=theirs if typed else stdin,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs if stderr == subprocess.STDOUT else stderr,
        env={**plain, "COLUMNS": "80", "TERM": "xterm-256color", **(environment or {})},
    ) as process:
        if typed:
            os.write(ours, typed)
        os.close(theirs)
        shown = b"".join(_until_closed(ours))
        code = process.wait(PATIENCE_S)
    os.close(ours)
    return code, shown.decode().replace("\r\n", "\n")


def _until_closed(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:  # Linux: the other side is closed
            return
        if not data:
            return
        yield data


def test_the_demo_fits_80_columns_in_colour_and_without() -> None:
    for environment in ({}, {"NO_COLOR": "1"}):
        shown = on_a_terminal(["demo"], **environment)
        assert ("\x1b[" in shown) is not bool(environment)
        lines = ESCAPE.sub("", shown).splitlines()
        assert any("the next append gets offset" in line for line in lines)
        assert [line for line in lines if len(line) > 80] == []


def test_a_table_that_is_wider_than_the_terminal_breaks_no_cell(tmp_path: Path) -> None:
    """`1000000` over two lines reads as a hundred thousand."""
    where = {"LOGSTORE_URL": str(tmp_path / "shop")}
    logstore.open(tmp_path / "shop").close()
    assert "no topics yet" in on_a_terminal(["topics"], **where)
    with logstore.open(tmp_path / "shop") as store:
        store.create_topic("orders", partitions=2, retention_bytes=123_000_000).append_many([b"x"] * 1234)
    key = str(tmp_path / ("k" * 100))
    for columns in ("80", "40", "200"):
        shown = ESCAPE.sub("", on_a_terminal(["topics"], COLUMNS=columns, **where))
        lines = shown.splitlines()
        assert [line for line in lines if len(line) > int(columns)] == []
        for cell in ("orders", "1234", "123 MB", "exclusive", "partitions", "<$0.01"):
            assert cell in shown, columns
        is_table = any("──" in line for line in lines)
        assert is_table == (columns != "40")
    print_table(narrow := io.StringIO(), ["key", "bytes"], [[key, "12345"]])
    assert [line.strip() for line in narrow.getvalue().splitlines()] == [key, "bytes 12345"]
    print_table(numbered := io.StringIO(), ["partition", "key"], [["3", key]])
    assert [line.strip() for line in numbered.getvalue().splitlines()] == ["partition 3", f"key {key}"]


def test_a_message_at_a_terminal_is_broken_between_words(url: str) -> None:
    main(["create", "orders"])
    code, shown = at_a_terminal(["cat", "order"])
    assert code == 1
    lines = shown.splitlines()
    assert len(lines) == 2
    assert [line for line in lines if len(line) > 80] == []
    assert " ".join(lines).endswith("did you mean orders? `logstore create order` makes it")


def test_help_fits_80_columns() -> None:
    for command in ("append", "gc", "ingest", "trim"):
        assert [line for line in on_a_terminal([command, "--help"]).splitlines() if len(line) > 80] == []


def test_an_empty_answer_is_said_to_a_person_and_to_nobody_else(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logstore.open(url) as store:
        store.create_topic("t")
    for words, expected in (
        (["groups"], "no groups yet"),
        (["lag"], "no groups yet"),
        (["inspect", "t"], "t holds no segments yet"),
    ):
        assert expected in on_a_terminal(words)
        assert main(words) == 0
        assert capfd.readouterr().out == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_status_line_of_an_ingest_is_cut_so_that_it_can_be_written_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    settings = PostgresSettings(dsn="host=nowhere", publication="shop")
    with PostgresIngest(lambda: logstore.open("memory://status-line"), settings) as ingest:
        line = StatusLine(ingest, settings, Output(sys.stdout, as_json=False))
        for _ in range(3):
            line._show(None)
    shown = ESCAPE.sub("", terminal.getvalue())
    assert "\n" not in shown
    first, *lines = shown.split("\r")
    assert first == ""
    assert [len(text) for text in lines] == [39, 39, 39]
    assert all(text.startswith("0 records/s") for text in lines)


def test_tables_have_lines_and_colours_on_a_terminal_and_none_in_a_pipe(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logstore.open(url) as store:
        store.create_topic("orders").append(b"x")
    shown = on_a_terminal(["topics"], COLUMNS="120")
    assert "\x1b[" in shown
    assert "─" in shown
    assert "\x1b[" not in on_a_terminal(["topics"], NO_COLOR="1", TERM="dumb")
    assert main(["topics"]) == 0
    plain = capfd.readouterr().out
    assert "\x1b" not in plain
    assert "─" not in plain


def test_O03_a_long_append_shows_how_far_it_is_and_a_summary_and_no_receipts(
    url: str, tmp_path: Path
) -> None:
    main(["create", "t"])
    (tmp_path / "lines").write_bytes(b"a line\n" * 20_000)
    with open(tmp_path / "lines", "rb") as lines:
        code, shown = at_a_terminal(["append", "t"], stdin=lines.fileno())
    text = ESCAPE.sub("", shown)
    assert code == 0
    assert "appending" in text
    assert "20,000 records, 140 kB appended to t in" in text
    assert "t/0 @ 0" not in text
    with open(tmp_path / "lines", "rb") as lines, open(tmp_path / "receipts", "wb") as receipts:
        code, shown = at_a_terminal(
            ["append", "t", "--quiet"], stdin=lines.fileno(), stdout=receipts.fileno()
        )
    assert (code, shown) == (0, "")
    assert (tmp_path / "receipts").read_bytes() == b""


@pytest.mark.parametrize("columns", ["80", "60", "120"])
@pytest.mark.parametrize(("unit", "what"), [("bytes", "appending to " + "t" * 90), ("records", "reading t")])
def test_O03_progress_is_one_line_however_narrow_the_terminal_is(
    columns: str, unit: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is broken over two cannot be written over, and half of it stays."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", columns)
    seconds = iter(range(1000))
    with Progress(what, quiet=False, total=10**9, unit=unit, clock=lambda: next(seconds)) as progress:
        progress.advance(12_345_678, 654_300_000)
        progress._bar.refresh()
    lines = [
        line for line in re.split(r"[\r\n]", ESCAPE.sub("", terminal.getvalue())) if "12,345,678" in line
    ]
    assert lines
    assert [line for line in lines if len(line) > int(columns)] == []
    if columns != "60":
        assert all(line.startswith(what.split(" ")[0]) for line in lines)
        assert all("left" in line and "━" in line for line in lines)


def test_O03_progress_of_an_input_of_unknown_length_has_no_question_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    with Progress("appending to t", quiet=False, unit="bytes") as progress:
        progress.advance(10, 5_600_000)
        progress._bar.refresh()
    assert "5.6 MB" in terminal.getvalue()
    assert "/?" not in terminal.getvalue()


def test_O03_ctrl_c_while_progress_begins_leaves_nothing_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress("maintaining", quiet=False)
    start = progress._bar.start

    def interrupted() -> None:
        start()
        raise KeyboardInterrupt

    monkeypatch.setattr(progress._bar, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), progress:
        pass
    assert not progress._bar.live.is_started
    assert terminal.getvalue().endswith(ERASED)


def test_O03_progress_of_what_goes_into_a_pipe_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cat | head -1` prints its line on the terminal on which progress would stand."""
    ours, theirs = os.pipe()
    terminal, now = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    with open(ours, "rb"), open(theirs, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with Progress("reading t", quiet=False, total=10, clock=lambda: now[0]) as progress:
            progress.advance(1)
            assert terminal.getvalue() == ""
            now[0] = 1.0
            progress.advance(1)
            assert "reading t" in terminal.getvalue()


def test_O03_cat_verify_compact_and_gc_show_progress_on_stderr_alone(url: str, tmp_path: Path) -> None:
    with logstore.open(url) as store:
        for _ in range(12):
            store.create_topic("t", exist_ok=True).append(b"x")
    for words, expected in (
        (["cat", "t"], "reading t"),
        (["verify"], "left"),
        (["compact", "t"], "compacting t"),
        (["gc", "--grace", "0"], "12 objects"),
    ):
        with open(tmp_path / "out", "wb") as piped:
            code, shown = at_a_terminal(words, stdout=piped.fileno())
        assert code == 0
        assert expected in ESCAPE.sub("", shown), words
        assert b"\x1b" not in (tmp_path / "out").read_bytes()


def test_O03_what_is_printed_beside_progress_has_lines_of_its_own(url: str) -> None:
    """stdout and stderr are one terminal here: what stays begins where the line of progress was, and that is gone."""
    with logstore.open(url) as store:
        for _ in range(12):
            store.create_topic("t", exist_ok=True).append(b"x")
    for words, expected in (
        (["verify"], "t/0: 12 records read"),
        (["compact", "t"], "t/0: merged 12 segments"),
    ):
        _, shown = at_a_terminal(words)
        before = shown[: shown.index(expected)]
        assert before.endswith(ERASED), (words, before[-40:])


def test_a_question_is_asked_at_a_terminal_and_anything_but_yes_is_no(url: str) -> None:
    main(["create", "t"])
    code, shown = at_a_terminal(["delete", "t"], typed=b"n\n")
    assert code == 2
    assert "this deletes every record of t. Go on? [y/N]" in shown
    assert "nothing was done" in shown
    code, _ = at_a_terminal(["delete", "t"], typed=b"y\n")
    assert code == 0
    with logstore.open(url) as store:
        assert store.topics() == []


def test_a_shell_completes_commands_options_and_topics(url: str) -> None:
    with logstore.open(url) as store:
        store.create_topic("orders")
        store.create_topic("other")

    def completed(words: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-m", "logstore.cli"],
            env={
                **os.environ,
                "_LOGSTORE_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split(" ")) - 1),
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return {line.partition(",")[2] for line in done.stdout.splitlines()}

    assert completed("logstore de") == {"describe", "delete", "demo"}
    assert completed("logstore cat ord") == {"orders"}
    assert "--retention" in completed("logstore create --ret")
    for shell in ("bash", "zsh", "fish"):
        assert "_LOGSTORE_COMPLETE" in on_a_terminal(["completion", shell])


def test_a_shell_does_not_wait_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hangs(where: str, **_: object) -> logstore.Store:
        answers.wait(PATIENCE_S)
        raise logstore.StoreUnavailable("too late")

    monkeypatch.setattr("logstore.store.open", hangs)
    monkeypatch.setattr(frame, "COMPLETION_WAITS_S", 0.0)
    monkeypatch.setenv("LOGSTORE_URL", "s3://away")
    command = frame.Command("cat", import_module("logstore.cli.commands.records.cat"))
    try:
        assert ShellComplete(command, {}, "logstore", "_X").get_completions([], "ord") == []
    finally:
        answers.set()
