"""The behaviours of S on any cluster and any store: `python everywhere_job.py MASTER LOG_URL FOLDER UNIX_SOCKETS`.

A driver that is a process of its own; prints what it found as JSON. `test_everywhere.py` made the log and judges.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from logstore.spark import scan


def text(value: object) -> str | None:
    return None if value is None else bytes(value).decode("latin-1")  # type: ignore[call-overload]


def records(frame: DataFrame) -> list[list[Any]]:
    """Which ones: partition, offset, key, value."""
    found = [[row.partition, row.offset, text(row.key), text(row.value)] for row in frame.collect()]
    return sorted(found, key=lambda row: row[:2])


def has_unix_socket(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Whether this worker's way to the JVM is one."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict(
            {"told": [os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower()]}
        )


def main(master: str, url: str, folder: str, unix_sockets: str) -> dict[str, Any]:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.cores.max", "2")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.python.unix.domain.socket.enabled", unix_sockets)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.task.maxFailures", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def read(topic: str, **options: Any) -> DataFrame:
        return spark.read.format("logstore").options(subscribe=topic, **options).load(url)

    def failure(topic: str, **options: Any) -> str:
        try:
            read(topic, **options).collect()
        except Exception as error:
            return str(error)
        return "nothing failed"

    def stream(topic: str, checkpoint: str) -> list[int]:
        """Copy what is there; returns how many rows each micro-batch had."""
        source = spark.readStream.format("logstore").options(subscribe="orders", startingOffsets="earliest")
        rows = source.option("maxOffsetsPerTrigger", 30).load(url).select("partition", "key", "value")
        sink = rows.writeStream.format("logstore").option("checkpointLocation", checkpoint)
        query = sink.option("topic", topic).trigger(availableNow=True).start(url)
        query.awaitTermination()
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

    found: dict[str, Any] = {}
    found["unix sockets"] = (
        spark.range(0, 1, 1, 1).mapInArrow(has_unix_socket, "told string").collect()[0].told
    )
    orders = read("orders", minPartitions=6)
    found["S02 schema"] = orders.schema.simpleString()
    found["S02 partial offsets"] = records(read("orders", startingOffsets='{"orders": {"1": 35}}'))
    found["S02 bad option"] = failure("orders", startingOffset="earliest")
    found["S03 twice"] = [records(orders), records(orders)]
    pruned = scan(spark, url, subscribe="orders", where="partition = 1 and offset >= 30")
    found["S04 pruned"] = [pruned.rdd.getNumPartitions(), records(pruned)]
    found["S05 tasks"] = orders.rdd.getNumPartitions()
    found["S06 micro-batches"] = stream("streamed", f"{folder}/checkpoint")
    found["S06 restarted"] = stream("streamed", f"{folder}/checkpoint")
    found["S06 streamed"] = records(read("streamed"))
    for _ in range(2):  # the second is the same transaction
        kept = orders.where("offset < 5").select("partition", "key", "value").write.format("logstore")
        kept.options(topic="written", txnAppId="everywhere", txnVersion=1).mode("append").save(url)
    found["S07 written"] = records(read("written"))
    found["S08 damaged"] = failure("damaged")
    mixed = read("mixed", includeHeaders=True)
    found["S10 mixed"] = records(mixed)
    found["S10 headers"] = [
        None if row.headers is None else [[header.key, text(header.value)] for header in row.headers]
        for row in sorted(mixed.collect(), key=lambda row: row.offset)
    ]
    found["S10 empty"] = read("empty").count()
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
