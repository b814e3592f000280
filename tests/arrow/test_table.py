"""T01: any range of a topic as Arrow batches, without Spark: the same records as `records()`, pruned, whatever goes on
meanwhile."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore import Record, Topic
from logstore.arrow import table
from logstore.arrow.scan.columns import arrow_schema
from logstore.format.batches.markers import Marker, encode_marker
from logstore.objects import MemoryStore, open_url
from logstore.testing import GatedStore
from tests.support.patience import PATIENCE_S
from tests.support.spark.upkeep import expire_half, merge_everything

MakeLog = Callable[..., str]
START_MS = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIB = 1 << 20


def numbered(first: int, stop: int) -> list[Record]:
    return [Record(b"v%d" % n, b"k%d" % (n % 5), (), START_MS + n) for n in range(first, stop)]


def large(first: int, stop: int) -> list[list[Record]]:
    """Segments of almost 1 MiB that no codec makes smaller: five of them are one step of a stream."""
    noise = random.Random(5)
    return [[Record(noise.randbytes(MIB - 1000), None, (), START_MS + n)] for n in range(first, stop)]


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


def together(splits: Iterable[table.TopicSplit]) -> pa.Table:
    return pa.concat_tables([split.read().read_all() for split in splits])


@pytest.fixture
def reader(make_log: MakeLog) -> Iterator[Callable[..., Topic]]:
    """`reader(segments of partition 0, …)`: the topic in a store that only reads."""
    opened: list[logstore.Store] = []

    def make(*partitions: list[list[Record]], **settings: object) -> Topic:
        opened.append(logstore.open(make_log("orders", *partitions, **settings), writer="read_only"))
        return opened[0].topic("orders")

    yield make
    for store in opened:
        store.close()


def got(topic: Topic, read: Callable[[], object]) -> tuple[int, int]:
    """How many GETs the call makes, and how many bytes they bring."""
    metered = topic.partition(0)._internal.objects.inner.inner.inner  # type: ignore[attr-defined]
    before = metered.snapshot()["get"]  # opening made some
    read()
    after = metered.snapshot()["get"]
    return after.requests - before.requests, after.bytes - before.bytes


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


# In other processes

_READ = """
import pickle, sys
import pyarrow as pa
groups = pickle.load(sys.stdin.buffer)
found = [pa.concat_tables([split.read().read_all() for split in splits]) for splits in groups]
assert "pyspark" not in sys.modules
pickle.dump(found, sys.stdout.buffer)
"""


def read_elsewhere(*groups: list[table.TopicSplit]) -> list[pa.Table]:
    done = subprocess.run(
        [sys.executable, "-c", _READ], input=pickle.dumps(groups), capture_output=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr.decode()
    found: list[pa.Table] = pickle.loads(done.stdout)
    return found


def fill(url: str, **settings: Any) -> logstore.Store:
    store = logstore.open(url, **settings)
    topic = store.create_topic("orders", partitions=2)
    for number in range(4):
        topic.partition(0).append(numbered(number * 50, number * 50 + 50))
    topic.partition(1).append([Record(None, b"k", (("h", b"1"),), START_MS)])
    return store


def check_elsewhere(store: logstore.Store) -> None:
    topic = store.topic("orders")
    splits = topic.splits(min_splits=4)
    assert len(splits) >= 4
    assert all(len(pickle.dumps(split)) < 2000 for split in splits)
    assert [(split.topic, split.partition) for split in splits][-1] == ("orders", 1)
    assert "start=" in repr(splits[0])
    late: dict[str, Any] = {"columns": ["value"], "since": START_MS + 150}
    whole, part = read_elsewhere(splits, topic.splits(**late))
    assert whole.equals(topic.to_arrow())
    assert part.equals(topic.to_arrow(**late))
    assert part.num_rows == 50
    assert splits[0].schema == topic.to_arrow().schema


def test_T01_splits_pickle_and_another_process_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with fill("a relative folder") as store:
        check_elsewhere(store)


@pytest.mark.s3
def test_T01_splits_carry_a_url_and_no_credentials(moto_url: Callable[[], str]) -> None:
    with fill(moto_url()) as store:
        check_elsewhere(store)
        split = store.topic("orders").splits()[0]
        assert split.url.startswith("s3://")
        assert "testing" not in split.url


def test_T01_what_no_other_process_could_open_is_not_handed_out() -> None:
    with fill("memory://arrow-splits") as store:
        splits = store.topic("orders").splits()
        assert together(splits).equals(store.topic("orders").to_arrow())
        with pytest.raises(logstore.UnsupportedStore, match="cannot leave this process"):
            pickle.dumps(splits)
    with logstore.open(MemoryStore()) as store:
        topic = store.create_topic("orders")
        topic.append(b"x")
        with pytest.raises(logstore.UnsupportedStore, match="has no URL"):
            topic.splits()
        assert topic.to_arrow().num_rows == 1
        for wrong in ({"max_bytes": 0}, {"min_splits": 0}, {"min_splits": True}):
            with pytest.raises(ValueError, match="at least 1"):
                topic.splits(**wrong)


def test_T01_splits_are_of_the_size_asked_for(reader: Callable[..., Topic]) -> None:
    topic = reader(large(0, 8), compression="none")
    assert len(topic.splits()) == 1
    splits = topic.splits(max_bytes=2 * MIB)
    assert [split.stop - split.start for split in splits] in ([2, 2, 2, 2], [2, 2, 2, 1, 1], [1, 2, 2, 2, 1])
    assert together(splits).equals(topic.to_arrow())


# Without pyarrow, and with those who take its streams


def test_T01_without_pyarrow_everything_else_works_and_the_error_names_the_extra(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["pyarrow"] = None
import logstore
with logstore.open({str(tmp_path / "log")!r}) as store:
    topic = store.create_topic("orders")
    topic.append(b"x")
    for call in (topic.to_arrow, topic.arrow_batches, topic.splits):
        try:
            call()
        except ImportError as error:
            print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.splitlines() == ['columns need pyarrow: pip install "embedded-logstore[arrow]"'] * 3, (
        done
    )


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
