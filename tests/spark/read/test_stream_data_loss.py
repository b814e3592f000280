"""S06: what a stream says of records, partitions and topics that went before it had read them."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import logstore
from logstore.arrow.plan.heads import Heads
from logstore.arrow.plan.request import Subscription
from logstore.arrow.scan.columns import BASE_COLUMNS
from logstore.objects import open_url
from logstore.spark.options.read_options import read_options
from logstore.spark.options.schema import spark_schema
from logstore.spark.read.stream import LogStreamReader
from tests.support.spark.material import numbered
from tests.support.spark.stream_reader import ALL, MakeLog, micro_batch, reader
from tests.support.spark.upkeep import expire_half, merge_everything

pytestmark = pytest.mark.spark


def test_S06_retention_that_overtakes_a_stream_is_an_error_or_a_jump_as_failOnDataLoss_says(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(n * 10, n * 10 + 10) for n in range(6)], lanes=0)
    before = reader(where)
    start = before.initialOffset()
    end = before.latestOffset(start, ALL)
    paths = before.partitions(start, end)[0].value.paths
    low = expire_half(where, paths)
    for fail in ("true", "false"):
        for stream in (before, reader(where, failOnDataLoss=fail)):
            stream._options = reader(where, failOnDataLoss=fail)._options
            stream._scan = reader(where, failOnDataLoss=fail)._scan
            if fail == "true":
                with pytest.raises(logstore.OffsetOutOfRange, match=f"holds {low} to 60"):
                    micro_batch(stream, start, end)
            else:
                assert micro_batch(stream, start, end) == [(0, n) for n in range(low, 60)]


def test_S06_a_new_partition_whose_first_records_are_gone_is_data_loss(make_log: MakeLog) -> None:
    """A micro-batch that is run again would else have fewer rows than the first time, and nobody would know."""
    where = make_log("orders", [numbered(0, 3)])
    streams = {fail: reader(where, failOnDataLoss=fail) for fail in ("true", "false")}
    start = streams["true"].initialOffset()
    with logstore.open(where) as store:
        store.add_partitions("orders", 2)
    make_log("orders", [], [numbered(n * 10, n * 10 + 10) for n in range(6)])
    end = streams["true"].latestOffset(start, ALL)
    assert end == {"orders": {"0": 3, "1": 60}}
    paths = streams["true"].partitions(start, end)[-1].value.paths
    low = expire_half(where, paths)
    streams = {fail: reader(where, failOnDataLoss=fail) for fail in ("true", "false")}
    with pytest.raises(
        logstore.OffsetOutOfRange, match=f"offset 0 is outside of orders/1, which holds {low} to 60"
    ):
        streams["true"].partitions(start, end)
    with pytest.raises(
        logstore.OffsetOutOfRange, match=f"offset 0 is outside of orders/1, which holds {low} to 60"
    ):
        streams["true"].latestOffset(start, ALL)
    expected = [(0, n) for n in range(3)] + [(1, n) for n in range(low, 60)]
    assert micro_batch(streams["false"], start, end) == expected
    assert micro_batch(streams["false"], start, streams["false"].latestOffset(start, ALL)) == expected


def test_S06_a_rate_limit_counts_records_that_are_there_and_not_those_that_retention_took(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(n * 10, n * 10 + 10) for n in range(6)])
    start = reader(where).initialOffset()
    low = expire_half(where, reader(where).partitions(start, {"orders": {"0": 60}})[0].value.paths)
    stream = reader(where, failOnDataLoss="false")
    end = stream.latestOffset(start, ReadMaxRows(4))
    assert end == {"orders": {"0": low + 4}}
    assert micro_batch(stream, start, end) == [(0, n) for n in range(low, low + 4)]


def test_S06_a_topic_that_was_recreated_is_data_loss_and_not_silence(make_log: MakeLog) -> None:
    where = make_log("orders", [numbered(0, 10)])
    stream = reader(where)
    start = {"orders": {"0": 10}}
    assert stream.latestOffset(start, ALL) == start
    with logstore.open(where) as store:
        store.delete_topic("orders")
        store.create_topic("orders").append(b"another life")
    with pytest.raises(
        logstore.OffsetOutOfRange, match="offset 10 is outside of orders/0, which holds 0 to 1"
    ):
        stream.latestOffset(start, ALL)
    going_on = reader(where, failOnDataLoss="false")
    for limit in (ALL, ReadMaxRows(5)):  # the next record of the new topic is the next one read, limit or not
        assert going_on.latestOffset(start, limit) == {"orders": {"0": 1}}


def test_S06_data_loss_is_seen_also_where_spark_does_not_say_where_a_batch_starts(make_log: MakeLog) -> None:
    """Before Spark 4.2 the latest offset is asked for alone."""
    where = make_log("orders", [numbered(0, 4)])
    make_log("spare", [numbered(0, 9)])
    strict = reader(where, subscribePattern="orders|spare", subscribe=None)
    going_on = reader(where, subscribePattern="orders|spare", subscribe=None, failOnDataLoss="false")
    start = {"orders": {"0": 1}, "spare": {"0": 2}}
    with logstore.open(where) as store:
        store.delete_topic("spare")
    end = strict.latestOffset()
    assert end == {"orders": {"0": 4}}
    with pytest.raises(logstore.UnknownTopic, match=r"spare/0 \(read up to 2\)"):
        strict.partitions(start, end)
    assert micro_batch(going_on, start, end) == [(0, 1), (0, 2), (0, 3)]
    with logstore.open(where) as store:
        store.create_topic("spare").append(b"another life")
    with pytest.raises(logstore.OffsetOutOfRange, match="offset 2 is outside of spare/0, which holds 0 to 1"):
        strict.partitions(start, strict.latestOffset())
    assert micro_batch(going_on, start, going_on.latestOffset()) == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("how", [{"subscribe": "orders,spare"}, {"subscribePattern": "orders|spare"}])
def test_S06_a_topic_deleted_under_a_stream_is_data_loss_and_the_others_go_on_if_that_is_allowed(
    make_log: MakeLog, how: dict[str, str]
) -> None:
    where = make_log("orders", [numbered(0, 4)])
    make_log("spare", [numbered(0, 9)])

    def stream(fail: str) -> LogStreamReader:
        given = {"path": where, "startingOffsets": "earliest", "pollInterval": "0", "failOnDataLoss": fail}
        return LogStreamReader(read_options(given | how, streaming=True), spark_schema(BASE_COLUMNS))

    strict, going_on = stream("true"), stream("false")
    start = {"orders": {"0": 1}, "spare": {"0": 2}}
    planned = {"orders": {"0": 3}, "spare": {"0": 5}}  # a micro-batch whose end is in the checkpoint already
    for one in (strict, going_on):
        assert one.latestOffset(start, ALL) == {"orders": {"0": 4}, "spare": {"0": 9}}
    with logstore.open(where) as store:
        store.delete_topic("spare")
    with pytest.raises(logstore.UnknownTopic, match="spare"):
        strict.latestOffset(start, ALL)
    with pytest.raises(logstore.UnknownTopic, match="spare"):
        strict.partitions(start, planned)
    assert micro_batch(going_on, start, planned) == [(0, 1), (0, 2)]
    for limit in (ALL, ReadMaxRows(100)):
        assert going_on.latestOffset(start, limit) == {"orders": {"0": 4}}
    after = going_on.latestOffset(planned, ALL)
    with logstore.open(where) as store:
        store.create_topic("spare").append(b"another life")
    end = going_on.latestOffset(after, ALL)
    assert end == {"orders": {"0": 4}, "spare": {"0": 1}}
    assert micro_batch(going_on, after, end) == [(0, 0)], (
        "a topic that comes later starts at its earliest record"
    )


def test_S06_assigned_partitions_that_a_topic_recreated_no_longer_has_are_data_loss(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(0, 4)], [numbered(0, 9)])

    def stream(fail: str) -> LogStreamReader:
        given = {"path": where, "assign": '{"orders": [0, 1]}', "pollInterval": "0", "failOnDataLoss": fail}
        return LogStreamReader(read_options(given, streaming=True), spark_schema(BASE_COLUMNS))

    start = stream("true").initialOffset()
    with logstore.open(where) as store:
        store.delete_topic("orders")
        store.create_topic("orders")
    make_log("orders", [numbered(0, 6)])
    with pytest.raises(logstore.UnknownTopic, match="partitions 0 to 0, not 1"):
        stream("true").latestOffset(start, ALL)
    end = stream("false").latestOffset(start, ALL)
    assert end == {"orders": {"0": 6}}
    assert micro_batch(stream("false"), start, end) == [(0, 4), (0, 5)]
    with pytest.raises(logstore.UnknownTopic, match="partitions 0 to 0, not 1"):
        stream("false").initialOffset()


def test_S06_a_topic_that_is_not_there_when_a_stream_begins_is_an_error_under_either_flag(
    make_log: MakeLog,
) -> None:
    where = make_log("orders", [numbered(0, 4)])
    for fail in ("true", "false"):
        with pytest.raises(logstore.UnknownTopic, match="'odrers'"):
            reader(where, subscribe="odrers", failOnDataLoss=fail).initialOffset()


def test_S06_a_stream_that_missed_segments_before_they_were_merged_away_finds_the_log_again(
    make_log: MakeLog,
) -> None:
    """It looks every second, and never pauses for long."""
    where = make_log("orders", [numbered(0, 3)])
    now = [100.0]
    heads = Heads(open_url(where), Subscription(topics=("orders",)), 1.0, lambda: now[0])
    paths = heads.current()["orders", 0].paths
    make_log("orders", [numbered(n, n + 1) for n in range(3, 9)])
    assert merge_everything(where, paths) > 1
    ends = []
    for _ in range(61):
        now[0] += 1.0
        ends.append(heads.current()["orders", 0].end)
    assert ends[-1] == 9
