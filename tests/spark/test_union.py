"""T05, T02: a topic and its table as one frame, without a jar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import logstore
from logstore.lake import Materializer
from logstore.spark import table
from tests.support.lake.tables import events, half_copied, target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_T05_T02_spark_reads_table_and_log_as_one(spark: SparkSession, tmp_path: Path) -> None:
    url, where = (tmp_path / "log").as_uri(), target("delta", tmp_path / "lake")
    with logstore.open(url) as store:
        topic = half_copied(store, where, schema="infer")
        frame = table(spark, url, "orders", lake=where)
        rows = frame.collect()
        assert len(rows) == len({(row.partition, row.offset) for row in rows}) == 80
        assert sorted(row.id for row in rows if row.id is not None) == list(range(79))
        assert [bytes(row.value_raw) for row in rows if row.value_raw is not None] == [b"no json"]
        assert {row.headers[0].key for row in rows if row.headers} == {"h"}
        topic.append_many(events(80, 90))
        assert frame.count() == 80, "a frame is a snapshot"
        other = target("iceberg", tmp_path / "other")
        Materializer(topic, other, schema="infer").run_once()
        assert table(spark, url, "orders", lake=other).count() == 90


def test_T05_spark_reads_what_is_asked_for_and_a_small_rest_in_one_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, where = (tmp_path / "log").as_uri(), target("delta", tmp_path / "lake")
    with logstore.open(url) as store:
        topic = store.create_topic("orders", partitions=8)
        price = {"amount": 1, "text": "x" * 100}
        topic.append_many(events(0, 40, price=price))
        Materializer(topic, where, schema="infer").run_once()
        assert table(spark, url, "orders", lake=where).rdd.getNumPartitions() < 8, "no rest, no task for it"
        topic.append_many(events(40, 80, price=price))
        frame = table(spark, url, "orders", lake=where, columns=["price.amount", "id"])
        assert frame.schema.simpleString() == "struct<price:struct<amount:bigint>,id:bigint>"
        rows = frame.collect()
        assert sorted((row.id, row.price.amount) for row in rows) == [(n, 1) for n in range(80)]
        rest = table(spark, url, "orders", lake=where, columns=["id"]).where("id >= 40")
        assert {row.task for row in rest.selectExpr("spark_partition_id() as task").collect()} == {
            rest.rdd.getNumPartitions() - 1
        }, "eight partitions of the log, and one task"
