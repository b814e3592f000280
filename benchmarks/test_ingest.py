"""Ingest from a local PostgreSQL into a local folder: row changes a second, and memory with one huge
transaction.

The ingester is a process of its own, so that its memory and CPU time are its own. What it stored is read
back and compared with the table before a figure counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from benchmarks.measure import Figures
from logstore.ingest.postgres import PostgresIngest, PostgresSettings
from tests.support.ingest.pg_server import PostgresServer, fresh_database, postgres_server
from tests.support.ingest.pg_story import session

pytestmark = pytest.mark.timeout(1200)
SUITE = "ingest"
ROOT = Path(__file__).parents[1]
MIB = 1 << 20


def ingest_once(dsn: str, store: str) -> dict[str, float]:
    """Catch up, in this process; says how long it took and what it needed."""
    settings = PostgresSettings(dsn=dsn, publication="bench", slot="bench", partitions=2)
    with PostgresIngest(lambda: logstore.open(store), settings) as ingest:
        began, cpu = time.perf_counter(), time.process_time()
        ingest.run(until_caught_up=True)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    status = Path("/proc/self/status").read_text().splitlines()
    peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": peak_kib / 1024}


def in_a_process(dsn: str, store: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.test_ingest", dsn, str(store)]
    ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=600)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def source(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with an empty table, already followed once: what comes next is the stream alone."""
    with fresh_database(server, "bench_" + request.node.name[-8:].lower()) as dsn:
        with session(dsn) as sql:
            sql.execute("create table t (id int primary key, v text, n int)")
        yield dsn


def stored_rows(store: Path) -> dict[int, tuple[str, int]]:
    """The topic, folded to the last state of each row; every record is looked at."""
    rows = {}
    with logstore.open(str(store), writer="read_only") as reader:
        topic = reader.topic("public.t")
        for partition in range(topic.partitions):
            for record in topic.partition(partition).records(visibility="durable"):
                after = json.loads(record.value)["after"]  # type: ignore[arg-type]
                rows[after["id"]] = (after["v"], after["n"])
    return rows


def table_rows(dsn: str) -> dict[int, tuple[str, int]]:
    with session(dsn) as sql:
        sql.execute("select id, v, n from t")
        return {number: (text, count) for number, text, count in sql.fetchall()}


def report(figures: Figures, what: str, changes: int, found: dict[str, float], target: float | None) -> None:
    cpu_us = found["cpu_seconds"] / changes * 1e6
    figures.add(SUITE, what, changes / found["seconds"], "changes/s", target=target, cpu_us_per_change=cpu_us)


def test_one_huge_transaction(source: str, tmp_path: Path, figures: Figures, quick: bool) -> None:
    rows, store = 100_000 if quick else 1_000_000, tmp_path / "store"
    in_a_process(source, store)
    with session(source) as sql:
        sql.execute("insert into t select i, md5(i::text), 0 from generate_series(1, %s) i", (rows,))
    found = in_a_process(source, store)
    assert stored_rows(store) == table_rows(source)
    report(figures, f"one transaction of {rows:,} rows", rows, found, 20_000)
    figures.add(
        SUITE,
        f"peak memory with {rows:,} rows at once",
        found["peak_mib"],
        "MiB",
        target=300,
        lower_is_better=True,
    )


def test_transactions_of_100_rows(source: str, tmp_path: Path, figures: Figures, quick: bool) -> None:
    count, store = 500 if quick else 2_000, tmp_path / "store"
    with session(source) as sql:
        sql.execute("insert into t select i, md5(i::text), 0 from generate_series(1, %s) i", (count * 100,))
        in_a_process(source, store)
        sql.execute(
            f"do $$ begin for i in 0..{count - 1} loop "
            "update t set n = n + 1 where id between i * 100 + 1 and i * 100 + 100; commit; end loop; end $$"
        )
    found = in_a_process(source, store)
    assert stored_rows(store) == table_rows(source)
    report(figures, "transactions of 100 updates", count * 100, found, 20_000)


def test_transactions_of_one_row(source: str, tmp_path: Path, figures: Figures, quick: bool) -> None:
    count, store = 5_000 if quick else 20_000, tmp_path / "store"
    with session(source) as sql:
        sql.execute("insert into t select i, md5(i::text), 0 from generate_series(1, %s) i", (count,))
        in_a_process(source, store)
        sql.execute(
            f"do $$ begin for i in 1..{count} loop update t set n = n + 1 where id = i; commit; end loop; end $$"
        )
    found = in_a_process(source, store)
    assert stored_rows(store) == table_rows(source)
    report(figures, "transactions of one update", count, found, None)


def test_snapshot(source: str, tmp_path: Path, figures: Figures, quick: bool) -> None:
    rows, store = 50_000 if quick else 300_000, tmp_path / "store"
    with session(source) as sql:
        sql.execute("insert into t select i, md5(i::text), 0 from generate_series(1, %s) i", (rows,))
    found = in_a_process(source, store)
    assert stored_rows(store) == table_rows(source)
    report(figures, f"initial snapshot of {rows:,} rows", rows, found, 20_000)


def main(*arguments: Any) -> None:
    print(json.dumps(ingest_once(*arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])
