"""A stream reader as Spark drives it, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from logstore.arrow.scan.columns import BASE_COLUMNS
from logstore.spark.options.read_options import read_options
from logstore.spark.options.schema import spark_schema
from logstore.spark.read.stream import LogStreamReader

MakeLog = Callable[..., str]
ALL = ReadAllAvailable()


def reader(where: str, **given: object) -> LogStreamReader:
    """With these options; None takes one of the usual ones away."""
    usual = {"path": where, "subscribe": "orders", "startingOffsets": "earliest", "pollInterval": "0"}
    named = {name: str(value) for name, value in (usual | given).items() if value is not None}
    return LogStreamReader(read_options(named, streaming=True), spark_schema(BASE_COLUMNS))


def micro_batch(stream: LogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    """The rows of a batch, read by a copy of the reader as an executor has it, after a trip through the checkpoint."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    tasks = pickle.loads(pickle.dumps(stream.partitions(start, end)))
    executor = pickle.loads(pickle.dumps(stream))
    batches = [batch for task in tasks for batch in executor.read(task)]
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
