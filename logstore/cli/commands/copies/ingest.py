"""Follow a PostgreSQL database: its tables become topics.

The first run reads every published row, then the stream of changes goes on from exactly there. The slot is confirmed as far
as all of it is stored. Ends in order on Ctrl-C or SIGTERM, and goes on where it was the next time. The status line says how
far the slot lags, and what holds it back.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from logstore.cli.places import open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import size
from logstore.cli.terminal.usage import UsageError
from logstore.errors import needs

if TYPE_CHECKING:
    from logstore.ingest.postgres import PostgresIngest, PostgresSettings, Status

_LIVE_S = 1.0
_PLAIN_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", choices=("postgres",), help="where from")
    parser.add_argument(
        "--dsn",
        default=os.environ.get("DATABASE_URL"),
        help="libpq's keywords or URL, or DATABASE_URL; a password is better kept in PGPASSWORD or ~/.pgpass",
    )
    parser.add_argument("--publication", required=True, help="created if it is missing")
    parser.add_argument("--slot", default="logstore", help="the replication slot (default: logstore)")
    parser.add_argument(
        "--table",
        action="append",
        metavar="SCHEMA.TABLE",
        help="for a publication that is created: only these (default: all tables)",
    )
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="SCHEMA.TABLE=COLUMN,…",
        help="what identifies a row, where the replica identity is not meant",
    )
    parser.add_argument("--topic-prefix", default="", help="before schema.table in the topics' names")
    parser.add_argument("--partitions", type=int, default=1, help="of topics that are created (default: 1)")
    parser.add_argument(
        "--max-batch-bytes", type=size, metavar="SIZE", help="the largest row (default: the store's, 1MiB)"
    )
    parser.add_argument("--tombstones", action="store_true", help="follow each delete with an empty value")
    parser.add_argument("--no-snapshot", action="store_true", help="only changes from now on")
    parser.add_argument("--once", action="store_true", help="end when what is committed now is stored")


def run(args: argparse.Namespace, out: Output) -> int:
    with needs("postgres"):
        import psycopg
    from logstore.ingest.postgres import PostgresIngest, PostgresSettings

    if not args.dsn:
        raise UsageError("which database? Pass --dsn, or set DATABASE_URL")
    try:
        settings = PostgresSettings(
            dsn=args.dsn,
            publication=args.publication,
            slot=args.slot,
            tables=tuple(args.table) if args.table else None,
            topic_prefix=args.topic_prefix,
            partitions=args.partitions,
            tombstones=args.tombstones,
            keys=dict(_key(text) for text in args.key),
            snapshot=not args.no_snapshot,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    store_settings = {} if args.max_batch_bytes is None else {"max_batch_bytes": args.max_batch_bytes}
    open_store(args, **store_settings).close()  # a wrong URL is an error now, not a reason to retry
    with PostgresIngest(lambda: open_store(args, **store_settings), settings) as ingest:
        line = StatusLine(ingest, settings, out)
        with _stopped_by_signals(ingest):
            line.start()
            try:
                try:
                    ingest.run(until_caught_up=args.once)
                finally:
                    line.stop()
            except psycopg.Error as error:  # said last, where it is seen
                print(f"logstore ingest: PostgreSQL: {str(error).strip()}", file=sys.stderr)
                return 1
    return 0


@contextmanager
def _stopped_by_signals(ingest: PostgresIngest) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: ingest.stop()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _key(text: str) -> tuple[str, list[str]]:
    table, found, columns = text.partition("=")
    if not found or not columns:
        raise ValueError(f"--key {text}: it is SCHEMA.TABLE=COLUMN,…")
    return table, columns.split(",")


class StatusLine:
    """Says every so often how it goes: in place on a terminal, a line each on anything else."""

    def __init__(self, ingest: PostgresIngest, settings: PostgresSettings, out: Output) -> None:
        self._ingest = ingest
        self._settings = settings
        self._out = out
        self._live = sys.stderr.isatty() and not out.as_json
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status line", daemon=True)
        self._seen = (0.0, 0)

    def start(self) -> None:
        self._seen = (time.monotonic(), 0)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(5)
        self._show(None)
        if self._live:
            print(file=sys.stderr)

    def _run(self) -> None:
        import psycopg

        from logstore.ingest.postgres.slot import connect

        while not self._ended.is_set():
            try:
                with connect(self._settings.dsn) as connection:
                    while not self._ended.wait(_LIVE_S if self._live or self._out.as_json else _PLAIN_S):
                        self._show(connection)
            except psycopg.Error:
                self._show(None)
                self._ended.wait(_LIVE_S)

    def _show(self, connection: Any) -> None:
        from logstore.ingest.postgres import slot_lag_bytes

        status = self._ingest.status()
        lag = None if connection is None else slot_lag_bytes(connection, self._settings.slot)
        now_s, (then_s, then) = time.monotonic(), self._seen
        rate = max(0, status.records - then) / max(now_s - then_s, 1e-6)
        self._seen = (now_s, status.records)
        if self._out.as_json:
            self._out.row(_fields(status, lag, rate), "")
            self._out.stream.flush()
            return
        behind = "" if lag is None else f"lag {lag:,} B · "
        text = f"{behind}{rate:,.0f} records/s · {status}"
        if self._live:
            # A line that wraps could not be written over: it would scroll.
            room = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[2K{text[:room]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def _fields(status: Status, lag: int | None, rate: float) -> dict[str, Any]:
    return {
        "phase": status.phase,
        "lag_bytes": lag,
        "records_per_second": round(rate),
        "records": status.records,
        "transactions": status.transactions,
        "unflushed_bytes": status.unstored_bytes,
        "confirmed": status.confirmed,
        "held_by": status.held_by,
    }
