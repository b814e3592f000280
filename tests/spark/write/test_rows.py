"""S07: which partition a row of a Spark write goes to, and which rows are refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore.errors import RecordTooLarge
from logstore.format.murmur2 import partition_for_key
from logstore.objects import MemoryStore
from logstore.spark.options.transaction import Transaction
from logstore.spark.write.partitioner import partitions_of
from logstore.spark.write.rows import RowSorter
from logstore.spark.write.task_writer import TaskWriter
from tests.support.spark.material import START_MS

pytestmark = pytest.mark.spark


def sorter(**partitions: int) -> RowSorter:
    return RowSorter(partitions or {"out": 4}, None if len(partitions) > 1 else "out", 0)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def placed(rows: Iterator[Any]) -> dict[tuple[str, int], list[bytes]]:
    return {one.target: [record[0] for record in one.records] for one in rows}


def test_S07_rows_go_where_a_kafka_producer_would_send_them() -> None:
    names = [b"order-%d" % n for n in range(50)]
    found = placed(sorter().sort(batch(key=pa.array(names, pa.binary()), value=pa.array(names, pa.binary()))))
    assert found == {
        ("out", place): values
        for place in range(4)
        if (values := [name for name in names if partition_for_key(name, 4) == place])
    }


def test_S07_a_partition_column_wins_over_the_key_and_topics_may_differ_by_row() -> None:
    rows = batch(
        topic=pa.array(["a", "b", "a", "b"]),
        partition=pa.array([1, None, 0, 0], pa.int32()),
        key=pa.array(["k", "k", "k", "k"]),
        value=pa.array(["1", "2", "3", "4"]),
    )
    found = placed(sorter(a=2, b=3).sort(rows))
    expected = {("a", 0): [b"3"], ("a", 1): [b"1"], ("b", 0): [b"4"]}
    place = partition_for_key(b"k", 3)
    expected[("b", place)] = [b"2", b"4"] if place == 0 else [b"2"]
    assert found == expected


def test_S07_rows_without_a_key_take_turns_by_arrow_batch_and_keep_their_order() -> None:
    by_turn = sorter()
    rows = batch(value=pa.array([b"1", b"2", b"3"]))
    targets = [list(placed(by_turn.sort(rows)).items()) for _ in range(4)]
    assert sorted(target for ((target, _),) in targets) == [("out", n) for n in range(4)]
    assert all(values == [b"1", b"2", b"3"] for ((_, values),) in targets)


def test_S07_bad_rows_fail_the_task_and_say_why() -> None:
    with pytest.raises(logstore.UnknownTopic, match="'nowhere'"):
        placed(sorter(a=1, b=1).sort(batch(topic=pa.array(["nowhere"]), value=pa.array([b"1"]))))
    with pytest.raises(logstore.InvalidRecord, match="null topic"):
        placed(sorter(a=1, b=1).sort(batch(topic=pa.array([None], pa.string()), value=pa.array([b"1"]))))
    with pytest.raises(logstore.InvalidRecord, match=r"partitions 0 to 3, not \[9\]"):
        placed(sorter().sort(batch(partition=pa.array([9], pa.int32()), value=pa.array([b"1"]))))
    before = pa.array([START_MS * 1000, -1], pa.timestamp("us", tz="UTC"))
    with pytest.raises(logstore.InvalidRecord, match="1 µs before 1970"):
        placed(sorter().sort(batch(timestamp=before, value=pa.array([b"1", b"2"]))))
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    for header in (None, {"key": None, "value": b"1"}):
        with pytest.raises(logstore.InvalidRecord, match="header is null or has a null key"):
            placed(sorter().sort(batch(headers=pa.array([[header]], pairs), value=pa.array([b"1"]))))
    writer = TaskWriter(
        MemoryStore(), Transaction("query 1", 5), 0, sorter(), codec_id=0, max_batch_bytes=1024
    )
    with pytest.raises(RecordTooLarge, match="maxBatchBytes"):
        writer.write([batch(value=pa.array([b"x" * 2000]))])


def test_S07_the_column_partitioner_equals_the_one_for_single_keys() -> None:
    rng = random.Random(4)
    for _ in range(100):
        names = [
            None if rng.random() < 0.1 else rng.randbytes(rng.choice((0, 1, 3, 4, 5, 8, 15, 40, 300)))
            for _ in range(rng.randrange(30))
        ]
        column = pa.array([b"before", *names, b"after"], pa.binary()).slice(1, len(names))
        count = rng.randrange(1, 9)
        expected = [0 if name is None else partition_for_key(name, count) for name in names]
        assert partitions_of(column, count).tolist() == expected
