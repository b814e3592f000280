"""S03, S08, S10: what a task reads of its split, on every kind of store, whatever maintenance does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import logstore
from logstore.arrow.plan.bounds import EVERYTHING
from logstore.arrow.plan.log_partitions import load, subscribed
from logstore.arrow.plan.planner import plan_batch
from logstore.arrow.plan.request import Subscription
from logstore.arrow.plan.splits import Split
from logstore.arrow.scan import fetch
from logstore.arrow.scan.batch_joiner import BatchJoiner
from logstore.arrow.scan.columns import arrow_schema
from logstore.arrow.scan.latest import LatestScan
from logstore.arrow.scan.split_scan import Scan, grouped
from logstore.format.batches.area import Area
from logstore.format.batches.batch import BatchInfo, Buffer, record_area
from logstore.objects import MemoryStore, MeteredStore, fan_out, open_url
from logstore.objects.wrappers.slices import parse_slice, whole
from tests.support.spark.material import (
    BASE_COLUMNS,
    COLUMNS,
    START_MS,
    at,
    numbered,
    offsets,
    options,
    plan,
    read_all,
    rows,
)
from tests.support.spark.upkeep import expire_half, merge_everything

pytestmark = pytest.mark.spark
MakeLog = Callable[..., str]
Record = logstore.Record


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_S10_every_codec_every_field_and_nulls_come_back_as_they_were_appended(
    make_log: MakeLog, codec: str
) -> None:
    records = [
        Record(b"plain", b"k", (), START_MS),
        Record(None, b"gone", (), START_MS + 1),
        Record(b"no key", None, (), START_MS + 2),
        Record(b"", b"", (("h", b"1"), ("h", None), ("ü", b"")), START_MS + 3),
        Record(b"x" * 50_000, b"big", (), START_MS + 4),
    ]
    where = make_log("orders", [records * 3], compression=codec)
    found = rows(where, COLUMNS, subscribe="orders")
    assert [(row["value"], row["key"]) for row in found] == [(r.value, r.key) for r in records * 3]
    assert [row["timestamp"] for row in found] == [at(r.timestamp_ms) for r in records * 3]  # type: ignore[arg-type]
    assert [row["offset"] for row in found] == list(range(15))
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in found} == {("orders", 0, 0)}
    pairs = [row["headers"] and [(h["key"], h["value"]) for h in row["headers"]] for row in found]
    assert pairs[:5] == [None, None, None, [("h", b"1"), ("h", None), ("ü", b"")], None]


def test_S10_arrow_batches_have_exactly_the_schema_that_spark_derives(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 3)])
    for columns in (COLUMNS, BASE_COLUMNS, ("offset",), ("value", "topic"), ("timestamp", "key"), ("topic",)):
        (batch,) = Scan(where, columns, True).rows(plan(where, subscribe="orders")[0])
        assert batch.schema.equals(arrow_schema(columns))
        assert batch.num_rows == 3


def test_small_segments_make_one_arrow_batch_without_being_copied_together(
    make_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[memoryview] = []
    asked: list[Buffer] = []
    real_add = BatchJoiner.add

    def add(self: BatchJoiner, fetched: fetch.Fetched) -> None:
        blocks.append(fetched.block.data)
        real_add(self, fetched)

    def area_of(raw: Buffer, info: BatchInfo) -> Area:
        asked.append(raw)
        return record_area(raw, info)

    monkeypatch.setattr(BatchJoiner, "add", add)
    monkeypatch.setattr("logstore.format.batches.columns.record_area", area_of)
    where = make_log("orders", [numbered(n * 10, n * 10 + 10) for n in range(5)], compression="zstd")
    (split,) = plan(where, subscribe="orders")
    (batch,) = Scan(where, COLUMNS, True).rows(split)
    assert batch.column("value").to_pylist() == [b"v%d" % n for n in range(50)]
    assert len(blocks) == len(asked) == 5
    assert all(raw is block for raw, block in zip(asked, blocks, strict=True))


def test_S10_large_records_come_back_whole_and_no_batch_of_them_grows_without_bound(
    make_log: MakeLog,
) -> None:
    large = [Record(bytes([n]) * (8 << 20), b"k%d" % n, (), START_MS + n) for n in range(6)]
    where = make_log("orders", [large[:3], large[3:]], max_batch_bytes=32 << 20, max_buffered_bytes=128 << 20)
    (split,) = plan(where, subscribe="orders")
    batches = list(Scan(where, ("value",), True).rows(split))
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [
        record.value for record in large
    ]
    assert max(batch.nbytes for batch in batches) <= 64 << 20


def test_S10_gaps_and_empty_partitions_are_no_trouble(where: str) -> None:
    store = logstore.open(where, flush_interval=3600)
    log = store.create_topic("orders", partitions=2).partition(0)
    log.append(numbered(0, 5))
    log.append([b"will be lost"], ack="buffered")
    log.flush()
    log.append([b"lost for good"], ack="buffered")
    with logstore.open(where) as after:  # takes over: offsets that were shown and not stored are a gap
        receipt = after.topic("orders").partition(0).append(b"behind the gap")
        lost = after.topic("orders").partition(0).lost_ranges()
    found = rows(where, subscribe="orders")
    assert [row["offset"] for row in found] == [0, 1, 2, 3, 4, 5, receipt.offset]
    assert lost
    assert lost[0].start == 6
    assert lost[0].end == receipt.offset
    with pytest.raises(logstore.LogStoreError):
        store.close()


def test_S04_columns_that_an_index_can_tell_fetch_no_batch(make_log: MakeLog) -> None:
    where = make_log(
        "orders", [numbered(n * 1000, n * 1000 + 1000) for n in range(3)], compression="none", lanes=0
    )
    (split,) = plan(where, subscribe="orders")
    metered = MeteredStore(open_url(where))
    scan = Scan(where, ("partition", "offset"), True)
    found = pa.Table.from_batches(list(scan.rows_from(metered, split))).to_pylist()
    assert offsets(found) == [(0, n) for n in range(3000)]
    assert metered.snapshot()["get"].requests == len(split.refs)


def test_S05_small_segments_are_decoded_together(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(n * 10, n * 10 + 10) for n in range(50)])
    (split,) = plan(where, subscribe="orders")
    batches = list(Scan(where, BASE_COLUMNS, True).rows(split))
    assert [batch.num_rows for batch in batches] == [500]


def test_S04_a_part_of_a_large_segment_is_fetched_by_range(make_log: MakeLog) -> None:
    noise = [Record(bytes([n % 251]) * 20_000, None, (), START_MS + n) for n in range(1500)]
    where = make_log("orders", [noise], compression="none", max_buffered_bytes=64 << 20, lanes=0)
    planned = plan(
        where,
        subscribe="orders",
        startingOffsets='{"orders": {"0": 1200}}',
        endingOffsets='{"orders": {"0": 1210}}',
    )
    metered = MeteredStore(open_url(where))
    (split,) = planned
    found = pa.Table.from_batches(list(Scan(where, ("value", "offset"), True).rows_from(metered, split)))
    assert found["offset"].to_pylist() == list(range(1200, 1210))
    assert found["value"].to_pylist() == [noise[n].value for n in range(1200, 1210)]
    assert metered.snapshot()["get"].bytes < 6 << 20, "of a segment of 30 MB"


@pytest.mark.parametrize("lanes", [0, 1])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_S08_a_damaged_segment_ends_the_task_with_the_objects_name_and_skips_nothing(
    make_log: MakeLog, place: float, lanes: int
) -> None:
    where = make_log(
        "orders", [numbered(n * 100, n * 100 + 100) for n in range(3)], compression="none", lanes=lanes
    )
    (split,) = plan(where, subscribe="orders")
    broken = split.refs[1]
    path = Path(where.removeprefix("file://")) / whole(broken.key)
    data = bytearray(path.read_bytes())
    begin, size = parse_slice(broken.key)[1:] if lanes else (0, len(data))
    data[begin + 160 + int((size - 700) * place)] ^= 0x40
    path.chmod(0o644)
    path.write_bytes(data)
    seen: list[int] = []
    with pytest.raises(logstore.CorruptData) as caught:
        for batch in Scan(where, BASE_COLUMNS, False).rows(split):
            seen += batch.column("offset").to_pylist()
    assert caught.value.key == broken.key
    assert broken.key in str(caught.value)
    assert caught.value.offset in range(100, 200)
    assert seen in ([], list(range(100))), "rows before the damage, or none: never one behind it"


def test_S03_segments_merged_and_deleted_during_the_scan_give_the_same_rows(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(n * 10, n * 10 + 10) for n in range(12)], lanes=0)
    planned = plan(where, subscribe="orders", minPartitions=3)
    before = read_all(where, planned)
    assert merge_everything(where, planned[0].paths) > 1
    assert read_all(where, planned) == before
    assert [row["value"] for row in before] == [b"v%d" % n for n in range(120)]


def test_S06_segments_expired_during_the_scan_are_an_error_or_left_out_as_failOnDataLoss_says(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(n * 10, n * 10 + 10) for n in range(6)], lanes=0)
    (split,) = plan(where, subscribe="orders")
    low = expire_half(where, split.paths)
    assert 0 < low < 60
    with pytest.raises(logstore.OffsetOutOfRange, match=rf"orders/0, which holds {low} to 60"):
        read_all(where, [split])
    assert [row["offset"] for row in read_all(where, [split], fail=False)] == list(range(low, 60))


@pytest.mark.parametrize("columns", [BASE_COLUMNS, ("offset",)])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    ("writer", "lanes"), [("exclusive", 0), ("exclusive", 1), ("shared", 0)]
)  # of a shared one's segments something stays
def test_S06_a_topic_deleted_before_its_segments_are_read_is_data_loss_and_not_damage(
    make_log: MakeLog, columns: tuple[str, ...], again: bool, writer: str, lanes: int
) -> None:
    where = make_log("orders", [numbered(n * 10, n * 10 + 10) for n in range(3)], writer=writer, lanes=lanes)
    (split,) = plan(where, subscribe="orders")
    with logstore.open(where, delete_grace=0.0) as store:
        store.delete_topic("orders")
        store.collect_garbage()  # until then a lane has what was planned
        if again:
            store.create_topic("orders").append(b"another life")
    with pytest.raises(logstore.UnknownTopic, match="deleted, and offsets 0 to 30 were still to be read"):
        read_all(where, [split], columns)
    assert read_all(where, [split], columns, fail=False) == []
    with pytest.raises(logstore.UnknownTopic, match="deleted"):
        list(LatestScan(Scan(where, columns, True)).rows(split))
    assert sum(batch.num_rows for batch in LatestScan(Scan(where, columns, False)).rows(split)) == 0


def test_S06_a_topic_deleted_while_it_is_planned_is_not_an_empty_one(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 3)], writer="shared")
    objects = open_url(where)
    found = subscribed(objects, Subscription(topics=("orders",)))
    with logstore.open(where) as store:
        store.delete_topic("orders")
    with pytest.raises(logstore.UnknownTopic, match="deleted"):
        load(objects, found)
    assert load(objects, found, missing_ok=True) == []


@pytest.mark.parametrize("lanes", [0, 1])
def test_S08_a_segment_that_is_missing_and_not_replaced_is_an_error_under_either_flag(
    make_log: MakeLog, lanes: int
) -> None:
    where = make_log("orders", [numbered(n * 10, n * 10 + 10) for n in range(3)], lanes=lanes)
    (split,) = plan(where, subscribe="orders")
    open_url(where).delete(whole(split.refs[1].key))
    for fail in (True, False):
        with pytest.raises(logstore.LogStoreError, match=r"\.seg"):
            read_all(where, [split], fail=fail)


def test_S10_the_latest_view_is_the_last_value_of_each_key_without_tombstones(make_log: MakeLog) -> None:
    history = [
        [Record(b"a1", b"a"), Record(b"b1", b"b"), Record(b"none", None), Record(b"c1", b"c")],
        [Record(b"a2", b"a"), Record(None, b"b")],
        [Record(b"d1", b"d"), Record(b"b3", b"b"), Record(None, b"c")],
        [Record(None, b"d"), Record(b"d2", b"d"), Record(b"a3", b"a")],
    ]
    where = make_log("orders", history)
    assert latest(where) == {b"a": b"a3", b"b": b"b3", b"d": b"d2"}
    assert latest(where, endingOffsets='{"orders": {"0": 6}}') == {b"a": b"a2", b"c": b"c1"}


def test_S10_the_latest_view_of_many_segments_equals_a_dict(make_log: MakeLog) -> None:
    segments = [
        [Record(b"%d" % (n * 1000 + i), b"k%d" % (i * 7 % (50 + n))) for i in range(200)] for n in range(8)
    ]
    where = make_log("orders", segments)
    assert latest(where) == {record.key: record.value for segment in segments for record in segment}


def latest(where: str, **given: object) -> dict[bytes, bytes]:
    wanted = options(where, subscribe="orders", view="latest", **given)
    scan = LatestScan(Scan(where, ("key", "value", "offset"), True))
    found = [
        row
        for split in plan_batch(open_url(where), wanted)
        for batch in scan.rows(split)
        for row in batch.to_pylist()
    ]
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"]: row["value"] for row in found}


@pytest.mark.s3
@pytest.mark.parametrize("home", ["moto_url", "seaweed_url"])
def test_S03_the_same_rows_come_from_a_folder_and_from_an_s3_server(
    request: pytest.FixtureRequest, make_log: MakeLog, home: str
) -> None:
    segments = [numbered(n * 50, n * 50 + 50) for n in range(4)]
    on_disk = rows(make_log("orders", segments, segments[:1]), subscribe="orders", minPartitions=4)
    url = request.getfixturevalue(home)()
    with logstore.open(url) as store:
        topic = store.create_topic("orders", partitions=2)
        for number, given in enumerate((segments, segments[:1])):
            for records in given:
                topic.partition(number).append(records)
    assert rows(url, subscribe="orders", minPartitions=4) == on_disk
    assert len(on_disk) == 250


def test_splits_are_small_and_know_nothing_of_clients(make_log: MakeLog) -> None:
    import pickle

    where = make_log("orders", [numbered(0, 3)])
    (split,) = plan(where, subscribe="orders")
    copy = pickle.loads(pickle.dumps(split))
    assert isinstance(copy, Split)
    assert copy == split
    assert len(pickle.dumps(split)) < 1000


@pytest.mark.parametrize(("quick_s", "alone"), [(10.0, 6), (-1.0, 0)])
def test_S06_objects_that_are_there_at_once_are_read_without_a_hand_over(
    monkeypatch: pytest.MonkeyPatch, quick_s: float, alone: int
) -> None:
    """The first three are on their way before it is known how long one takes, and a fourth before a second says the same."""
    monkeypatch.setattr(fan_out, "QUICK_S", quick_s)
    with fetch.Fetcher(MemoryStore(), EVERYTHING) as fetcher:
        loads = (lambda n=n: (n, threading.current_thread()) for n in range(10))
        found = list(fetcher._ahead(loads))
    assert [number for number, _ in found] == list(range(10))
    here = [thread is threading.main_thread() for _, thread in found]
    assert here == [False] * (10 - alone) + [True] * alone


def test_T01_small_batches_are_put_together_and_large_ones_are_not_copied() -> None:
    """Which rows, in which order, and whose memory."""
    sizes = [10, 3000, 20, 30, 20_000, *[2000] * 9, 5]
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    given = [
        pa.record_batch({"offset": pa.array(range(end - size, end))})
        for end, size in zip(ends, sizes, strict=True)
    ]
    found = list(grouped(given))
    assert [row for batch in found for row in batch.column(0).to_pylist()] == list(range(ends[-1]))
    assert [batch.num_rows for batch in found] == [10, 3000, 50, 20_000, 18_000, 5]
    assert found[1] is given[1]
    assert found[3] is given[4]
