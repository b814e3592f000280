"""S03, S04, S05: planning reads manifests, prunes by what they say, and cuts the work into tasks. No Spark needed."""

from __future__ import annotations

import json
import logging
import pickle
import tracemalloc
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle

import logstore
from logstore.arrow.plan.bounds import EVERYTHING, FOREVER, Bounds
from logstore.arrow.plan.heads import Heads
from logstore.arrow.plan.log_partitions import side_by_side
from logstore.arrow.plan.planner import plan_batch
from logstore.arrow.plan.request import Subscription
from logstore.format.stored.manifest import Manifest, SegmentTable
from logstore.format.stored.segment import WriterMode
from logstore.layout.catalog import Catalog
from logstore.layout.paths import PartitionPaths
from logstore.objects import MemoryStore, MeteredStore, fan_out, open_url
from logstore.spark.read.where import bounds_of, columns_in
from tests.support.spark.material import START_MS, at, numbered, offsets, options, plan, read_all, rows

pytestmark = pytest.mark.spark
MakeLog = Callable[..., str]


def test_S03_a_read_is_a_snapshot_of_the_moment_it_was_planned(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 10)])
    planned = plan(where, subscribe="orders")
    make_log("orders", [numbered(10, 20)])
    first, again = read_all(where, planned), read_all(where, planned)
    assert [row["value"] for row in first] == [b"v%d" % n for n in range(10)]
    assert first == again
    assert len(rows(where, subscribe="orders")) == 20


def test_S03_only_durable_records_are_read(where: str) -> None:
    with logstore.open(where, flush_interval=3600) as store:
        orders = store.create_topic("orders")
        orders.append(b"stored")
        orders.append(b"acked in the buffer", ack="buffered")
        assert [row["value"] for row in rows(where, subscribe="orders")] == [b"stored"]


def test_S04_planning_costs_a_manifest_a_listing_and_a_tail_for_each_newer_segment_alone(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(n, n + 1) for n in range(150)], [numbered(0, 5)], lanes=0)
    metered = MeteredStore(open_url(where))
    planned = plan_batch(metered, options(where, subscribe="orders"))
    done = metered.snapshot()
    assert planned[-1].stop == 5
    newer = _segments_behind_the_manifest(where, planned[0].paths) + 2  # partition 1: a fence and a segment
    assert done["get"].requests == 1 + 2 + newer + 2, "and a look at each partition's horizon"
    assert done["list"].requests == 2
    assert newer < 100, "a manifest is written every 64 segments"


def test_S04_a_split_comes_to_an_executor_as_it_was_planned(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(n, n + 1) for n in range(150)])
    narrow = bounds_of("offset >= 17 and offset < 120")
    for bounds in (EVERYTHING, narrow):
        planned = plan_batch(open_url(where), options(where, subscribe="orders", minPartitions="3"), bounds)
        assert len(planned) >= 3
        assert [pickle.loads(cloudpickle.dumps(split)) for split in planned] == planned


@pytest.mark.parametrize("is_far", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000])
def test_S04_what_is_asked_side_by_side_comes_in_order(
    count: int, is_far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fan_out, "QUICK_S", -1.0 if is_far else 10.0)
    assert side_by_side(lambda n: n * n, range(count)) == [n * n for n in range(count)]


@pytest.mark.parametrize("bad", [0, 1, 2, 999])
def test_S04_the_first_error_of_what_is_asked_side_by_side_is_raised(bad: int) -> None:
    def call(number: int) -> None:
        if number >= bad:
            raise LookupError(number)

    with pytest.raises(LookupError):
        side_by_side(call, range(1000))


def _segments_behind_the_manifest(where: str, paths: PartitionPaths) -> int:
    store = open_url(where)
    next_seq = Manifest.parse(store.get(paths.manifest)).next_seq
    numbers = [paths.seq_of(info.key) for info in store.list(paths.prefix)]
    return sum(number is not None and number >= next_seq for number in numbers)


def test_S04_filters_prune_partitions_segments_and_batches_before_a_byte_is_fetched(
    make_log: MakeLog,
) -> None:
    where = make_log(
        "orders", *([numbered(n, n + 10) for n in range(0, 100, 10)] for _ in range(3)), flush_interval=3600
    )
    wanted = options(where, subscribe="orders")
    metered = MeteredStore(open_url(where))
    condition = "partition = 1 and offset >= 35 and timestamp < timestamp'2023-11-14 22:13:20.060'"
    planned = plan_batch(metered, wanted, bounds_of(condition))
    assert [(split.paths.partition, [ref.base_offset for ref in split.refs]) for split in planned] == [
        (1, [30, 40, 50, 60])
    ], "the segment at 60 starts at the very millisecond that `<` leaves out: bounds are wide, never narrow"
    assert offsets(read_all(where, planned)) == [(1, n) for n in range(35, 70)]


@pytest.mark.parametrize(
    ("where", "partitions", "offsets"),
    [
        ("partition in (0, 2)", {0, 2}, (0, FOREVER)),
        ("PARTITION IN (0, 2) AND `partition` <> 0", {0, 2}, (0, FOREVER)),
        ("topic = 'other'", set(), (0, FOREVER)),
        ("'orders' = topic and offset == 7", {0, 1, 2}, (7, 8)),
        ("7 > offset", {0, 1, 2}, (0, 7)),
        ("offset between 3 and 5 and partition <=> 1", {1}, (3, 6)),
        ("(partition >= 1 and (partition <= 2)) and lower(topic) = 'x'", {1, 2}, (0, FOREVER)),
    ],
)
def test_S04_a_condition_prunes_by_what_it_says_of_partitions_and_offsets(
    where: str, partitions: set[int], offsets: tuple[int, int]
) -> None:
    bounds = bounds_of(where)
    assert {n for n in range(3) if bounds.takes("orders", n)} == partitions
    assert bounds.offset_range == offsets


@pytest.mark.parametrize(
    "where",
    [
        "not partition = 1",
        "partition = 1 or offset > 5",
        "(partition = 1 or true)",
        "value = 'v1'",
        "partition = 1.5",
        "partition = 1L",
        "partition = -1",
        "partition not in (1, 2)",
        "partition in (1, offset)",
        "not partition between 1 and 2",
        "partition between offset and 2 + 1 or true",
        "case when partition = 1 and offset = 2 then true else false end",
        "partition = 1 + 1",
        "topic = 'it''s'",
        'topic = "orders"',
        "topic = 'a' 'b'",
        "topic = 'a\\'",
        "timestamp > '2023'",
        "timestamp > timestamp'2023-11-14' - interval 1 day",
        "partition = 1 -- or true",
        "partition /* = 2 */ = 1",
        "partition = 1 || true",
        "! partition = 1",
        "partition = 1 = false",
        "partition = 1 is null",
        "timestamp > '2023-13-45'",
    ],
)
def test_S12_a_condition_that_an_index_cannot_judge_prunes_nothing(where: str) -> None:
    assert bounds_of(where, "Mars/Phobos" if "2023-11" in where else "UTC") == EVERYTHING


def test_S04_a_condition_says_which_columns_it_needs() -> None:
    assert columns_in("Partition = 3 and length(value) > 5") == {"partition", "value"}
    assert columns_in("timestampType = 0") == {"timestampType"}


@pytest.mark.parametrize("lanes", [0, 1])
def test_S04_timestamps_start_and_end_a_read_at_the_exact_offset(make_log: MakeLog, lanes: int) -> None:
    late = [record._replace(timestamp_ms=START_MS + 500 - n) for n, record in enumerate(numbered(0, 10))]
    where = make_log("orders", [numbered(0, 100), late, numbered(600, 700)], lanes=lanes)
    found = rows(where, subscribe="orders", startingTimestamp=START_MS + 42, endingTimestamp=START_MS + 650)
    assert [row["offset"] for row in found] == [*range(42, 100), *range(100, 160)]
    with pytest.raises(logstore.LogStoreError, match="startingOffsetsByTimestampStrategy"):
        rows(where, subscribe="orders", startingTimestamp=START_MS + 10_000)
    assert (
        rows(
            where,
            subscribe="orders",
            startingTimestamp=START_MS + 10_000,
            startingOffsetsByTimestampStrategy="latest",
        )
        == []
    )
    some = json.dumps({"orders": {"0": START_MS + 90}})
    assert rows(where, subscribe="orders", startingOffsetsByTimestamp=some)[0]["offset"] == 90


def test_S05_one_large_partition_becomes_many_tasks_that_together_read_each_record_once(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(0, 5000, prefix=b"x" * 100)], compression="none")
    for given in ({"maxBytesPerPartition": 60_000}, {"minPartitions": 7}, {"maxRecordsPerPartition": 333}):
        planned = plan(where, subscribe="orders", **given)
        assert len(planned) >= 7
        assert max(split.stop - split.start for split in planned) <= 1000
        assert [row["offset"] for row in read_all(where, planned)] == list(range(5000))
    exact = plan(where, subscribe="orders", maxRecordsPerPartition=333)
    assert all(len(read_all(where, [split])) <= 333 for split in exact)


def test_S05_small_segments_share_a_task_and_are_never_cut(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(n * 10, n * 10 + 10) for n in range(40)])
    (whole,) = plan(where, subscribe="orders")
    assert len(whole.refs) == 40
    cut = plan(where, subscribe="orders", minPartitions=5)
    assert len(cut) >= 5
    assert all(split.start % 10 == 0 and split.stop % 10 == 0 for split in cut), "cuts fall on borders"
    assert [row["value"] for row in read_all(where, cut)] == [b"v%d" % n for n in range(400)]


def test_S05_a_task_takes_64_MiB_unless_told_otherwise() -> None:
    store = MemoryStore()
    topic = Catalog(store).create("orders", 1, {}, False, "1" * 16)
    store.put(PartitionPaths("orders", topic.incarnation, 0).manifest, _manifest(segments=512))
    planned = plan_batch(store, options("/unused", subscribe="orders"))
    assert [len(split.refs) for split in planned] == [64] * 8, "segments of 1 MiB"


def test_S05_every_partition_with_records_gets_a_task_and_an_empty_one_none(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 3)], [], [numbered(0, 2)])
    assert [split.paths.partition for split in plan(where, subscribe="orders")] == [0, 2]


@pytest.mark.parametrize("offset", [0, 5, 10])
def test_S05_a_range_that_is_empty_gets_no_task_also_inside_of_a_segment(
    make_log: MakeLog, offset: int
) -> None:
    where = make_log("orders", [numbered(0, 10)])
    here = json.dumps({"orders": {"0": offset}})
    assert plan(where, subscribe="orders", startingOffsets=here, endingOffsets=here) == []


def test_S05_a_filter_that_ends_before_the_read_starts_gets_no_task_and_cuts_no_other(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(0, 1000)], [numbered(0, 1000)])
    below_20 = Bounds(offset_range=(0, 20))

    def planned(starts: dict[str, int], **given: str) -> list[tuple[int, int, int]]:
        starting = json.dumps({"orders": starts})
        wanted = options(where, startingOffsets=starting, minPartitions=2, **given)
        splits = plan_batch(open_url(where), wanted, below_20)
        return [(split.paths.partition, split.start, split.stop) for split in splits]

    alone = planned({"1": 10}, assign='{"orders": [1]}')
    assert 2 <= len(alone) <= 3
    assert planned({"0": 500, "1": 10}, subscribe="orders") == alone


def test_S02_offsets_out_of_range_are_data_loss_and_obey_the_flag(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 10)])
    beyond: dict[str, Any] = {"subscribe": "orders", "endingOffsets": '{"orders": {"0": 99}}'}
    with pytest.raises(
        logstore.OffsetOutOfRange, match=r"offset 99 is outside of orders/0, which holds 0 to 10"
    ):
        rows(where, **beyond)
    assert len(rows(where, failOnDataLoss="false", **beyond)) == 10
    with pytest.raises(logstore.UnknownTopic, match="partition 7 of 'orders'"):
        rows(where, subscribe="orders", startingOffsets='{"orders": {"7": 1}}')


def test_S02_subscribe_pattern_and_assign_choose_partitions(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 2)], [numbered(0, 3)])
    make_log("orders-eu", [numbered(0, 4)])
    make_log("refunds", [numbered(0, 5)])
    assert len(rows(where, subscribePattern="orders.*")) == 2 + 3 + 4
    assert len(rows(where, subscribe="orders,refunds")) == 2 + 3 + 5
    assert offsets(rows(where, assign='{"orders": [1]}')) == [(1, 0), (1, 1), (1, 2)]
    with pytest.raises(logstore.UnknownTopic, match="'nothing'"):
        rows(where, subscribe="nothing")
    with pytest.raises(logstore.UnknownTopic, match="partitions 0 to 1, not 4"):
        rows(where, assign='{"orders": [4]}')


def test_S04_planning_ten_thousand_partitions_takes_two_requests_each_and_memory_in_proportion_to_segments() -> (
    None
):
    store = MemoryStore()
    catalog = Catalog(store)
    one = _manifest(segments=1)
    wide = catalog.create("wide", 10_000, {}, False, "0" * 16)
    for number in range(10_000):
        store.put(PartitionPaths("wide", wide.incarnation, number).manifest, one)
    metered = MeteredStore(store)
    assert len(plan_batch(metered, options("/unused", subscribe="wide"))) == 10_000
    assert (
        sum(stats.requests for stats in metered.snapshot().values()) <= 2 * 10_000 + 10
    )  # a manifest, a listing

    deep = catalog.create("deep", 1, {}, False, "1" * 16)
    store.put(PartitionPaths("deep", deep.incarnation, 0).manifest, _manifest(segments=50_000))
    tracemalloc.start()
    planned = plan_batch(store, options("/unused", subscribe="deep"))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(len(split.refs) for split in planned) >= 50_000
    assert held < 50_000 * 1_000
    assert len(pickle.dumps(planned)) < 50_000 * 200


def _manifest(segments: int) -> bytes:
    """Of a partition with segments of 1,000 records and 1 MiB each. Planning never looks at those objects."""
    numbers = range(segments)
    columns = [
        array("q", numbers),
        array("q", numbers),
        array("q", (n * 1000 for n in numbers)),
        array("q", (n * 1000 + 1000 for n in numbers)),
        array("q", (1 << 20 for _ in numbers)),
        array("q", (START_MS + n for n in numbers)),
        array("q", (START_MS + n for n in numbers)),
    ]
    end = segments * 1000
    return Manifest(1, segments, 1, WriterMode.EXCLUSIVE, 0, end, end, -1, SegmentTable(*columns)).pack()  # type: ignore[arg-type]


def test_S04_a_timestamp_without_a_zone_is_in_the_sessions_and_bounds_are_never_too_narrow() -> None:
    in_utc = bounds_of("timestamp >= '2023-11-14 22:13:20.005700'")
    assert in_utc.timestamp_range_ms[0] == START_MS + 5
    assert in_utc == bounds_of("timestamp >= '2023-11-14 23:13:20.005700'", "Europe/Berlin")
    assert in_utc == bounds_of("timestamp >= '2023-11-14T23:13:20.005700+01:00'", "Asia/Tokyo")
    hour_ms = 3_600_000
    twice = "2023-10-29 02:30:00"  # clocks were set back there: it was this time of day twice
    low = bounds_of(f"timestamp >= '{twice}'", "Europe/Berlin").timestamp_range_ms[0]
    high = bounds_of(f"timestamp <= '{twice}'", "Europe/Berlin").timestamp_range_ms[1]
    assert high - low == hour_ms + 1


@pytest.mark.parametrize("first_ms", [0, START_MS, 2_200_000_000_000], ids=["1970", "2023", "2039"])
def test_S04_a_bound_lies_in_the_very_millisecond_of_its_timestamp(first_ms: int) -> None:
    """With seconds as a float, a quarter of those in 2039 lay in the millisecond before: their segments were pruned."""
    for moment in range(first_ms, first_ms + 20_000, 7):
        text = at(moment).strftime("%Y-%m-%d %H:%M:%S.%f")
        bounds = bounds_of(f"timestamp <= '{text}'")
        assert bounds.takes_time(moment, moment), moment
        assert not bounds.takes_time(moment + 1, moment + 1), moment


def test_S11_a_pattern_is_found_anywhere_in_a_name_and_never_means_internal_topics(
    make_log: MakeLog, caplog: pytest.LogCaptureFixture
) -> None:
    where = make_log("orders", [numbered(0, 2)])
    make_log("eu-orders", [numbered(0, 4)])
    make_log("__consumer_offsets", [numbered(0, 8)])
    assert len(rows(where, subscribePattern="rder")) == 6
    assert len(rows(where, subscribePattern="^orders")) == 2
    assert len(rows(where, subscribePattern=".*")) == 6
    assert len(rows(where, subscribe="__consumer_offsets")) == 8, "unless it is named"
    assert "is found in no topic" not in caplog.text
    assert rows(where, subscribePattern="Orders|__consumer") == []
    assert "subscribePattern='Orders|__consumer' is found in no topic's name" in caplog.text


@pytest.mark.parametrize(
    "how", [{"subscribe": "orders"}, {"subscribePattern": "o"}, {"assign": '{"orders": [0]}'}]
)
def test_S11_a_path_at_which_there_is_no_log_store_is_said(make_log: MakeLog, how: dict[str, Any]) -> None:
    where = make_log("orders", [numbered(0, 2)])
    with pytest.raises(logstore.UnknownTopic, match="there is no log store") as caught:
        rows(f"{where}-typo", **how)
    assert "-typo" in str(caught.value)


def test_S13_a_plan_says_in_the_log_what_it_reads_and_what_it_prunes(
    make_log: MakeLog, caplog: pytest.LogCaptureFixture
) -> None:
    where = make_log("orders", *([numbered(n, n + 10) for n in range(0, 50, 10)] for _ in range(2)))
    caplog.set_level(logging.INFO, "logstore.arrow.plan")
    plan_batch(open_url(where), options(where, subscribe="orders"), bounds_of("offset >= 20 and offset < 40"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"planned 2 tasks in {where}: 4 of 10 segments, 0.0 of 0.0 MiB")
    assert "offsets orders/0 [0, 50), orders/1 [0, 50)" in line


def test_N08_a_stream_behind_an_open_lane_sees_each_append_and_asks_for_the_lane_once() -> None:
    """What the stream remembers of a lane is never too old by itself: it expires with each look."""
    objects = MemoryStore()
    metered = MeteredStore(objects)
    now = [100.0]
    with logstore.open(objects, lanes=1) as store:
        topic = store.create_topic("t", partitions=8)
        for number in range(8):
            topic.append(b"first", partition=number)
        heads = Heads(metered, Subscription(topics=("t",)), 1.0, lambda: now[0])
        for appended in range(1, 5):
            now[0] += 1.0
            asked = metered.requests
            found = heads.current()
            assert [found["t", number].end for number in range(8)] == [appended] * 8
            if appended > 2:
                assert metered.requests - asked <= 12, (
                    "the topic, and the lane: not something for each partition"
                )
            for number in range(8):
                topic.append(b"next", partition=number)
