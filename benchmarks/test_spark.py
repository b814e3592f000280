"""Spark: scans, counts, streams and writes against Parquet in the same session, on the same rows, in turns.

4 M rows of a 16-byte key and a 200-byte value that zstd makes about half as large. The Parquet file holds the very rows that
the source gives, all seven columns, with zstd too. Every candidate's answer is checked.
"""

from __future__ import annotations

import json
import statistics
import sys
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import logstore
from benchmarks.measure import Figures, in_turns
from benchmarks.spark_session import cpu_of, session
from logstore.arrow.scan.batch_joiner import CHUNK_ROWS
from logstore.arrow.scan.columns import BASE_COLUMNS, arrow_schema
from logstore.format.stored.manifest import Manifest, SegmentTable
from logstore.format.stored.segment import WriterMode
from logstore.layout.catalog import Catalog
from logstore.layout.paths import PartitionPaths
from logstore.objects import open_url
from logstore.spark import LogStoreDataSource
from logstore.spark.options.read_options import read_options
from logstore.spark.options.schema import spark_schema
from logstore.spark.read.batch import LogReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SUITE = "spark"
READY_TASKS = 8  # as many as the topic is read in
VALUE = "concat(sha2(cast(id as string), 512), sha2(cast(id + 1 as string), 256), '01234567')"
# This module's classes go to Spark's workers by value: those have no reason to find it on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class TupleReader(LogReader):
    """The same splits and the same decoding, handed to Spark row by row."""

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class TupleSource(LogStoreDataSource):
    @classmethod
    def name(cls) -> str:
        return "logstore_tuples"

    def reader(self, schema: StructType) -> TupleReader:
        return TupleReader(read_options(self.options, streaming=False), schema)


class ReadyReader(DataSourceReader):
    """Does nothing but hand over: the same Arrow batch again and again. What is left is Spark's."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(READY_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = range(CHUNK_ROWS)
        columns = [
            [b"%016d" % n for n in rows],
            [b"%0200d" % n for n in rows],
            ["rows"] * CHUNK_ROWS,
            [partition.value % 4] * CHUNK_ROWS,
            list(rows),
            [datetime(2026, 1, 1, tzinfo=UTC)] * CHUNK_ROWS,
            [0] * CHUNK_ROWS,
        ]
        schema = arrow_schema(BASE_COLUMNS)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        left = self._rows // READY_TASKS
        while left:
            yield batch.slice(0, left)
            left -= min(left, CHUNK_ROWS)


class ReadySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return spark_schema(BASE_COLUMNS)

    def reader(self, schema: StructType) -> ReadyReader:
        return ReadyReader(int(self.options["rows"]))


class Bench:
    """The same rows as Parquet and as a topic of four partitions."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self.spark, self.folder, self.rows = spark, folder, rows
        self.log = (folder / "log").as_uri()
        self.parquet = str(folder / "rows.parquet")
        with logstore.open(self.log) as store:
            store.create_topic("rows", partitions=4)
        made = spark.range(0, rows, 1, 8).selectExpr(
            "cast(lpad(id, 16, '0') as binary) key", f"cast({VALUE} as binary) value"
        )
        made.write.format("logstore").option("topic", "rows").mode("append").save(self.log)
        self.read().write.parquet(self.parquet)
        self.written = 0

    def from_parquet(self) -> DataFrame:
        return self.spark.read.parquet(self.parquet)

    def read(self, topic: str = "rows", form: str = "logstore", **options: Any) -> DataFrame:
        return self.spark.read.format(form).options(subscribe=topic, **options).load(self.log)

    def write_log(self, topic: str) -> None:
        frame = self.from_parquet().select("key", "value")
        frame.write.format("logstore").option("topic", topic).mode("append").save(self.log)

    def new_name(self) -> str:
        self.written += 1
        return f"written-{self.written}"


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, quick: bool) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("spark")
    with session(folder) as spark:
        spark.dataSource.register(TupleSource)
        spark.dataSource.register(ReadySource)
        yield Bench(spark, folder, 1_000_000 if quick else 4_000_000)


def turns(quick: bool) -> int:
    return 2 if quick else 3


def test_a_full_scan_against_parquet_and_against_tuples(bench: Bench, figures: Figures, quick: bool) -> None:
    from logstore.spark import scan

    ready = bench.spark.read.format("ready").option("rows", bench.rows).load()
    assert bench.read().count() == ready.count() == bench.rows
    ours, parquet, direct = bench.read(), bench.from_parquet(), scan(bench.spark, bench.log, subscribe="rows")
    cpu: dict[str, list[float]] = {"parquet": [], "logstore": [], "scan": [], "ready": []}

    def counted(name: str, frame: DataFrame) -> None:
        before = cpu_of(bench.spark)
        noop(frame)
        spent = cpu_of(bench.spark).since(before)
        if spent is not None:
            cpu[name].append(spent)

    candidates: dict[str, Callable[[], None]] = {
        "parquet": lambda: counted("parquet", parquet),
        "logstore": lambda: counted("logstore", ours),
        "logstore.spark.scan": lambda: counted("scan", direct),
        "ready": lambda: counted("ready", ready),
        "key and value": lambda: noop(bench.read(columns="key,value")),
        "key and value of parquet": lambda: noop(parquet.select("key", "value")),
    }
    for _ in range(
        1 if quick else 4
    ):  # until the JIT has done with both, which takes it longer on a busy machine
        noop(parquet)
        noop(ours)
    times = in_turns(candidates, turns(quick) + 1)
    # Some of the rows are enough to see what a row costs, and do not take minutes.
    some = {"endingOffsets": json.dumps({"rows": {str(n): 200_000 for n in range(4)}})}
    slow = in_turns(
        {
            "tuples": lambda: noop(bench.read(form="logstore_tuples", **some)),
            "arrow": lambda: noop(bench.read(**some)),
        },
        turns=1 if quick else 3,
    )
    best = {name: found.best for name, found in times.items()}
    rate = bench.rows / best["logstore"]
    details: dict[str, Any] = {"rows_per_second": rate, "seconds": best}
    figures.add(
        SUITE, "full scan, against Parquet, on the clock", best["parquet"] / best["logstore"], "×", **details
    )
    # A quiet machine's cores are full either way, and both say the same; on a busy one the clock says who has more threads.
    # The best turn: the JVM compiles and collects garbage in whose turn it happens to fall.
    spent: dict[str, Any] = {name: min(seconds) for name, seconds in cpu.items()}
    in_cpu = "against Parquet, in CPU seconds of all processes"
    full = spent["parquet"] / spent["logstore"]
    figures.add(SUITE, f"full scan, {in_cpu}", full, "×", target=0.75, **spent)
    limit = spent["parquet"] / spent["ready"]
    figures.add(SUITE, f"a Python source that only hands over ready batches, {in_cpu}", limit, "×")
    direct_ratio = spent["parquet"] / spent["scan"]
    figures.add(SUITE, f"full scan with logstore.spark.scan, {in_cpu}", direct_ratio, "×", target=0.75)
    two = best["key and value of parquet"] / best["key and value"]
    figures.add(SUITE, "columns=key,value, against Parquet with its pruning", two, "×")
    figures.add(SUITE, "full scan, against tuples", slow["tuples"].best / slow["arrow"].best, "×", target=5)


def test_whose_cpu_a_full_scan_takes(bench: Bench, figures: Figures) -> None:
    frame = bench.read()
    noop(frame)
    before = cpu_of(bench.spark)
    noop(frame)
    after = cpu_of(bench.spark)
    jvm, python = after.jvm - before.jvm, after.python - before.python
    figures.add(
        SUITE, "full scan, the JVM's share of the CPU", jvm / (jvm + python), "of 1", jvm=jvm, python=python
    )


def test_one_column_and_a_count(bench: Bench, figures: Figures, quick: bool) -> None:
    lengths = "sum(length(value)) n"
    expected = bench.rows * 200

    def total(frame: DataFrame) -> None:
        row = frame.selectExpr(lengths).first()
        assert row is not None
        assert row.n == expected

    def count() -> None:
        assert bench.read(columns="offset").count() == bench.rows

    times = in_turns(
        {
            "parquet": lambda: total(bench.from_parquet()),
            "logstore": lambda: total(bench.read(columns="value")),
            "count": count,
            "full": lambda: noop(bench.read()),
        },
        turns(quick),
    )
    best = {name: found.best for name, found in times.items()}
    figures.add(
        SUITE, "sum(length(value)), against Parquet", best["parquet"] / best["logstore"], "×", target=0.5
    )
    figures.add(SUITE, "count, against the full scan", best["full"] / best["count"], "×", target=2)


def test_small_segments_against_a_large_one(bench: Bench, figures: Figures, quick: bool) -> None:
    records = [logstore.Record(b"%0200d" % n, b"%016d" % n) for n in range(250)]
    count = 250 if quick else 1000  # 1,000 of 64 KiB are 64 MiB
    with logstore.open(
        bench.log, compression="none", flush_bytes=1 << 30, max_buffered_bytes=1 << 30
    ) as store:
        small = store.create_topic("small", segment_bytes=64 << 10).partition(0)
        large = store.create_topic("large", segment_bytes=1 << 30).partition(0)
        large.append(records * count)
        for _ in range(count):
            small.append(records)
    times = in_turns(
        {
            "small": lambda: noop(bench.read("small", minPartitions=2)),
            "large": lambda: noop(bench.read("large", minPartitions=2)),
        },
        turns(quick) + 2,
    )
    assert bench.read("small").count() == bench.read("large").count() == 250 * count
    ratio = times["large"].best / times["small"].best
    figures.add(SUITE, f"{count} segments of 64 KiB, against a single one", ratio, "×", target=0.6)


def stream(bench: Bench, topic: str, limit: int) -> Any:
    """The whole topic, in micro-batches of `limit` records."""
    source = bench.spark.readStream.format("logstore").option("maxOffsetsPerTrigger", limit)
    rows = source.option("subscribe", topic).option("startingOffsets", "earliest").load(bench.log)
    sink = rows.writeStream.format("noop").option("checkpointLocation", str(bench.folder / bench.new_name()))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_a_stream_against_a_batch_scan(bench: Bench, figures: Figures, quick: bool) -> None:
    """Sustained: the first micro-batch, which starts workers and compiles, is left out, as the first scan is."""
    batches = 3 if quick else 5
    rates: list[float] = []

    def run() -> None:
        progress = stream(bench, "rows", -(-bench.rows // batches)).recentProgress
        later = [one for one in progress if one["numInputRows"]][1:]
        assert len(later) == batches - 1
        spent_ms = sum(one["durationMs"]["triggerExecution"] for one in later)
        rates.append(sum(one["numInputRows"] for one in later) / spent_ms * 1000)

    times = in_turns({"stream": run, "batch": lambda: noop(bench.read())}, turns(quick) + 2)
    ratio = max(rates) * times["batch"].best / bench.rows
    figures.add(
        SUITE,
        f"stream, {bench.rows // batches:,} rows a trigger, against the batch scan",
        ratio,
        "×",
        target=0.6,
    )


def test_what_a_trigger_costs(bench: Bench, figures: Figures) -> None:
    with logstore.open(bench.log) as store:
        store.create_topic("tiny").partition(0).append([b"%d" % n for n in range(30)])
    progress = [one for one in stream(bench, "tiny", 1).recentProgress if one["numInputRows"] == 1]
    assert len(progress) == 30
    spent = [one["durationMs"] for one in progress[5:]]  # the first ones start workers and compile
    median = statistics.median(one["triggerExecution"] for one in spent)
    ours = statistics.median(one.get("latestOffset", 0) + one.get("getBatch", 0) for one in spent)
    figures.add(
        SUITE, "a micro-batch of one record", median, "ms", target=400, lower_is_better=True, planning=ours
    )


def test_planning_ten_thousand_partitions(tmp_path: Path, figures: Figures, quick: bool) -> None:
    """What the driver does before the first task starts: manifests are read and cut into splits, splits are pickled.

    Nothing of the records is there: planning must not miss it.
    """
    partitions, segments = 10_000, 10
    url = (tmp_path / "wide").as_uri()
    topic = Catalog(open_url(url)).create("wide", partitions, {}, False, "0" * 16)
    for number in range(partitions):
        manifest = tmp_path / "wide" / PartitionPaths("wide", topic.incarnation, number).manifest
        manifest.parent.mkdir(parents=True)
        manifest.write_bytes(manifest_of(segments))
    reader = LogReader(
        read_options({"path": url, "subscribe": "wide"}, streaming=False), spark_schema(BASE_COLUMNS)
    )
    sent: list[bytes] = []

    def plan() -> None:
        sent[:] = map(cloudpickle.dumps, reader.partitions())

    spent = in_turns({"plan": plan}, 1 if quick else 2)["plan"]
    assert len(sent) == partitions
    assert sum(len(cloudpickle.loads(one).value.refs) for one in sent) == partitions * segments
    sent.clear()
    tracemalloc.start()
    planned = reader.partitions()
    held, peak = tracemalloc.get_traced_memory()
    assert len(planned) == partitions
    tracemalloc.stop()
    name = f"planning {partitions:,} partitions of {segments} segments"
    figures.add(
        SUITE, name, spent.best, "s", target=5, lower_is_better=True, cpu_seconds=min(spent.cpu_seconds)
    )
    each = peak / (partitions * segments)
    figures.add(
        SUITE, f"{name}, memory for each segment", each, "bytes", target=2000, lower_is_better=True, held=held
    )


def manifest_of(segments: int) -> bytes:
    """Of a partition whose segments hold 1,000 records and 1 MiB each."""
    numbers = range(segments)
    columns = [
        numbers,
        numbers,
        (n * 1000 for n in numbers),
        (n * 1000 + 1000 for n in numbers),
        (1 << 20 for _ in numbers),
        numbers,
        numbers,
    ]
    table = SegmentTable(*(array("q", column) for column in columns))  # type: ignore[arg-type]
    end = segments * 1000
    return Manifest(1, segments, 1, WriterMode.EXCLUSIVE, 0, end, end, -1, table).pack()


def test_writes_against_parquet(bench: Bench, figures: Figures, quick: bool) -> None:
    def to_log() -> None:
        name = bench.new_name()
        with logstore.open(bench.log) as store:
            store.create_topic(name, partitions=4)
        bench.write_log(name)
        assert bench.read(name, columns="offset").count() == bench.rows

    times = in_turns(
        {
            "parquet": lambda: (
                bench.from_parquet()
                .select("key", "value")
                .write.parquet(str(bench.folder / bench.new_name()))
            ),
            "logstore": to_log,
        },
        turns(quick),
    )
    ratio = times["parquet"].best / times["logstore"].best
    figures.add(
        SUITE,
        "write, against Parquet",
        ratio,
        "×",
        target=0.5,
        rows_per_second=bench.rows / times["logstore"].best,
    )
