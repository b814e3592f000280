"""Tables and Arrow against Spark's format: one topic of JSON events, one session, all candidates in turns.

Events look like those of GitHub's archive, about 600 bytes each. 95 % of the topic are in a typed Delta table, the
rest is in the log alone. What is compared are CPU seconds of all processes: the JVM, its Python workers, and this
one. Every answer is checked.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import logstore
from benchmarks.lake_child import SCHEMA
from benchmarks.measure import Figures, own_garbage_alone
from benchmarks.spark_session import cpu_of, session
from logstore.lake import Materializer, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUITE = "lake"
EVENTS = ("PushEvent", "PullRequestEvent", "IssuesEvent", "WatchEvent")
DDL = (
    "id string, type string, actor struct<id: bigint, login: string, url: string>, repo struct<id: bigint, name: string>, "
    "payload struct<push_id: bigint, size: bigint, message: string>, created_at timestamp"
)
AGGREGATE = "type, count(*) as events, sum(payload.size) as size, max(actor.id) as actor"


def event(n: int, rng: random.Random) -> logstore.Record:
    value = {
        "id": str(30_000_000_000 + n),
        "type": EVENTS[n % 4],
        "actor": {
            "id": n % 100_003,
            "login": f"user{n % 100_003}",
            "url": f"https://api.example.com/users/{n}",
        },
        "repo": {"id": n % 50_021, "name": f"org{n % 997}/repo{n % 50_021}"},
        "payload": {"push_id": n, "size": n % 20, "message": f"{rng.getrandbits(1200):0300x}"},
        "created_at": f"2026-01-01T{n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}Z",
    }
    return logstore.Record(json.dumps(value).encode(), b"org%d" % (n % 997), (), 1_767_225_600_000 + n)


class Bench:
    """The topic, opened to read, and the table that has most of it."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self.spark, self.rows = spark, rows
        self.url = (folder / "log").as_uri()
        self.lake = f"delta:{folder / 'table'}"
        rng = random.Random(19)
        with logstore.open(self.url) as store:
            topic = store.create_topic("events", partitions=2)
            for first in range(0, rows, 5000):
                if first == rows * 95 // 100 // 5000 * 5000:
                    store.flush()
                    Materializer(topic, self.lake, schema=SCHEMA, hold_seconds=0).run_once()
                topic.append_many(
                    [event(n, rng) for n in range(first, min(first + 5000, rows))], ack="buffered"
                )
            store.flush()
        self.expected = sorted(
            (kind, len(numbers), sum(n % 20 for n in numbers), max(n % 100_003 for n in numbers))
            for at, kind in enumerate(EVENTS)
            for numbers in [range(at, rows, 4)]
        )

    def read(self, **options: Any) -> DataFrame:
        return self.spark.read.format("logstore").options(subscribe="events", **options).load(self.url)

    def cpu_in_turns(self, candidates: dict[str, Callable[[], None]], turns: int) -> dict[str, float]:
        """The least CPU seconds of each, of all processes. A turn in which one of Spark's workers ended is left out."""
        found: dict[str, list[float]] = {name: [] for name in candidates}
        for run in candidates.values():
            self._warm_up(run, turns)
        with own_garbage_alone():
            for _ in range(turns):
                for name, run in candidates.items():
                    if (spent := self._cpu_of(run)) is not None:
                        found[name].append(spent)
        return {name: min(seconds) for name, seconds in found.items() if seconds}

    def _warm_up(self, run: Callable[[], None], turns: int) -> None:
        """Until the JVM's compiler has done with it: as often as needed, up to a limit, until it gets no cheaper. A query
        that takes a second needs a dozen runs for that, one that takes six needs three; the same number of runs for both
        would compare compiled code with code that is not."""
        best, idle = math.inf, 0
        for _ in range(4 * turns):
            spent = self._cpu_of(run)
            if spent is None:
                continue
            idle = 0 if spent < 0.95 * best else idle + 1
            best = min(best, spent)
            if idle == 2:
                return

    def _cpu_of(self, run: Callable[[], None]) -> float | None:
        before, own = cpu_of(self.spark), time.process_time()
        run()
        mine = time.process_time() - own
        spent = cpu_of(self.spark).since(before)
        return None if spent is None else spent + mine

    def judged(self, frame: DataFrame) -> None:
        frame.createOrReplaceTempView("judged")
        rows = self.spark.sql(f"select {AGGREGATE} from judged group by type").collect()
        assert sorted(tuple(row) for row in rows) == self.expected

    def judged_by_duckdb(self, query: str, stream: pa.RecordBatchReader) -> None:
        import duckdb

        found = duckdb.sql(query)
        assert found is not None
        assert sorted(found.fetchall()) == self.expected


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, quick: bool) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("lake")
    with session(folder) as spark:
        yield Bench(spark, folder, 100_000 if quick else 750_000)


def test_arrow_duckdb_and_the_union_read_against_sparks_format(
    bench: Bench, figures: Figures, quick: bool
) -> None:
    from logstore.spark import table as spark_table

    with logstore.open(bench.url, writer="read_only", cache_bytes=1 << 20) as store:
        topic = store.topic("events")

        def arrow() -> None:
            assert sum(batch.num_rows for batch in topic.arrow_batches()) == bench.rows

        def parsed() -> None:
            frame = bench.read(columns="value").selectExpr(f"from_json(cast(value as string), '{DDL}') v")
            bench.judged(frame.select("v.*"))

        def union_read() -> None:
            bench.judged(spark_table(bench.spark, bench.url, "events", lake=bench.lake))

        def union_of_columns() -> None:
            wanted = ["type", "payload.size", "actor.id"]
            bench.judged(spark_table(bench.spark, bench.url, "events", lake=bench.lake, columns=wanted))

        def duckdb_json() -> None:
            fields = """{"type": "VARCHAR", "payload": {"size": "BIGINT"}, "actor": {"id": "BIGINT"}}"""
            bench.judged_by_duckdb(
                "select v.type, count(*), sum(v.payload.size), max(v.actor.id) from "
                f"(select from_json(decode(value), '{fields}') v from stream) group by 1",
                topic.arrow_batches(["value"]),
            )

        def duckdb_union() -> None:
            bench.judged_by_duckdb(
                f"select {AGGREGATE} from stream group by type",
                table(topic, bench.lake, ["type", "payload", "actor"]),
            )

        spent = bench.cpu_in_turns(
            {
                "format, whole rows": lambda: bench.read().write.format("noop").mode("overwrite").save(),
                "arrow_batches": arrow,
                "format, JSON aggregate": parsed,
                "union, JSON aggregate": union_read,
                "union of columns, JSON aggregate": union_of_columns,
                "DuckDB, JSON aggregate": duckdb_json,
                "DuckDB, union": duckdb_union,
                "count": lambda: _is(bench.read().count(), bench.rows),
                "count, columns=offset": lambda: _is(bench.read(columns="offset").count(), bench.rows),
            },
            2 if quick else 5,
        )
    details: dict[str, Any] = {name: round(seconds, 3) for name, seconds in spent.items()} | {
        "rows": bench.rows
    }
    scan = spent["format, whole rows"] / spent["arrow_batches"]
    figures.add(SUITE, "arrow_batches, full scan, to Spark's format", scan, "×", target=4, **details)
    one = spent["format, JSON aggregate"] / spent["DuckDB, JSON aggregate"]
    figures.add(SUITE, "JSON aggregate by DuckDB over arrow_batches, to Spark's format", one, "×", target=3)
    # The format is told to read `value` alone; so the union is told its columns. Without that it is the second figure.
    union = spent["format, JSON aggregate"] / spent["union of columns, JSON aggregate"]
    figures.add(
        SUITE,
        "JSON aggregate, 95 % in a typed table, union read with columns=, to the format",
        union,
        "×",
        target=8,
    )
    whole = spent["format, JSON aggregate"] / spent["union, JSON aggregate"]
    figures.add(SUITE, "the same union read without columns=, to the format", whole, "×")
    both = spent["format, JSON aggregate"] / spent["DuckDB, union"]
    figures.add(SUITE, "the same union read by DuckDB, to Spark's format", both, "×")
    count = spent["count, columns=offset"] / spent["count"]
    figures.add(SUITE, "count() of a frame without options, to columns=offset", count, "×")


def _is(found: int, expected: int) -> None:
    assert found == expected


def test_what_it_costs_to_fill_a_table(bench: Bench, figures: Figures, tmp_path: Path, quick: bool) -> None:
    """In a process of its own, so that its memory is its own. The first round imports and is left out of the CPU."""
    command = [sys.executable, "-m", "benchmarks.lake_child", bench.url, str(tmp_path), "2" if quick else "4"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["rows"] == bench.rows
    rate = bench.rows / min(found["cpu"][1:])
    figures.add(SUITE, "materialize JSON, typed, rows a CPU second", rate, "rows/s", target=150_000)
    figures.add(
        SUITE,
        "materialize JSON, typed, peak of the process",
        found["peak"],
        "MiB",
        target=300,
        lower_is_better=True,
    )
