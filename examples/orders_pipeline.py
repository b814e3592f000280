"""A pipeline: a service appends orders, Spark adds them up per minute, and the sums are a topic again.

    python examples/orders_pipeline.py [FOLDER]            everything
    python examples/orders_pipeline.py --batch [FOLDER]    the batch part alone: quicker, no streams

1. The service embeds logstore and appends orders. Each append is in the object store when it returns.
2. A stream reads the topic and keeps the minutes that are over as Parquet.
3. A second one writes every minute's running sum to the topic `sums`, keyed by minute. Each of its micro-batches is stored
   once, whatever is restarted.
4. A batch read with `view=latest` shows the last sum of each minute.

Run it again on the same folder: it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import logstore
from logstore.spark import describe

ORDERS, SUMS = "orders", "sums"
START_MS = 1_700_000_000_000
ORDER = "customer string, cents long"


def serve(url: str, orders: int = 600, seed: int = 1) -> None:
    """What the service does: one order after another, by customer, some of them in the same moment."""
    rng = random.Random(seed)
    with logstore.open(url) as store:
        topic = store.create_topic(ORDERS, partitions=3, exist_ok=True)
        store.create_topic(SUMS, partitions=1, exist_ok=True)
        # Where the service is: each order comes half a second after the one before.
        first = sum(topic.partition(n).durable_high_watermark for n in range(topic.partitions))
        batch = []
        for number in range(first, first + orders):
            customer = f"customer-{rng.randrange(20)}"
            order = json.dumps({"customer": customer, "cents": rng.randrange(100, 10_000)})
            batch.append(
                logstore.Record(order.encode(), customer.encode(), (), timestamp_ms=START_MS + 500 * number)
            )
            if len(batch) == 100:
                topic.append_many(batch)
                batch.clear()
        if batch:
            topic.append_many(batch)


def sums_per_minute(orders: DataFrame) -> DataFrame:
    """The same lines for a table and for a stream."""
    order = F.from_json(orders["value"].cast("string"), ORDER)
    parsed = orders.select("timestamp", order.alias("order"))
    sums = parsed.groupBy(F.window("timestamp", "1 minute").alias("minute"))
    added = sums.agg(F.count("*").alias("orders"), F.sum("order.cents").alias("cents"))
    return added.withColumn("minute", added["minute.start"])


def stream_of_orders(spark: SparkSession, url: str) -> DataFrame:
    source = (
        spark.readStream.format("logstore").option("subscribe", ORDERS).option("startingOffsets", "earliest")
    )
    return source.option("maxOffsetsPerTrigger", 500).load(url).withWatermark("timestamp", "10 seconds")


def keep_finished_minutes(spark: SparkSession, url: str, folder: Path) -> None:
    """Minutes that are over become Parquet."""
    sums = sums_per_minute(stream_of_orders(spark, url))
    sink = sums.writeStream.format("parquet").outputMode("append")
    query = sink.option("checkpointLocation", str(folder / "minutes-checkpoint")).trigger(availableNow=True)
    query.start(str(folder / "minutes")).awaitTermination()


def publish_running_sums(spark: SparkSession, url: str, folder: Path) -> None:
    """Every change of a sum becomes a record under the minute's key.

    Spark knows no update mode for sources in Python, so each micro-batch is written as a batch of its own, under its number:
    one that is run again after a restart is not stored again.
    """
    checkpoint = str(folder / "sums-checkpoint")

    def store_changes(changes: DataFrame, number: int) -> None:
        key = F.date_format("minute", "yyyy-MM-dd HH:mm").alias("key")
        records = changes.select(key, F.to_json(F.struct("orders", "cents")).alias("value"))
        job = records.write.format("logstore").option("topic", SUMS).mode("append")
        job.option("txnAppId", checkpoint).option("txnVersion", number).save(url)

    sums = sums_per_minute(stream_of_orders(spark, url)).writeStream.outputMode("update")
    query = (
        sums.foreachBatch(store_changes).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    )
    query.start().awaitTermination()


def latest_sums(spark: SparkSession, url: str) -> DataFrame:
    """What the topic of sums says now."""
    latest = spark.read.format("logstore").option("subscribe", SUMS).option("view", "latest").load(url)
    parsed = F.from_json(latest["value"].cast("string"), "orders long, cents long")
    return latest.select(latest["key"].cast("string").alias("minute"), parsed.alias("sum")).select(
        "minute", "sum.orders", "sum.cents"
    )


def batch_sums(spark: SparkSession, url: str) -> DataFrame:
    """The same from the orders themselves, in one go."""
    orders = spark.read.format("logstore").option("subscribe", ORDERS).load(url)
    return sums_per_minute(orders).withColumn("minute", F.date_format("minute", "yyyy-MM-dd HH:mm"))


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(description="orders in, sums per minute out")
    parser.add_argument("folder", nargs="?", help="where the log and the results go (a new one by default)")
    parser.add_argument("--batch", action="store_true", help="only append the orders and add them up")
    args = parser.parse_args()
    folder = Path(args.folder or tempfile.mkdtemp(prefix="orders-"))
    url = (folder.absolute() / "log").as_uri()
    serve(url)
    spark = session()
    try:
        describe(spark, url).select("topic", "partition", "end_offset", "segments", "bytes").show()
        if args.batch:
            batch_sums(spark, url).orderBy("minute").show()
            return
        keep_finished_minutes(spark, url, folder)
        publish_running_sums(spark, url, folder)
        print("minutes that are over, from Parquet:")
        spark.read.parquet(str(folder / "minutes")).orderBy("minute").show()
        print(f"the last sum of each minute, from the topic {SUMS}:")
        latest_sums(spark, url).orderBy("minute").show()
    finally:
        spark.stop()
    print(f"all of it is in {folder}")


if __name__ == "__main__":
    main()
