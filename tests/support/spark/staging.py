"""Staging and publishing without Spark: what a task and a driver do."""

from __future__ import annotations

import pyarrow as pa

import logstore
from logstore.format.murmur2 import partition_for_key
from logstore.layout.paths import SPARK_PREFIX
from logstore.objects import MemoryStore, ObjectStore
from logstore.spark.options.transaction import Transaction
from logstore.spark.write.rows import RowSorter
from logstore.spark.write.staging import Part
from logstore.spark.write.task_writer import TaskWriter

PARTITIONS = 3
QUERY = Transaction("query 1", 5)


def new_store() -> MemoryStore:
    store = MemoryStore()
    with logstore.open(store) as opened:
        opened.create_topic("out", partitions=PARTITIONS)
    return store


def keys(batch: int) -> list[bytes]:
    return [b"%d-%d" % (batch, n) for n in range(60)]


def stage(
    store: ObjectStore, transaction: Transaction, batch: int, *, tasks: int = 2, partitions: int = PARTITIONS
) -> list[Part]:
    """What the tasks of one micro-batch stage: each call is a new attempt of all of them."""
    everything = keys(batch)
    parts: list[Part] = []
    for task in range(tasks):
        mine = everything[task::tasks]
        rows = pa.RecordBatch.from_pydict(
            {"key": pa.array(mine, pa.binary()), "value": pa.array(mine, pa.binary())}
        )
        writer = TaskWriter(
            store,
            transaction,
            task,
            RowSorter({"out": partitions}, "out", task),
            codec_id=4,
            max_batch_bytes=1200,
        )
        parts += writer.write([rows])
    return parts


def stored(store: ObjectStore) -> list[bytes]:
    """Every value in the log; each must lie where Kafka's partitioner puts its key, at dense offsets."""
    found: list[bytes] = []
    with logstore.open(store, writer="read_only") as opened:
        topic = opened.topic("out")
        for number in range(PARTITIONS):
            records = list(topic.partition(number).records())
            assert [record.offset for record in records] == list(range(len(records)))
            assert all(partition_for_key(record.key or b"", PARTITIONS) == number for record in records)
            found += [record.value or b"" for record in records]
    return found


def staged(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list(SPARK_PREFIX) if "/staged/" in info.key]
