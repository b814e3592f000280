"""S06: the stream reader as Spark drives it, call by call. No Spark session needed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows, ReadMinRows

import logstore
from logstore.arrow.plan import heads as heads_module
from logstore.arrow.plan.heads import Heads
from logstore.arrow.plan.rate import limited
from logstore.arrow.plan.request import Subscription
from logstore.arrow.scan.columns import BASE_COLUMNS
from logstore.engine.chain.chain import Chain
from logstore.layout.catalog import Catalog
from logstore.objects import MeteredStore, open_url
from logstore.spark.options.read_options import read_options
from logstore.spark.options.schema import spark_schema
from logstore.spark.read.stream import LogStreamReader
from tests.support.spark.material import START_MS, numbered, plan
from tests.support.spark.stream_reader import ALL, MakeLog, micro_batch, reader
from tests.support.spark.upkeep import merge_everything

pytestmark = pytest.mark.spark


def test_S06_offsets_are_the_json_of_sparks_kafka_source(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 7)], [numbered(0, 3)])
    stream = reader(where)
    assert stream.initialOffset() == {"orders": {"0": 0, "1": 0}}
    assert reader(where, startingOffsets="latest").initialOffset() == {"orders": {"0": 7, "1": 3}}
    assert reader(where, startingOffsets='{"orders": {"0": 5}}').initialOffset() == {
        "orders": {"0": 5, "1": 0}
    }
    assert reader(
        where, startingTimestamp=START_MS + 4, startingOffsetsByTimestampStrategy="latest"
    ).initialOffset() == {"orders": {"0": 4, "1": 3}}
    with pytest.raises(logstore.UnknownTopic, match="partition 9 of 'orders'"):
        reader(where, startingOffsets='{"orders": {"9": 5}}').initialOffset()
    assert stream.latestOffset(stream.initialOffset(), ALL) == {"orders": {"0": 7, "1": 3}}
    assert stream.latestOffset() == {"orders": {"0": 7, "1": 3}}, "Spark before 4.2 passes nothing"


def test_S06_micro_batches_follow_each_other_without_a_gap_and_the_same_one_gives_the_same_rows(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(0, 10)], [numbered(0, 10)])
    stream = reader(where, maxOffsetsPerTrigger=6)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    seen: list[tuple[int, int]] = []
    at = stream.initialOffset()
    while (end := stream.latestOffset(at, limit)) != at:
        rows = micro_batch(stream, at, end)
        assert len(rows) <= 6
        restarted = reader(where, maxOffsetsPerTrigger=6)
        assert micro_batch(restarted, at, end) == rows
        seen += rows
        at = end
        if len(seen) == 12:
            make_log("orders", [numbered(10, 12)], [])
    assert sorted(seen) == [(0, n) for n in range(12)] + [(1, n) for n in range(10)]
    assert json.dumps(stream.latestOffset(at, limit)) == json.dumps(at), "compared as text"


def test_S06_available_now_ends_at_what_was_there_when_it_began(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 10)])
    stream = reader(where)
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    make_log("orders", [numbered(10, 20)])
    assert stream.latestOffset(start, ReadMaxRows(4)) == {"orders": {"0": 4}}
    assert stream.latestOffset({"orders": {"0": 4}}, ALL) == {"orders": {"0": 10}}
    assert stream.latestOffset({"orders": {"0": 10}}, ALL) == {"orders": {"0": 10}}
    assert stream.reportLatestOffset() == {"orders": {"0": 20}}, (
        "the lag that the query's progress shows is the true one"
    )


def test_S06_a_micro_batch_waits_for_the_least_number_of_records_but_not_for_ever(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 3)])
    now = [100.0]
    named = {
        "path": where,
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "pollInterval": "0",
        "minOffsetsPerTrigger": "5",
        "maxOffsetsPerTrigger": "6",
        "maxTriggerDelay": "60s",
    }
    stream = LogStreamReader(
        read_options(named, streaming=True), spark_schema(BASE_COLUMNS), clock=lambda: now[0]
    )
    limit = stream.getDefaultReadLimit()
    at = stream.latestOffset(stream.initialOffset(), limit)
    assert at == {"orders": {"0": 3}}, "the first one waits for nothing, as in Spark's source"
    make_log("orders", [numbered(3, 7)])
    assert stream.latestOffset(at, limit) == at
    assert stream.latestOffset(at, ALL) == {"orders": {"0": 7}}, "a trigger that takes all waits for nothing"
    now[0] += 59
    assert stream.latestOffset(at, limit) == at
    now[0] += 1
    at = stream.latestOffset(at, limit)
    assert at == {"orders": {"0": 7}}
    make_log("orders", [numbered(7, 20)])
    assert stream.latestOffset(at, limit) == {"orders": {"0": 13}}
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset({"orders": {"0": 19}}, limit) == {"orders": {"0": 20}}, (
        "nothing more would come"
    )
    assert reader(where, minOffsetsPerTrigger=5).getDefaultReadLimit() == ReadMinRows(5)


def test_S06_a_micro_batch_is_limited_by_stored_bytes_and_always_goes_on(make_log: MakeLog) -> None:
    where = make_log(
        "orders", [numbered(n, n + 10) for n in range(0, 100, 10)], [numbered(0, 10)], compression="none"
    )
    stored = sum(ref.size for split in plan(where, subscribe="orders") for ref in split.refs)
    stream = reader(where, maxBytesPerTrigger=stored // 4)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxBytes(stored // 4)
    at, sizes, seen = stream.initialOffset(), [], []
    while (end := stream.latestOffset(at, limit)) != at:
        found = micro_batch(stream, at, end)
        sizes.append(len(found))
        seen += found
        at = end
    assert sorted(seen) == [(0, n) for n in range(100)] + [(1, n) for n in range(10)]
    assert 4 <= len(sizes) <= 6
    tiny = reader(where, maxBytesPerTrigger=1)
    start = tiny.initialOffset()
    assert tiny.latestOffset(start, tiny.getDefaultReadLimit()) == {"orders": {"0": 1, "1": 1}}
    both = reader(where, maxBytesPerTrigger=stored // 4, maxOffsetsPerTrigger=6)
    assert micro_batch(both, start, both.latestOffset(start, both.getDefaultReadLimit())).__len__() <= 6


def test_S11_a_stream_whose_pattern_means_nothing_says_so_once(
    make_log: MakeLog, caplog: pytest.LogCaptureFixture
) -> None:
    where = make_log("orders", [numbered(0, 3)])
    stream = reader(where, subscribe=None, subscribePattern="refunds")
    start = stream.initialOffset()
    for _ in range(3):
        assert stream.latestOffset(start, ALL) == {}
    assert len([one for one in caplog.records if "is found in no topic's name" in one.getMessage()]) == 1
    make_log("old-refunds", [numbered(0, 3)])
    assert stream.latestOffset(start, ALL) == {"old-refunds": {"0": 3}}


@pytest.mark.parametrize("starting", ["latest", '{"orders": {"0": -1}}'])
def test_S06_a_first_micro_batch_that_failed_loses_nothing_though_the_latest_offset_has_moved_on(
    make_log: MakeLog, starting: str
) -> None:
    """Of the first batch Spark notes the end alone: the start is asked for again."""
    where = make_log("orders", [numbered(0, 10)])
    stream = reader(where, startingOffsets=starting)
    start = stream.initialOffset()
    make_log("orders", [numbered(10, 15)])
    end = stream.latestOffset(start, ALL)
    make_log("orders", [numbered(15, 20)])  # and the driver dies before the batch is complete
    after = reader(where, startingOffsets=starting)
    found = micro_batch(after, after.initialOffset(), end)
    while (following := after.latestOffset(end, ALL)) != end:
        found += micro_batch(after, end, following)
        end = following
    assert found == [(0, n) for n in range(10, 20)]


def test_S06_a_stream_that_goes_on_reads_what_came_while_it_began(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 10)], [numbered(0, 5)])
    stream = reader(where, startingOffsets='{"orders": {"0": 4, "1": -1}}')
    start = stream.initialOffset()
    make_log("orders", [numbered(10, 15)], [numbered(5, 7)])
    first = stream.latestOffset(start, ALL)
    assert first == {"orders": {"0": 15, "1": 5}}, "one that begins at its end waits for the second batch"
    second = stream.latestOffset(first, ALL)
    assert micro_batch(stream, start, first) == [(0, n) for n in range(4, 15)]
    assert micro_batch(stream, first, second) == [(1, 5), (1, 6)]


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_S06_what_comes_behind_the_first_micro_batch_is_in_the_second(
    make_log: MakeLog, starting: str
) -> None:
    """Spark asks for the start when it plans the first batch, and again when it runs it. The third may be an hour away."""
    where = make_log("orders", [], [numbered(0, 5)])
    stream = reader(where, startingOffsets=starting)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    micro_batch(stream, stream.initialOffset(), end)
    make_log("orders", [numbered(0, 3)], [])
    assert micro_batch(stream, end, stream.latestOffset(end, ALL)) == [(0, 0), (0, 1), (0, 2)]


def test_S06_new_partitions_and_new_topics_are_picked_up_from_their_earliest_record(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(0, 5)])
    stream = reader(where, startingOffsets="latest")
    pattern = LogStreamReader(
        read_options({"path": where, "subscribePattern": "or.*", "pollInterval": "0"}, streaming=True),
        spark_schema(BASE_COLUMNS),
    )
    start = stream.initialOffset()
    assert pattern.initialOffset() == start == {"orders": {"0": 5}}
    Catalog(open_url(where)).add_partitions("orders", 2)
    with logstore.open(where) as store:
        store.topic("orders").partition(1).append(numbered(0, 3))
        store.create_topic("orchids").append(b"new")
    end = stream.latestOffset(start, ALL)
    assert end == {"orders": {"0": 5, "1": 3}}
    assert micro_batch(stream, start, end) == [(1, 0), (1, 1), (1, 2)]
    assert pattern.latestOffset(start, ALL) == {"orchids": {"0": 1}, "orders": {"0": 5, "1": 3}}


def test_S06_available_now_reads_no_topic_that_comes_later_also_if_there_was_none(make_log: MakeLog) -> None:
    where = make_log("spare", [])
    options = {
        "path": where,
        "subscribePattern": "orders.*",
        "startingOffsets": "earliest",
        "pollInterval": "0",
    }
    stream = LogStreamReader(read_options(options, streaming=True), spark_schema(BASE_COLUMNS))
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    make_log("orders", [numbered(0, 3)])
    assert stream.latestOffset(start, ALL) == start


def test_S06_segments_merged_between_planning_and_reading_give_the_same_rows(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(n * 10, n * 10 + 10) for n in range(8)])
    stream = reader(where)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    tasks = stream.partitions(start, end)
    assert merge_everything(where, tasks[0].value.paths) > 1
    offsets = [n for task in tasks for batch in stream.read(task) for n in batch.column("offset").to_pylist()]
    assert offsets == list(range(80))


def test_S06_a_first_micro_batch_run_again_knows_partitions_that_its_end_does_not(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 4)])
    end = reader(where).latestOffset(reader(where).initialOffset(), ALL)
    make_log("orders2", [numbered(0, 5)])
    again = reader(where, subscribePattern="orders.*", subscribe=None)
    assert micro_batch(again, again.initialOffset(), end) == [(0, n) for n in range(4)]


def test_S06_an_idle_stream_asks_the_store_once_in_a_poll_interval_and_two_requests_for_each_partition(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(0, 3)], [numbered(0, 3)], lanes=0)
    metered = MeteredStore(open_url(where))
    now = [100.0]
    heads = Heads(metered, Subscription(topics=("orders",)), 1.0, lambda: now[0])
    assert {key: found.end for key, found in heads.current().items()} == {("orders", 0): 3, ("orders", 1): 3}
    asked = metered.requests
    for _ in range(50):
        heads.current()
    assert metered.requests == asked
    now[0] += 1.0
    heads.current()
    assert metered.requests == asked + 1 + 2 * 2, "the topic; each partition's next segment and horizon"


def test_S05_S06_a_micro_batch_of_many_partitions_in_a_lane_is_one_task_and_an_idle_stream_asks_for_the_lane(
    tmp_path: Path,
) -> None:
    where = (tmp_path / "lanes").as_uri()
    with logstore.open(where, lanes=1, ack="buffered", flush_interval=3600.0) as store:
        topic = store.create_topic("orders", partitions=40)
        stream = reader(where)
        start: dict[str, Any] = {}
        for turn in range(3):
            for number in range(40):
                topic.partition(number).append([b"a", b"b"])
            store.flush()
            start = start or stream.initialOffset()
            end = stream.latestOffset(start, ALL)
            assert len(stream.partitions(start, end)) == 1
            found = micro_batch(stream, start, end)
            assert sorted(found) == [(n, 2 * turn + at) for n in range(40) for at in range(2)]
            start = end
        metered = MeteredStore(open_url(where))
        now = [100.0]
        heads = Heads(metered, Subscription(topics=("orders",)), 1.0, lambda: now[0])
        for _ in range(3):
            asked = metered.requests
            assert {found.end for found in heads.current().values()} == {6}
            now[0] += 1.0
        assert metered.requests - asked <= 8, "the topic, its claims and the lane; not 40 times something"


def test_S06_what_is_remembered_of_a_long_stream_stays_small(
    make_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads_module, "RELOAD_AFTER_SEGMENTS", 10)
    where = make_log("orders", [numbered(0, 1)])
    heads = Heads(open_url(where), Subscription(topics=("orders",)), 0.0)
    paths = heads.current()[("orders", 0)].paths
    for n in range(4):
        make_log("orders", [numbered(n * 10 + i, n * 10 + i + 1) for i in range(10)])
        (found,) = heads.current().values()
        merge_everything(where, paths)
    assert found.end == 41
    stored = len(Chain(open_url(where), paths).load().segments)
    assert len(found.view.segments) <= stored + 20 < 41


def test_S06_a_rate_limit_is_shared_in_proportion_and_starves_nobody() -> None:
    start = {("t", n): 0 for n in range(4)}
    heads = {("t", 0): 1_000_000, ("t", 1): 1000, ("t", 2): 1, ("t", 3): 0}
    ends = limited(start, heads, 100)
    assert sum(ends.values()) == 100
    assert ends[("t", 0)] >= 97
    assert ends[("t", 1)] >= 1
    assert ends[("t", 2)] == 1
    assert ends[("t", 3)] == 0
    assert limited(start, heads, 10**9) == heads


def test_S06_a_rate_limit_is_used_up_exactly_whatever_waits() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        heads = {("t", n): rng.choice((0, 1, 2, 10, 1000, 10**6)) for n in range(rng.randrange(1, 7))}
        start = {key: rng.randrange(3) for key in heads}
        heads = {key: start[key] + count for key, count in heads.items()}
        most = rng.randrange(1, 200)
        taken = {key: end - start[key] for key, end in limited(start, heads, most).items()}
        waiting = {key: heads[key] - start[key] for key in heads}
        assert sum(taken.values()) == min(most, sum(waiting.values()))
        assert all(0 <= taken[key] <= waiting[key] for key in heads)
        if most >= sum(count > 0 for count in waiting.values()):
            assert all(taken[key] >= 1 for key in heads if waiting[key])
