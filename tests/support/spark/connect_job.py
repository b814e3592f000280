"""A client of Spark Connect, a process of its own: `python connect_job.py REMOTE LOG_URL CHECKPOINT`.

It has no JVM: all it knows of Spark is the server's address. Prints what came of it as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from logstore.spark import describe, scan


def found_in(frame: DataFrame) -> list[list[Any]]:
    """Which records: partition, offset, key, value."""
    rows = frame.select("partition", "offset", "key", "value").orderBy("partition", "offset").collect()
    return [[row.partition, row.offset, bytes(row.key).decode(), bytes(row.value).decode()] for row in rows]


def main(remote: str, url: str, checkpoint: str) -> dict[str, Any]:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    orders = spark.read.format("logstore").option("subscribe", "orders").load(url)
    found: dict[str, Any] = {"client": type(spark).__module__, "read": found_in(orders)}
    found["scan"] = found_in(scan(spark, url, subscribe="orders"))
    described = describe(spark, url).where("topic = 'orders'").orderBy("partition").collect()
    found["described"] = [[row.partition, row.low_offset, row.end_offset] for row in described]

    chosen = orders.where("offset < 3").select("partition", "key", "value")
    chosen.write.format("logstore").option("topic", "written").mode("append").save(url)
    found["written"] = found_in(spark.read.format("logstore").option("subscribe", "written").load(url))

    source = spark.readStream.format("logstore").option("startingOffsets", "earliest")
    rows = source.option("subscribe", "orders").load(url).select("partition", "key", "value")
    sink = rows.writeStream.format("logstore").option("topic", "streamed")
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(url)
    query.awaitTermination()
    found["streamed"] = found_in(spark.read.format("logstore").option("subscribe", "streamed").load(url))

    try:
        spark.read.format("logstore").option("subscribe", "none").load(url).collect()
    except Exception as error:
        found["error"] = str(error)
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
