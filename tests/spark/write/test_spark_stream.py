"""S06, S07 through Spark itself: streams that are stopped, restarted and replayed, on `local[2]`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import logstore
from logstore.layout.paths import SPARK_PREFIX
from logstore.objects import open_url
from logstore.spark import lag
from tests.support.spark.material import numbered
from tests.support.spark.releases import HAS_ADMISSION_CONTROL, HAS_STREAM_WRITER, needs_stream_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeLog = Callable[..., str]


def stream(spark: SparkSession, where: str, **options: Any) -> DataFrame:
    source = spark.readStream.format("logstore")
    for name, value in ({"subscribe": "orders", "startingOffsets": "earliest"} | options).items():
        source = source.option(name, value)
    return source.load(where)


def run(
    frame: DataFrame, checkpoint: Path, target: str, form: str = "parquet", **options: str
) -> StreamingQuery:
    """Everything that is there, in as many micro-batches as the limit makes of it."""
    sink = frame.writeStream.format(form).option("checkpointLocation", str(checkpoint)).options(**options)
    query = sink.trigger(availableNow=True).start(target)
    query.awaitTermination()
    return query


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Take back Spark's note that a micro-batch is complete: it runs the batch again."""
    (checkpoint / "commits" / str(batch)).unlink()
    (checkpoint / "commits" / f".{batch}.crc").unlink()


def values(records: Iterator[logstore.Record]) -> list[bytes | None]:
    return [record.value for record in records]


def stored(where: str, topic: str, partitions: int) -> list[bytes | None]:
    with logstore.open(where, writer="read_only") as store:
        opened = store.topic(topic)
        return sorted(
            (value for n in range(partitions) for value in values(opened.partition(n).records())),
            key=lambda value: value or b"",
        )


def test_S13_S06_rate_limits_restarts_and_new_partitions_give_each_record_once(
    spark: SparkSession, make_log: MakeLog, tmp_path: Path
) -> None:
    where = make_log("orders", [numbered(0, 100)], [numbered(0, 50)])
    out, checkpoint = str(tmp_path / "out"), tmp_path / "checkpoint"

    def go() -> StreamingQuery:
        frame = stream(spark, where, maxOffsetsPerTrigger=60).select("partition", "offset", "value")
        return run(frame, checkpoint, out)

    query = go()
    progress = query.recentProgress
    batches = [one["numInputRows"] for one in progress if one["numInputRows"]]
    if HAS_ADMISSION_CONTROL:
        assert batches == [60, 60, 30]
        reached = progress[0]["sources"][0]
        assert json.loads(reached["endOffset"]) == {"orders": {"0": 40, "1": 20}}
        behind = lag(progress[0], where)  # S13
        assert behind is not None
        assert behind.behind == {("orders", 0): 60, ("orders", 1): 30}
        assert behind.seconds is not None
        assert behind.seconds > 0
        assert json.loads(reached["latestOffset"]) == {"orders": {"0": 100, "1": 50}}, "the lag is visible"
    else:
        assert batches == [150], "an older Spark takes all in one"

    # The query died after its last batch was written and before that was noted.
    forget_commit(checkpoint, len(batches) - 1)
    with logstore.open(where) as store:
        store.add_partitions("orders", 3)
    make_log("orders", [numbered(100, 120)], [], [numbered(0, 5)])
    go()
    if not HAS_ADMISSION_CONTROL:
        go()  # one run is one batch there, and that was the one to be run again
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in spark.read.parquet(out).collect())
    assert found == (
        [(0, n, b"v%d" % n) for n in range(120)]
        + [(1, n, b"v%d" % n) for n in range(50)]
        + [(2, n, b"v%d" % n) for n in range(5)]
    )


@needs_stream_writer
def test_S07_a_stream_into_a_topic_stores_each_batch_once_when_it_is_replayed(
    spark: SparkSession, make_log: MakeLog, tmp_path: Path
) -> None:
    where = make_log("orders", [numbered(0, 40)], [numbered(40, 80)])
    with logstore.open(where) as store:
        store.create_topic("copy", partitions=3)
    checkpoint = tmp_path / "checkpoint"

    def go() -> StreamingQuery:
        frame = stream(spark, where, maxOffsetsPerTrigger=50).select("key", "value", "timestamp")
        return run(frame, checkpoint, where, "logstore", topic="copy")

    go()
    expected = sorted(b"v%d" % n for n in range(80))
    assert stored(where, "copy", 3) == expected
    batches = 2 if HAS_ADMISSION_CONTROL else 1
    assert len(list((checkpoint / "commits").glob("[0-9]*"))) == batches

    forget_commit(checkpoint, batches - 1)  # it died between the append and the checkpoint
    go()
    assert stored(where, "copy", 3) == expected
    assert [info.key for info in open_url(where).list(SPARK_PREFIX) if "/staged/" in info.key] == []


@needs_stream_writer
def test_S07_a_stream_whose_checkpoint_was_copied_and_put_back_ends_and_loses_nothing_silently(
    spark: SparkSession, make_log: MakeLog, tmp_path: Path
) -> None:
    where = make_log("orders", [numbered(0, 10)])
    with logstore.open(where) as store:
        store.create_topic("copy")
    checkpoint, kept = tmp_path / "checkpoint", tmp_path / "kept"

    def go(first: int, stop: int, at: Path) -> None:
        make_log("orders", [numbered(first, stop)])
        run(stream(spark, where).select("key", "value"), at, where, "logstore", topic="copy")

    go(10, 20, checkpoint)
    shutil.copytree(checkpoint, kept)
    go(20, 30, checkpoint)
    go(30, 40, checkpoint)
    with pytest.raises(Exception, match="its batch 2 is stored, and this is batch 1"):
        go(40, 50, kept)  # with records 20 to 49 as its batch 1, of which the stored one has ten
    go(50, 60, checkpoint)
    assert stored(where, "copy", 1) == sorted(b"v%d" % n for n in range(60))
    ledgers = [info.key for info in open_url(where).list(SPARK_PREFIX) if info.key.endswith("/ledger")]
    runs = [json.loads(open_url(where).get(key))["runs"] for key in ledgers]
    assert [len(set(one)) for one in runs] == [4], "each start of the query is a run of its own"


@pytest.mark.skipif(HAS_STREAM_WRITER, reason="from Spark 4.1 on a stream can be written")
def test_S07_a_spark_that_cannot_write_streams_says_so_and_stores_nothing(
    spark: SparkSession, make_log: MakeLog, tmp_path: Path
) -> None:
    where = make_log("orders", [numbered(0, 40)])
    with logstore.open(where) as store:
        store.create_topic("copy")
    with pytest.raises(Exception, match=r"writing a stream to logstore needs Spark 4\.1 or newer"):
        run(stream(spark, where).select("value"), tmp_path / "checkpoint", where, "logstore", topic="copy")
    assert stored(where, "copy", 1) == []


def test_S07_a_task_that_fails_and_is_retried_leaves_one_copy_and_a_job_that_fails_leaves_none(
    spark: SparkSession, make_log: MakeLog
) -> None:
    where = make_log("copy", [], [])

    def flaky(attempts: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context: Any = TaskContext.get()
            yield from batches
            if context.partitionId() == 1 and context.attemptNumber() < attempts:
                raise RuntimeError("this attempt was meant to fail")

        return rows

    numbers = spark.range(0, 200, 1, 2).selectExpr("cast(id as string) key", "cast(id as string) value")

    def write(attempts: int) -> None:
        frame = numbers.mapInArrow(flaky(attempts), numbers.schema)
        frame.write.format("logstore").option("topic", "copy").mode("append").save(where)

    with pytest.raises(Exception, match="meant to fail"):
        write(attempts=99)
    assert stored(where, "copy", 2) == []
    assert list(open_url(where).list(SPARK_PREFIX)) == []
    write(attempts=2)
    assert stored(where, "copy", 2) == sorted(b"%d" % n for n in range(200))


def test_S07_a_job_that_names_its_transaction_is_stored_once_and_overwriting_is_refused(
    spark: SparkSession, make_log: MakeLog
) -> None:
    where = make_log("copy", [])
    frame = spark.sql(
        "select 'a' topic, 'k' key, 'v' value, array(named_struct('key', 'h', 'value', X'01')) headers"
    )
    frame = frame.replace("a", "copy", subset=["topic"])
    for _ in range(2):
        job = frame.write.format("logstore").option("txnAppId", "nightly").option("txnVersion", "7")
        job.mode("append").save(where)
    with logstore.open(where, writer="read_only") as store:
        (record,) = store.topic("copy").partition(0).records()
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"\x01"),))
    with pytest.raises(Exception, match="a log cannot be overwritten"):
        frame.write.format("logstore").mode("overwrite").save(where)


def test_S07_a_micro_batch_written_to_two_topics_under_one_number_is_stored_once_in_each(
    spark: SparkSession, make_log: MakeLog, tmp_path: Path
) -> None:
    where = make_log("orders", [numbered(0, 10)])
    make_log("one", [])
    make_log("two", [])
    checkpoint = tmp_path / "checkpoint"

    def store(rows: DataFrame, number: int) -> None:
        for topic in ("one", "two"):
            job = rows.select("key", "value").write.format("logstore").option("topic", topic)
            job.option("txnAppId", "both").option("txnVersion", number).mode("append").save(where)

    for _ in range(2):
        sink = stream(spark, where).writeStream.foreachBatch(store)
        query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        forget_commit(checkpoint, 0)
    for topic in ("one", "two"):
        assert stored(where, topic, 1) == sorted(b"v%d" % n for n in range(10))
