"""A stream from one topic to another, in a process that can be killed: `python stream_job.py LOG_URL CHECKPOINT`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(url: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.python.authenticate.socketTimeout", "120s")
        # Killed while it notes its first batch, a stream leaves a file because of which Spark (4.2) would not start again.
        .config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    source = (
        spark.readStream.format("logstore")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
    )
    rows = source.option("maxOffsetsPerTrigger", 25).load(url).select("key", "value")
    sink = (
        rows.writeStream.format("logstore").option("topic", "copy").option("checkpointLocation", checkpoint)
    )
    sink.trigger(availableNow=True).start(url).awaitTermination()
    spark.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
