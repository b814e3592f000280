"""S01–S05, S08, S10 through Spark itself, on `local[2]`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from logstore.upsert import UpsertView
from tests.support.spark.material import START_MS, at, numbered, plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeLog = Callable[..., str]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def read(spark: SparkSession, where: str, **options: Any) -> DataFrame:
    source = spark.read.format("logstore")
    for name, value in ({"subscribe": "orders"} | options).items():
        source = source.option(name, value)
    return source.load(where)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two partitions of 3 × 100 records, the odd ones with a header."""
    where = (tmp_path_factory.mktemp("batch") / "log").as_uri()
    with logstore.open(where) as store:
        topic = store.create_topic("orders", partitions=3)
        for number in range(2):
            for first in range(0, 300, 100):
                records = [
                    record._replace(headers=(("n", record.value),)) if n % 2 else record
                    for n, record in enumerate(numbered(first, first + 100))
                ]
                topic.partition(number).append(records)
    return where


def test_S01_S02_the_source_is_found_by_itself_and_gives_the_kafka_row(spark: SparkSession, log: str) -> None:
    frame = read(spark, log, includeHeaders=True)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    found = sorted(frame.collect(), key=lambda row: (row.partition, row.offset))
    assert [(row.partition, row.offset) for row in found] == [(p, n) for p in (0, 1) for n in range(300)]
    for row in found:
        n = row.offset
        assert (bytes(row.value), bytes(row.key)) == (b"v%d" % n, b"k%d" % (n % 5))
        assert (row.topic, row.timestampType) == ("orders", 0)
        assert row.timestamp == at(START_MS + n).replace(tzinfo=None)
        headers = None if row.headers is None else [(h.key, bytes(h.value)) for h in row.headers]
        assert headers == ([("n", b"v%d" % n)] if n % 2 else None)


def test_S02_bad_options_reach_the_user_as_what_is_allowed(spark: SparkSession, log: str) -> None:
    with pytest.raises(Exception, match="Allowed: path, subscribe, subscribePattern"):
        read(spark, log, startOffset="earliest")
    with pytest.raises(Exception, match="there is no topic 'nothing'"):
        read(spark, log, subscribe="nothing").count()


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[Callable[[str], list[Any]]]:
    """Statements; what they create goes with the test."""
    yield lambda statement: spark.sql(statement).collect()
    for name in ("orders", "copies"):
        spark.catalog.dropTempView(name)
    spark.sql("DROP TABLE IF EXISTS kept")


def version_of_spark() -> tuple[int, ...]:
    import pyspark

    return tuple(int(part) for part in pyspark.__version__.split(".")[:2])


def test_S02_S07_sql_reads_and_writes_through_temporary_views(
    sql: Callable[[str], list[Any]], make_log: MakeLog
) -> None:
    where = make_log("orders", [numbered(0, 10)], [numbered(10, 15)])
    make_log("copies", [], [])
    starts = '{"orders": {"0": 4}}'
    sql(
        "CREATE TEMPORARY VIEW orders USING logstore "
        f"OPTIONS (path '{where}', subscribe 'orders', startingOffsets '{starts}')"
    )
    sql(
        "CREATE TEMPORARY VIEW copies (key BINARY, value BINARY, partition INT) USING logstore "
        f"OPTIONS (path '{where}', topic 'copies')"
    )
    sql("INSERT INTO copies SELECT key, value, 1 FROM orders WHERE partition = 0")
    # Spark 4.0 fills in no column that a statement leaves out.
    alone = "cast('alone' AS BINARY)"
    row = f"(value) VALUES ({alone})" if version_of_spark() >= (4, 1) else f"VALUES (null, {alone}, null)"
    sql(f"INSERT INTO copies {row}")
    with logstore.open(where, writer="read_only") as store:
        found = [[r.value for r in store.topic("copies").partition(n).records()] for n in range(2)]
    assert (found[0] or found[1][6:], found[1][:6]) == ([b"alone"], [b"v%d" % n for n in range(4, 10)])
    with pytest.raises(Exception, match="a log cannot be overwritten"):
        sql("INSERT OVERWRITE copies SELECT key, value, 1 FROM orders")


def test_S02_a_table_of_the_catalog_is_refused_because_spark_forgets_its_options(
    sql: Callable[[str], list[Any]], make_log: MakeLog
) -> None:
    where = make_log("orders", [numbered(0, 10)])
    with pytest.raises(Exception, match="Use CREATE TEMPORARY VIEW"):
        sql(f"CREATE TABLE kept USING logstore OPTIONS (path '{where}', subscribe 'orders')")
    # With columns of its own nobody asks us before the table is used.
    sql(f"CREATE TABLE kept (value BINARY) USING logstore OPTIONS (path '{where}', subscribe 'orders')")
    with pytest.raises(Exception, match="Use CREATE TEMPORARY VIEW"):
        sql("SELECT * FROM kept")


def test_S03_S05_a_range_read_by_many_tasks_gives_each_row_once_and_the_same_each_time(
    spark: SparkSession, log: str
) -> None:
    bounds = {
        "startingOffsets": json.dumps({"orders": {"0": 120}}),
        "endingOffsets": json.dumps({"orders": {"0": 280, "1": 10}}),
    }
    frame = read(
        spark, log, minPartitions=6, maxRecordsPerPartition=40, columns="partition,value,offset", **bounds
    )
    assert frame.rdd.getNumPartitions() >= 6
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect())
    assert found == [(0, n, b"v%d" % n) for n in range(120, 280)] + [(1, n, b"v%d" % n) for n in range(10)]
    assert sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect()) == found


@pytest.fixture
def push_down(spark: SparkSession) -> Iterator[None]:
    """The session's conf is on."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


FILTER = "partition = 1 and offset >= 95 and offset < 210 and timestamp < timestamp'2023-11-14 22:13:20.205'"


def test_S04_a_scan_with_a_condition_plans_only_what_that_leaves(spark: SparkSession, log: str) -> None:
    from logstore.spark import scan

    frame = scan(spark, log, subscribe="orders", where=FILTER)
    assert places(frame) == [(1, n) for n in range(95, 205)]
    assert frame.rdd.getNumPartitions() == 1
    narrow = scan(spark, log, subscribe="orders", where=FILTER, columns="value")
    assert narrow.columns == ["value"]
    assert narrow.count() == 110


def test_S12_two_queries_of_a_frame_and_a_union_of_two_filters_count_what_is_there(
    spark: SparkSession, log: str, push_down: None
) -> None:
    """Spark keeps the plan of the last filters that a source accepts: a source that accepts none is always right."""
    frame = read(spark, log)
    assert frame.where("partition = 0").count() == 300
    assert frame.count() == 600
    both = frame.where("partition = 0 and offset < 5").union(frame.where("partition = 1 and offset < 5"))
    assert places(both) == [(p, n) for p in (0, 1) for n in range(5)]
    frame.where(FILTER).cache().count()
    assert len(places(frame)) == 600
    with pytest.raises(Exception, match="it gave the second query of a frame the filters of the first"):
        read(spark, log, pushFilters=True)


def test_S13_the_plan_of_a_scan_names_topic_and_store(spark: SparkSession, log: str) -> None:
    from logstore.spark import scan

    shown = scan(spark, log, subscribe="orders")._jdf.queryExecution().toString()
    assert f"logstore orders in {log}" in shown


def test_S12_an_upsert_view_of_a_plain_topic_names_the_option_and_no_damage(
    spark: SparkSession, log: str
) -> None:
    with pytest.raises(Exception, match="Leave the option view out") as caught:
        read(spark, log, view="upsert").collect()
    assert "CorruptData" not in str(caught.value)


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def test_S10_an_empty_topic_is_an_empty_frame(spark: SparkSession, make_log: MakeLog) -> None:
    where = make_log("orders", [], [])
    assert read(spark, where).collect() == []


def test_S10_the_latest_view_drops_overwritten_and_deleted_keys(
    spark: SparkSession, make_log: MakeLog
) -> None:
    from logstore.spark import scan

    history = [
        [logstore.Record(b"1", b"a"), logstore.Record(b"1", b"b"), logstore.Record(b"1", b"c")],
        [logstore.Record(b"2", b"a"), logstore.Record(None, b"b")],
    ]
    where = make_log("orders", history)
    frame = read(spark, where, view="latest")
    found = {bytes(row.key): bytes(row.value) for row in frame.collect()}
    early = scan(spark, where, subscribe="orders", view="latest", where="offset < 3").collect()
    assert found == {b"a": b"2", b"c": b"1"}
    assert [bytes(row.key) for row in early] == [b"c"], "a filter must not bring an old value back"


def test_S10_an_upsert_views_changelog_is_read_as_changes(spark: SparkSession, where: str) -> None:
    with logstore.open(where) as store:
        view = UpsertView(store.create_topic("orders").partition(0), "writer-1")
        view.apply(b"k", b"one", order=1, time=1)
        view.advance(2)
        view.apply(b"k", b"two", order=2, time=2)
        view.apply(b"x", b"seen", order=2, time=2)
        view.advance(3)
        view.apply(b"k", None, order=3, time=3)
        view.advance(4)
    rows = read(spark, where, view="upsert").orderBy("offset").collect()
    as_bytes: Callable[[Any], bytes | None] = lambda value: None if value is None else bytes(value)  # noqa: E731
    assert sorted((row.time, as_bytes(row.key), as_bytes(row.old), as_bytes(row.value)) for row in rows) == [
        (1, b"k", None, b"one"),
        (2, b"k", b"one", b"two"),
        (2, b"x", None, b"seen"),
        (3, b"k", b"two", None),
    ]


def test_S08_a_damaged_segment_fails_the_query_with_the_objects_name(
    spark: SparkSession, make_log: MakeLog
) -> None:
    where = make_log("orders", [numbered(0, 100), numbered(100, 200)], compression="none", lanes=0)
    key = plan(where, subscribe="orders")[0].refs[1].key
    path = Path(where.removeprefix("file://")) / key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(Exception, match="CorruptData") as caught:
        read(spark, where).collect()
    assert key in str(caught.value)


def test_S05_a_topic_of_200_tiny_segments_is_read_by_one_task_for_each_partition(
    spark: SparkSession, where: str
) -> None:
    with logstore.open(where) as store:
        orders = store.create_topic("orders", partitions=2, segment_bytes=1)  # so maintenance merges none
        for number in (0, 1):
            for first in range(0, 300, 3):
                orders.partition(number).append(numbered(first, first + 3, prefix=b"%d:" % number))
    assert [len(split.refs) for split in plan(where, subscribe="orders")] == [100, 100]
    frame = read(spark, where)
    assert frame.rdd.getNumPartitions() == 2
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect())
    assert found == [(p, n, b"%d:%d" % (p, n)) for p in (0, 1) for n in range(300)]


def test_describe_and_scan_tell_the_same_as_the_source(spark: SparkSession, log: str) -> None:
    from logstore.spark import describe, scan

    (first, second, third) = sorted(describe(spark, log).collect(), key=lambda row: row.partition)
    assert (first.topic, first.low_offset, first.end_offset, first.writer) == ("orders", 0, 300, "exclusive")
    assert (second.segments, third.segments, third.end_offset, third.bytes) == (3, 0, 0, 0)
    assert first.min_timestamp == at(START_MS).replace(tzinfo=None)
    assert first.max_timestamp == at(START_MS + 299).replace(tzinfo=None)
    direct = scan(spark, log, subscribe="orders", includeHeaders=True, minPartitions=4)
    plain = read(spark, log, includeHeaders=True)
    assert direct.schema == plain.schema
    assert sorted(map(str, direct.collect())) == sorted(map(str, plain.collect()))


YEAR_10000_MS = 253_402_300_800_000


def test_describe_has_null_for_a_timestamp_that_no_python_could_collect(
    spark: SparkSession, make_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logstore.spark import describe

    def stamped(*times_ms: int) -> list[list[logstore.Record]]:
        return [[logstore.Record(b"v", None, (), ms)] for ms in times_ms]

    day_ms = 24 * 3600 * 1000
    where = make_log(
        "orders",
        stamped(START_MS, YEAR_10000_MS),
        stamped(YEAR_10000_MS - day_ms - 1, YEAR_10000_MS - 1),
        stamped((1 << 63) // 1000 - 1),
    )
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")  # where a year begins first, 14 hours before Greenwich
    time.tzset()
    try:
        frame = describe(spark, where).selectExpr("*", "cast(min_timestamp as long) first_s")
        rows = sorted(frame.collect(), key=lambda row: row.partition)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [row.end_offset for row in rows] == [2, 2, 1], "the partitions are told all the same"
    assert [row.first_s for row in rows] == [START_MS // 1000, (YEAR_10000_MS - day_ms) // 1000 - 1, None]
    assert [row.max_timestamp for row in rows] == [None, None, None]


def test_B13_a_compacted_topic_gives_what_is_left_of_it(spark: SparkSession, tmp_path: Path) -> None:
    where = (tmp_path / "log").as_uri()
    with logstore.open(where) as store:
        log = store.create_topic("orders", compact=True).partition(0)
        for first in range(0, 300, 50):
            log.append(numbered(first, first + 50))
        log._internal.maintenance.clean(log._internal.now_ms)
    with logstore.open(where, writer="read_only") as store:
        left = [(record.offset, record.value) for record in store.topic("orders").partition(0).records()]
    assert 0 < len(left) < 100
    frame = read(spark, where)
    assert sorted((row.offset, bytes(row.value)) for row in frame.collect()) == left
    assert frame.count() == len(left), "offsets alone are not told by the index"
    assert read(spark, where, minPartitions=4).count() == len(left)


def test_S05_partitions_that_lie_together_in_a_lane_are_read_by_one_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    from logstore.spark import scan

    where = (tmp_path / "lanes").as_uri()
    with logstore.open(where, lanes=1, ack="buffered", flush_interval=3600.0) as store:
        topic = store.create_topic("orders", partitions=12)
        for turn in range(4):
            for number in range(12):
                topic.partition(number).append(numbered(10 * turn, 10 * turn + 10))
            store.flush()
    expected = sorted((number, n, b"v%d" % n) for number in range(12) for n in range(40))
    for frame in (read(spark, where), scan(spark, where, subscribe="orders")):
        assert frame.rdd.getNumPartitions() == 1
        assert sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect()) == expected
        assert frame.where("partition = 7 and offset >= 38").count() == 2
    assert read(spark, where, columns="offset").count() == 480
    assert read(spark, where, minPartitions=12).rdd.getNumPartitions() >= 12
