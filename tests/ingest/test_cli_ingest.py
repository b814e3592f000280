"""`logstore ingest postgres`: what it prints, how it ends, and what it says when the command line is wrong."""

from __future__ import annotations

import argparse
import io
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from logstore.cli import main
from logstore.cli.commands.copies import ingest
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.usage import UsageError
from logstore.ingest.postgres.slot import connect
from tests.support.ingest.pg_story import events, session
from tests.support.ingest.pg_waits import confirmed_of
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).parents[2]
CHILD = (
    "import argparse, sys; from logstore.cli.commands.copies import ingest; from logstore.cli.terminal import output; "
    "parser = argparse.ArgumentParser(); parser.add_argument('--store'); ingest.add_arguments(parser); "
    "sys.exit(ingest.run(parser.parse_args(), output.Output(sys.stdout, True)))"
)


def command(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store")
    ingest.add_arguments(parser)
    return parser.parse_args(["postgres", *arguments])


def test_once_catches_up_prints_a_status_line_and_ends_with_0(dsn: str, tmp_path: Path) -> None:
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, a int, b int)")
        sql.execute("alter table t replica identity full")
        sql.execute("insert into t select i, i, i from generate_series(1, 10) i")
    store, out = str(tmp_path / "store"), Output(io.StringIO(), True)
    given = ["--store", store, "--dsn", dsn, "--publication", "p", "--slot", "cli1", "--once"]
    assert ingest.run(command(*given, "--key", "public.t=a,b", "--topic-prefix", "shop."), out) == 0
    assert sorted(tuple(event["key"].values()) for event in events(store, "shop.public.t")) == [
        (n, n) for n in range(1, 11)
    ]
    last = json.loads(out.stream.getvalue().splitlines()[-1])  # type: ignore[attr-defined]
    assert (last["records"], last["transactions"], last["unflushed_bytes"], last["held_by"]) == (
        10,
        1,
        0,
        None,
    )
    with connect(dsn) as connection:
        assert confirmed_of(connection, "cli1") >= last["confirmed"] > 0


def test_SIGTERM_ends_it_in_order_and_the_status_lines_show_the_lag(dsn: str, tmp_path: Path) -> None:
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t select generate_series(1, 10)")
    store = str(tmp_path / "store")
    given = ["postgres", "--store", store, "--dsn", dsn, "--publication", "p", "--slot", "cli2"]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *given], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(60, child.kill)
    watchdog.start()
    try:
        lines = []
        for line in child.stdout:  # type: ignore[union-attr]
            lines.append(json.loads(line))
            if lines[-1]["phase"] == "streaming" and lines[-1]["lag_bytes"] == 0:
                break
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_S) == 0
    finally:
        watchdog.cancel()
        child.stdout.close()  # type: ignore[union-attr]
    assert lines[-1]["records"] == 10
    assert len(events(store, "public.t")) == 10


def test_what_is_missing_or_wrong_is_said(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    store, out = ["--store", str(tmp_path / "store")], Output(io.StringIO(), True)
    with pytest.raises(UsageError, match="--dsn, or set DATABASE_URL"):
        ingest.run(command(*store, "--publication", "p"), out)
    with pytest.raises(UsageError, match=r"SCHEMA\.TABLE=COLUMN"):
        ingest.run(command(*store, "--dsn", dsn, "--publication", "p", "--key", "t"), out)
    with pytest.raises(UsageError, match="--store URL"):
        ingest.run(command("--dsn", dsn, "--publication", "p"), out)
    nowhere = "host=127.0.0.1 port=1 user=u password=topsecret dbname=d"
    assert ingest.run(command(*store, "--dsn", nowhere, "--publication", "p"), out) == 1
    said = capsys.readouterr().err
    assert "PostgreSQL: connection" in said
    assert "topsecret" not in said


def test_a_chosen_key_that_the_table_does_not_have_is_said_and_is_no_crash(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
    given = ["--store", str(tmp_path / "store"), "--dsn", dsn, "--publication", "p", "--key", "public.t=nope"]
    assert main(["ingest", "postgres", *given, "--once"]) == 1
    assert "InvalidRecord: the key of public.t names a column 'nope'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--partitions", "0"], "partitions=0: a number from 1"),
        (["--topic-prefix", "cdc/"], "topic_prefix='cdc/'"),
        (["--slot", "My-Slot"], "slot='My-Slot'"),
        (["--table", "orders"], "'orders' is not of the form schema.table"),
    ],
)
def test_a_setting_that_no_topic_could_have_is_refused_before_anything_is_asked(
    wrong: list[str], said: str, tmp_path: Path
) -> None:
    """The first row would fail otherwise, after the publication was made and the snapshot had begun."""
    given = ["--store", str(tmp_path / "store"), "--dsn", "host=127.0.0.1 port=1", "--publication", "p"]
    with pytest.raises(UsageError, match=said):
        ingest.run(command(*given, *wrong), Output(io.StringIO(), True))
    assert not (tmp_path / "store").exists()
