"""T01: any range of a topic as Arrow batches, without Spark: the same records as `records()`, pruned, whatever goes on
meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore import Record, Topic
from logstore.arrow.scan.columns import arrow_schema
from logstore.format.batches.markers import Marker, encode_marker
from logstore.objects import MemoryStore
from tests.support.arrow import EPOCH, MIB, START_MS, got, large, numbered, together
from tests.support.patience import PATIENCE_S


def as_row(topic: str, partition: int, record: Record) -> dict[str, Any]:
    assert record.timestamp_ms is not None
    return {
        "key": record.key,
        "value": record.value,
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp_ms),
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
    }


def durable(topic: Topic) -> list[dict[str, Any]]:
    """What `records()` gives, in the shape of Arrow's rows."""
    return [
        as_row(topic.name, partition, record)
        for partition in range(topic.partitions)
        for record in topic.partition(partition).records(visibility="durable")
    ]


def offsets(found: pa.Table) -> list[tuple[int, int]]:
    return list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


# The same records


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_T01_a_table_holds_exactly_what_records_gives(reader: Callable[..., Topic], codec: str) -> None:
    odd = [
        Record(b"plain", b"k", (), START_MS),
        Record(None, b"gone", (), START_MS + 1),
        Record(b"no key", None, (), START_MS + 2),
        Record(b"", b"", (("h", b"1"), ("h", None), ("ü", b"")), START_MS + 3),
        Record(b"x" * 50_000, b"big", (), START_MS + 4),
    ]
    topic = reader([odd, numbered(5, 40)], [odd[::-1]], [], compression=codec)
    found = topic.to_arrow()
    assert found.to_pylist() == durable(topic)
    assert found.column_names == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    assert topic.arrow_batches().read_all().equals(found)
    assert together(topic.splits()).equals(found)
    assert together(topic.splits(min_splits=9)).equals(found)


def test_T01_columns_come_in_the_order_asked_for_with_the_types_of_the_whole(
    reader: Callable[..., Topic],
) -> None:
    topic = reader([numbered(0, 10)], [numbered(0, 3)])
    whole = topic.to_arrow()
    for columns in (["value"], ["offset", "key"], ["topic"], ("headers", "timestamp", "partition")):
        found = topic.to_arrow(columns)
        assert found.equals(whole.select(list(columns)))
        assert topic.to_arrow(columns, since=START_MS + 4).equals(
            whole.take([4, 5, 6, 7, 8, 9]).select(list(columns))
        )


def test_T01_an_empty_topic_is_a_table_without_rows(where: str) -> None:
    with logstore.open(where) as store:
        topic = store.create_topic("orders", partitions=2)
        assert topic.to_arrow(["key", "offset"]).schema == arrow_schema(("key", "offset"))
        assert topic.to_arrow().num_rows == 0
        assert topic.splits() == []
        assert topic.to_arrow(start=0, stop=0).num_rows == 0


def test_T01_gaps_are_passed_and_a_read_may_start_in_one(where: str) -> None:
    store = logstore.open(where, flush_interval=3600)
    log = store.create_topic("orders").partition(0)
    log.append(numbered(0, 6))
    log.append([b"lost for good"], ack="buffered")
    with logstore.open(where) as after:  # takes over: offsets that were shown and not stored are a gap
        topic = after.topic("orders")
        behind = topic.append(b"behind the gap", partition=0).offset
        (lost,) = topic.partition(0).lost_ranges()
        assert (lost.start, lost.end) == (6, behind)
        found = topic.to_arrow()
        assert found.to_pylist() == durable(topic)
        assert found["offset"].to_pylist() == [*range(6), behind]
        assert topic.to_arrow(["offset"], start=6)["offset"].to_pylist() == [behind]
        assert topic.to_arrow(["offset"], start=5, stop=behind)["offset"].to_pylist() == [5]
        assert topic.to_arrow(["value"], start=6, stop=behind).num_rows == 0
    with pytest.raises(logstore.LogStoreError):
        store.close()


def test_T01_only_durable_records_as_of_the_moment_of_the_call(where: str) -> None:
    with logstore.open(where, flush_interval=3600) as store:
        topic = store.create_topic("orders", partitions=2)
        topic.append(b"stored", partition=0)
        topic.append(b"only buffered", partition=0, ack="buffered")
        stream, splits = topic.arrow_batches(), topic.splits()
        store.flush()
        topic.append(b"later", partition=1)
        assert stream.read_all()["value"].to_pylist() == [b"stored"]
        assert together(splits)["value"].to_pylist() == [b"stored"]
        assert topic.to_arrow(["value"])["value"].to_pylist() == [b"stored", b"only buffered", b"later"]


# Ranges


def test_T01_offsets_for_all_partitions_or_for_each(reader: Callable[..., Topic]) -> None:
    topic = reader([numbered(0, 4), numbered(4, 10)], [numbered(0, 3)])

    def read(**given: Any) -> list[tuple[int, int]]:
        columns = ["partition", "offset"]
        found = offsets(topic.to_arrow(columns, **given))
        assert offsets(topic.to_arrow([*columns, "value"], **given)) == found
        assert [
            pair for split in topic.splits(columns, **given) for pair in offsets(split.read().read_all())
        ] == found
        return found

    assert read(start=2, stop=5) == [(0, 2), (0, 3), (0, 4), (1, 2)]
    assert read(start={0: 8}) == [(0, 8), (0, 9), (1, 0), (1, 1), (1, 2)]
    assert read(start={0: 8, 1: 3}) == [(0, 8), (0, 9)]
    assert read(stop={0: 0, 1: 2}) == [(1, 0), (1, 1)]
    assert read(start=5) == [(0, n) for n in range(5, 10)], "partition 1 has nothing there"
    assert read(start=10) == []
    assert read(start=3, stop=1) == []
    assert read(stop=10**9) == [(0, n) for n in range(10)] + [(1, n) for n in range(3)]


def test_T01_an_offset_that_is_not_there_is_OffsetOutOfRange(where: str) -> None:
    with logstore.open(where) as store:
        topic = store.create_topic("orders", partitions=2)
        for partition in (0, 1):
            topic.partition(partition).append(numbered(0, 10))
        for past in (11, {1: 11}):
            with pytest.raises(logstore.OffsetOutOfRange, match=r"offset 11 .* holds 0 to 10"):
                topic.to_arrow(start=past)
            with pytest.raises(logstore.OffsetOutOfRange):
                topic.splits(start=past)
        with pytest.raises(logstore.OffsetOutOfRange):
            topic.to_arrow(start=-1)
        topic.partition(1).delete_before(4)
        with pytest.raises(logstore.OffsetOutOfRange, match=r"orders/1, which holds 4 to 10") as caught:
            topic.to_arrow(start=3)
        assert (caught.value.low, caught.value.high, caught.value.offset) == (4, 10, 3)
        assert topic.to_arrow(start={0: 3}).num_rows == 7 + 6
        assert topic.to_arrow().to_pylist() == durable(topic)


def test_T01_times_pick_records_one_by_one_also_where_they_are_out_of_order(
    reader: Callable[..., Topic],
) -> None:
    stamps = [5, 1, 9, 3, 7, 3, 2, 8]
    records = [Record(b"%d" % stamp, None, (), START_MS + stamp) for stamp in stamps]
    topic = reader([records[:3], records[3:]], [records[2:5]])
    everything = durable(topic)

    def check(low: int, high: int, **given: Any) -> None:
        wanted = [row for row in everything if low <= int(row["value"]) < high]
        assert topic.to_arrow(**given).to_pylist() == wanted
        assert topic.to_arrow(["partition", "offset"], **given).num_rows == len(wanted)
        assert together(topic.splits(["value"], **given))["value"].to_pylist() == [
            row["value"] for row in wanted
        ]

    at = EPOCH + timedelta(milliseconds=START_MS)
    check(3, 99, since=START_MS + 3)
    check(0, 3, until=START_MS + 3)
    check(3, 8, since=START_MS + 3, until=START_MS + 8)
    check(3, 8, since=at + timedelta(milliseconds=3), until=at + timedelta(milliseconds=8))
    check(3, 8, since=(at + timedelta(microseconds=2001)).replace(tzinfo=None), until=START_MS + 8)
    check(0, 4, since=-(10**30), until=at + timedelta(microseconds=3001))
    assert topic.to_arrow(since=START_MS + 3, start={0: 4}, stop=6)["value"].to_pylist() == [
        b"7",
        b"3",
        b"9",
        b"3",
        b"7",
    ]
    assert topic.to_arrow(since=10**30).num_rows == 0


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"columns": ["valu"]}, ValueError, "name some of key, value, topic"),
        ({"columns": []}, ValueError, "name some of"),
        ({"columns": ["key", "key"]}, ValueError, "each once"),
        ({"columns": "value"}, TypeError, "a list of names"),
        ({"start": "3"}, TypeError, "'3' is no offset"),
        ({"start": True}, TypeError, "True is no offset"),
        ({"stop": {0: 1.5}}, TypeError, "1.5 is no offset"),
        ({"start": {1: 0}}, ValueError, "partitions 0 to 0, not 1"),
        ({"stop": {"0": 0}}, ValueError, "not '0'"),
        ({"since": "2024"}, TypeError, "since is an int, in milliseconds, or a datetime, not str"),
        ({"until": True}, TypeError, "until is an int"),
    ],
)
def test_T01_what_makes_no_sense_is_refused_by_name(
    given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with logstore.open("memory://arrow-refused") as store:
        topic = store.create_topic("orders", exist_ok=True)
        for call in (topic.to_arrow, topic.arrow_batches, topic.splits):
            with pytest.raises(error, match=says):
                call(**given)


# Pruning, counted


def test_T01_what_a_range_leaves_out_is_not_fetched(reader: Callable[..., Topic]) -> None:
    segments = [numbered(n * 1000, n * 1000 + 1000) for n in range(20)]
    topic = reader(segments, compression="none")
    topic.to_arrow(start=20_000)  # everything is open now
    planning, _ = got(topic, lambda: topic.to_arrow(start=20_000))
    everything = got(topic, topic.to_arrow)
    assert everything[0] == planning + 20
    assert got(topic, lambda: topic.to_arrow(start=5000, stop=7000))[0] == planning + 2
    assert got(topic, lambda: topic.to_arrow(since=START_MS + 19_500))[0] == planning + 1
    assert got(topic, lambda: topic.to_arrow(since=START_MS + 50_000))[0] == planning


def test_T01_offsets_are_told_by_the_indexes_alone(reader: Callable[..., Topic]) -> None:
    topic = reader(large(0, 6), compression="none")
    planning = got(topic, lambda: topic.to_arrow(start=6))
    requests, size = got(topic, lambda: topic.to_arrow(["topic", "partition", "offset"]))
    assert requests == planning[0] + 6
    assert size < planning[1] + MIB, "of 6 MiB"


def test_T01_a_part_of_a_large_segment_is_fetched_by_range(reader: Callable[..., Topic]) -> None:
    noise = [Record(bytes([n % 251]) * 20_000, None, (), START_MS + n) for n in range(1500)]
    topic = reader([noise], compression="none", max_buffered_bytes=64 * MIB)
    topic.to_arrow(["offset"])
    read = got(topic, lambda: topic.to_arrow(["value"], start=1200, stop=1210))
    assert read[1] < 6 * MIB, "of a segment of 30 MB"


def test_T01_markers_of_transactions_are_no_rows_whatever_columns_are_asked_for() -> None:
    """An index has a row for a marker, too, and knows nothing of what is in it."""
    with logstore.open(MemoryStore()) as store:
        topic = store.create_topic("t")
        log = topic.partition(0)
        log.append([b"a", b"b"])
        marker = encode_marker(Marker(7, 0, True, 0), now_ms=1)
        log._internal.submit_batches(marker, control=True).result(timeout=PATIENCE_S)
        log.append(b"c")
        for columns in (["offset"], ["offset", "value"], None):
            assert topic.to_arrow(columns)["offset"].to_pylist() == [0, 1, 3]
        assert topic.to_arrow(["partition"]).num_rows == 3
