"""The driver of the cluster tests, a process of its own: `python cluster_job.py MASTER LOG_URL FOLDER`.

It reads and writes the log while executors are killed and tasks are run twice, and prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

Rows = Iterator[pa.RecordBatch]
PATIENCE_S = 400.0
"""For what must happen; well below the limit that the test gives this whole process."""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_executor_once(flag: str) -> Callable[[Rows], Rows]:
    """The first attempt of task 1 passes its rows on and kills its own executor, the JVM above the Python daemon."""

    def rows(batches: Rows) -> Rows:
        context: Any = TaskContext.get()
        yield from batches
        if context.partitionId() == 1 and not os.path.exists(flag):
            Path(flag).touch()
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
            signal.pause()  # this process goes with its executor

    return rows


def straggle_once(pipe: str, started: str) -> Callable[[Rows], Rows]:
    """The first attempt of task 1 waits for a second one to have its rows, so both of them are written out."""

    def rows(batches: Rows) -> Rows:
        context: Any = TaskContext.get()
        held = list(batches)
        if context.partitionId() == 1:
            if context.attemptNumber() == 0:
                select.select([os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)], [], [], PATIENCE_S)
            else:
                Path(started).touch()
                os.write(os.open(pipe, os.O_WRONLY), b"!")
        yield from held

    return rows


def executors_of(frame: DataFrame) -> set[int]:
    """The executors that ran a task of the frame, each known by the process above its Python daemon.

    Spark starts the tasks of a barrier stage all at once. Otherwise short ones could all be run by one executor before the
    other is ready.
    """

    def who(batches: Rows) -> Rows:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"pid": pa.array([parent_of(os.getppid())], pa.int64())})

    return {row.pid for row in frame.mapInArrow(who, "pid long", barrier=True).collect()}


def summary(frame: DataFrame) -> list[int]:
    """How many rows there are, how many different ones, and what their values add up to."""
    rows = frame.select("partition", "offset", "value").collect()
    return [len(rows), len({row[:2] for row in rows}), sum(int(row.value) for row in rows)]


def main(master: str, url: str, folder: str) -> dict[str, Any]:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.cores.max", "2")
        .config(
            "spark.scheduler.minRegisteredResourcesRatio", "1.0"
        )  # no task before both executors are there
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def read(topic: str, **options: Any) -> DataFrame:
        return spark.read.format("logstore").options(subscribe=topic, **options).load(url)

    def write(frame: DataFrame, topic: str) -> None:
        frame.select("key", "value").write.format("logstore").option("topic", topic).mode("append").save(url)

    orders = read("orders", minPartitions=4)
    found: dict[str, Any] = {"scan": summary(orders)}
    found["executors"] = len(executors_of(read("orders")))

    killing = orders.mapInArrow(kill_executor_once(f"{folder}/killed-in-scan"), orders.schema)
    found["scan with a killed executor"] = summary(killing)

    killing = orders.mapInArrow(kill_executor_once(f"{folder}/killed-in-write"), orders.schema)
    write(killing, "copied")
    found["write with a killed executor"] = summary(read("copied"))

    os.mkfifo(f"{folder}/pipe")
    slow = orders.mapInArrow(straggle_once(f"{folder}/pipe", f"{folder}/copy-started"), orders.schema)
    write(slow, "speculated")
    found["speculative write"] = summary(read("speculated"))
    found["flags"] = sorted(path.name for path in Path(folder).iterdir() if path.is_file())
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
