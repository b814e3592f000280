"""T01: a topic as a stream of Arrow batches: read ahead, and what happens to it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import logstore
from logstore import Topic
from logstore.objects import MemoryStore, open_url
from logstore.testing import GatedStore
from tests.support.arrow import EPOCH, START_MS, MakeLog, got, large, numbered, together
from tests.support.patience import PATIENCE_S
from tests.support.spark.upkeep import expire_half, merge_everything

# Streaming


def test_T01_a_stream_fetches_ahead_and_not_everything(reader: Callable[..., Topic]) -> None:
    topic = reader(large(0, 24), large(0, 24), compression="none")
    stream = topic.arrow_batches(["value"])
    requests, _ = got(topic, stream.read_next_batch)
    assert 5 <= requests <= 12, "of 48 segments"
    assert sum(batch.num_rows for batch in stream) == 48 - 5


def test_T01_small_partitions_are_fetched_side_by_side() -> None:
    objects = MemoryStore()
    with logstore.open(objects) as store:
        topic = store.create_topic("orders", partitions=6)
        for partition in range(6):
            topic.partition(partition).append(numbered(0, 10))
    gated = GatedStore(objects)
    with logstore.open(gated, writer="read_only") as store:
        stream = store.topic("orders").arrow_batches(["partition", "value"])
        with gated.hold("get", suffix=".seg") as gate:
            found: list[pa.Table] = []
            consumer = threading.Thread(target=lambda: found.append(stream.read_all()))
            consumer.start()
            gate.wait_held(PATIENCE_S, count=6)
            gate.open()
            consumer.join(PATIENCE_S)
    assert found[0]["partition"].to_pylist() == [number for number in range(6) for _ in range(10)]


def test_T01_a_stream_that_nobody_reads_on_leaves_no_thread(reader: Callable[..., Topic]) -> None:
    topic = reader(large(0, 12), large(0, 12), compression="none")
    before = set(threading.enumerate())
    stream = topic.arrow_batches()
    stream.read_next_batch()
    del stream
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), thread.name


@pytest.mark.parametrize("columns", [("partition", "offset", "value"), ("partition", "offset")])
def test_T01_segments_merged_and_deleted_in_the_middle_of_a_stream_give_the_same_rows(
    make_log: MakeLog, columns: tuple[str, ...]
) -> None:
    where = make_log("orders", large(0, 16), large(0, 8), compression="none", lanes=0)
    with logstore.open(where, writer="read_only") as store:
        topic = store.topic("orders")
        expected = topic.to_arrow(columns)
        splits = topic.splits(columns, min_splits=6)
        stream = topic.arrow_batches(columns)
        batches = [stream.read_next_batch()]
        for partition in (0, 1):
            assert merge_everything(where, topic.partition(partition)._internal.paths) > 1
        batches += list(stream)
        assert pa.Table.from_batches(batches).equals(expected)
        assert together(splits).equals(expected)
        assert topic.to_arrow(columns).equals(expected)


def test_T01_records_that_retention_takes_in_the_middle_of_a_stream_are_an_error(make_log: MakeLog) -> None:
    where = make_log("orders", large(0, 16), compression="none", lanes=0)
    with logstore.open(where, writer="read_only") as store:
        topic = store.topic("orders")
        stream = topic.arrow_batches(["offset", "value"])
        seen = stream.read_next_batch()["offset"].to_pylist()
        low = expire_half(where, topic.partition(0)._internal.paths)
        assert low > 6
        with pytest.raises(logstore.OffsetOutOfRange, match=rf"orders/0, which holds {low} to 16") as caught:
            for batch in stream:
                seen += batch["offset"].to_pylist()
        assert seen == list(range(caught.value.offset or 0)), (
            "all that was there, and nothing behind the hole"
        )


def test_T01_a_topic_deleted_in_the_middle_of_a_stream_is_UnknownTopic_also_if_there_is_a_new_one(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", large(0, 12), compression="none", lanes=0)
    with logstore.open(where, writer="read_only") as store:
        topic = store.topic("orders")
        stream, splits = topic.arrow_batches(), topic.splits()
        stream.read_next_batch()
        with logstore.open(where) as other:
            other.delete_topic("orders")
            other.create_topic("orders").append(b"another life")
        with pytest.raises(logstore.UnknownTopic, match="deleted"):
            stream.read_all()
        with pytest.raises(logstore.UnknownTopic, match="deleted"):
            splits[0].read().read_all()
        with pytest.raises(logstore.UnknownTopic, match="deleted"):
            topic.to_arrow()
        assert store.topic("orders").to_arrow(["value"])["value"].to_pylist() == [b"another life"]


@pytest.mark.parametrize("columns", [None, ["offset"]])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_T01_an_object_that_is_missing_is_CorruptData_wherever_it_was(
    make_log: MakeLog, columns: list[str] | None, which: int
) -> None:
    """The last one, too: nothing behind it says that it was there, but the plan does."""
    where = make_log("orders", [numbered(n * 100, n * 100 + 100) for n in range(3)], lanes=0)
    with logstore.open(where, writer="read_only") as store:
        topic = store.topic("orders")
        splits, stream = topic.splits(columns), topic.arrow_batches(columns)
        missing = topic.partition(0).segments()[which].key
        open_url(where).delete(missing)
        for read in (stream.read_all, splits[0].read().read_all):
            with pytest.raises(logstore.CorruptData, match=missing):
                read()


@pytest.mark.parametrize("columns", [None, ["value"]])
def test_T01_damage_is_CorruptData_with_the_name_of_the_object(
    make_log: MakeLog, columns: list[str] | None
) -> None:
    where = make_log(
        "orders", [numbered(n * 100, n * 100 + 100) for n in range(3)], compression="none", lanes=0
    )
    with logstore.open(where, writer="read_only") as store:
        topic = store.topic("orders")
        broken = topic.partition(0).segments()[1]
        path = Path(where.removeprefix("file://")) / broken.key
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x40
        path.chmod(0o644)
        path.write_bytes(data)
        for read in (
            lambda: topic.to_arrow(columns),
            lambda: list(topic.arrow_batches(columns)),
            lambda: together(topic.splits(columns)),
        ):
            with pytest.raises(logstore.CorruptData) as caught:
                read()
            assert caught.value.key == broken.key
            assert caught.value.offset in range(100, 200)
        assert topic.to_arrow(columns, stop=100).num_rows == 100


def test_T01_a_store_that_was_closed_says_so(where: str) -> None:
    with logstore.open(where) as store:
        topic = store.create_topic("orders")
        topic.append(b"x")
    for call in (topic.to_arrow, topic.arrow_batches, topic.splits):
        with pytest.raises(logstore.Closed):
            call()


def test_T01_duckdb_takes_the_stream_as_it_is(reader: Callable[..., Topic]) -> None:
    duckdb = pytest.importorskip("duckdb")
    topic = reader([numbered(0, 1000), numbered(1000, 2000)], [numbered(0, 500)])
    orders = topic.arrow_batches(["partition", "offset", "key", "value"])
    with duckdb.connect() as connection:
        connection.register("orders", orders)
        query = (
            'select partition, count(*), max("offset"), count(distinct key) from orders group by 1 order by 1'
        )
        assert connection.execute(query).fetchall() == [(0, 2000, 1999, 5), (1, 500, 499, 5)]
    whole = topic.arrow_batches()
    with duckdb.connect() as connection:
        connection.register("whole", whole)
        assert connection.execute("select count(*) from whole where headers is null").fetchall() == [(2500,)]


def test_T01_polars_takes_the_stream_as_it_is(reader: Callable[..., Topic]) -> None:
    polars = pytest.importorskip("polars")
    topic = reader([numbered(0, 1000)], [numbered(0, 500)])
    for frame in (polars.DataFrame(topic.arrow_batches()), polars.from_arrow(topic.arrow_batches())):
        assert frame.shape == (1500, 7)
        assert frame["offset"].to_list() == topic.to_arrow()["offset"].to_pylist()
        assert frame["timestamp"][999] == EPOCH + timedelta(milliseconds=START_MS + 999)


def test_T01_an_error_reaches_who_takes_the_stream(make_log: MakeLog) -> None:
    polars = pytest.importorskip("polars")
    where = make_log("orders", [numbered(0, 100)], lanes=0)
    with logstore.open(where, writer="read_only") as store:
        stream = store.topic("orders").arrow_batches()
        open_url(where).delete(store.topic("orders").partition(0).segments()[0].key)
        with pytest.raises(polars.exceptions.ComputeError, match="CorruptData"):
            polars.DataFrame(stream)
