"""Spark's own Kafka connector against the broker: `python spark_kafka.py HOST:PORT FOLDER JARS`. Batch write and read, and a
stream from one topic to another that is stopped and goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

address, folder, jars = sys.argv[1:4]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def step(name: str, run: Callable[[], None]) -> None:
    try:
        run()
        print(f"ok {name}", flush=True)
    except Exception as error:
        print(f"failed {name}: {str(error)[:300]}", flush=True)


def values(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def read(topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": address, "subscribe": topic}
    return spark.read.format("kafka").options(**options).option("startingOffsets", "earliest").load()


def write(first: int, stop: int) -> None:
    frame = spark.range(first, stop).selectExpr(
        "cast(id % 10 as string) as key", "cast(id as string) as value"
    )
    frame.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", "spark-in").save()


def stream() -> None:
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", "spark-in")
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        source.select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("topic", "spark-out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def batch() -> None:
    write(0, 1000)
    assert values(read("spark-in")) == list(range(1000)), "not what was written"


def stream_twice() -> None:
    stream()
    write(1000, 1500)
    stream()
    assert values(read("spark-out")) == list(range(1500)), "not each record once"


step("write and read a batch", batch)
step("a stream that is stopped and goes on", stream_twice)
spark.stop()
