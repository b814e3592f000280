"""S02: options and schema are those of Spark's Kafka source, and a bad one is answered with what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StructType

from logstore.arrow.plan.positions import EARLIEST, LATEST, to_json
from logstore.arrow.plan.request import ReadOptions
from logstore.arrow.scan.columns import BASE_COLUMNS, COLUMNS
from logstore.spark.options.read_options import READ_OPTIONS, read_options
from logstore.spark.options.schema import columns_of, spark_schema
from logstore.spark.options.write_options import write_options
from logstore.spark.write.rows import check_write_schema

pytestmark = pytest.mark.spark
GOOD = {"path": "s3://bucket/shop", "subscribe": "orders"}


def struct(fields: str) -> StructType:
    """`name type, …` as a schema, without a Spark session to parse it."""
    schema = StructType()
    for field in fields.split(", "):
        name, kind = field.split(" ")
        schema.add(name, kind)
    return schema


def read(streaming: bool = False, **given: str) -> ReadOptions:
    return read_options(GOOD | given, streaming=streaming)


def test_S02_the_row_is_the_one_of_sparks_kafka_source() -> None:
    assert spark_schema(BASE_COLUMNS).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert (
        spark_schema(COLUMNS)["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    )


def test_S02_names_are_taken_in_any_case_as_spark_hands_them_over() -> None:
    found = read_options(
        {"PATH": "/a", "subscribe": "b,a", "startingoffsets": "earliest", "INCLUDEHEADERS": "true"},
        streaming=True,
    )
    assert found.subscription.topics == ("a", "b")
    assert found.start.offset_of("a", 0) == EARLIEST
    assert found.columns == COLUMNS


def test_S02_a_partial_startingOffsets_reads_the_other_partitions_from_their_earliest_offset() -> None:
    found = read(startingOffsets='{"orders": {"1": 23, "2": -2}}', endingOffsets='{"orders": {"1": 40}}')
    assert [found.start.offset_of("orders", n) for n in (0, 1, 2)] == [EARLIEST, 23, EARLIEST]
    assert [found.end.offset_of("orders", n) for n in (0, 1)] == [LATEST, 40]


def test_S02_defaults_are_earliest_to_latest_for_a_batch_and_latest_for_a_stream() -> None:
    assert read().start.default == EARLIEST
    assert read().end.default == LATEST
    assert read(streaming=True).start.default == LATEST


def test_S02_a_timestamp_wins_over_timestamps_by_partition_and_those_over_offsets() -> None:
    by_partition: dict[str, Any] = {
        "startingOffsetsByTimestamp": '{"orders": {"0": 7}}',
        "startingOffsets": '{"orders": {"0": 3}}',
    }
    assert read(startingTimestamp="9", **by_partition).start.timestamp_of("orders", 0) == 9
    found = read(**by_partition).start
    assert found.timestamp_of("orders", 0) == 7
    assert found.timestamp_of("orders", 1) is None
    assert found.offset_of("orders", 1) == EARLIEST


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": ""}, "names no topic"),
        ({"assign": '{"orders": [0]}'}, "exactly one of subscribe, subscribePattern and assign"),
        ({"startingOffsets": "soon"}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"orders": {"zero": 1}}'}, "'zero' is no partition number"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "at least -2"),
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "cannot be earliest"),
        ({"startingTimestamp": "yesterday"}, "whole number, at least 0"),
        ({"minPartitions": "0"}, "whole number, at least 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        (
            {"columns": "value,colour"},
            "key, value, topic, partition, offset, timestamp, timestampType, headers",
        ),
        ({"columns": "value,value"}, "each once"),
        ({"view": "newest"}, "log, latest, upsert"),
        ({"visibility": "buffered"}, "durable or committed records"),
        ({"maxOffsetsPerTrigger": "5"}, "spark.readStream alone"),
        ({"path": ""}, "s3://bucket/prefix or file:///folder"),
        ({"path": "memory://x"}, "cannot see this one's memory"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "error, latest"),
    ],
)
def test_S02_a_bad_value_is_answered_with_what_is_allowed(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(**given)
    assert says in str(caught.value)


def test_S02_an_unknown_option_is_answered_with_all_that_there_are() -> None:
    with pytest.raises(ValueError, match="unknown option 'startOffset'") as caught:
        read(startOffset="earliest")
    assert all(name in str(caught.value) for name in READ_OPTIONS)
    with pytest.raises(ValueError, match="there is no broker to configure"):
        read(**dict[str, Any]({"kafka.bootstrap.servers": "localhost:9092"}))
    with pytest.raises(ValueError, match="what is read is said by subscribe"):
        read(topic="orders")
    for name in ("groupIdPrefix", "fetchOffset.numRetries", "kafkaConsumer.pollTimeoutMs"):
        with pytest.raises(ValueError, match="there is no consumer and no broker: leave it out"):
            read(**dict[str, Any]({name: "5"}))
    with pytest.raises(ValueError, match=r"scan\(…, where=…\)"):
        read(pushFilters="true")


def test_S11_a_pattern_of_javas_is_refused_with_what_python_calls_it() -> None:
    options = {"path": "/a", "subscribePattern": r"\p{Alpha}+"}
    with pytest.raises(ValueError, match="no regular expression of Python's") as caught:
        read_options(options, streaming=False)
    assert r"[A-Za-z] for \p{Alpha}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("30 s", 30), ("250", 0.25), ("2h", 7200), ("1min", 60), ("40ms", 0.04)],
)
def test_S02_a_trigger_delay_is_said_as_spark_says_it(text: str, seconds: float) -> None:
    assert read(streaming=True, maxTriggerDelay=text).max_trigger_delay_s == pytest.approx(seconds)


def test_S02_limits_of_a_micro_batch_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="minOffsetsPerTrigger=6 is more than maxOffsetsPerTrigger=5"):
        read(streaming=True, minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")
    with pytest.raises(ValueError, match="such as 15m"):
        read(streaming=True, maxTriggerDelay="soon")
    assert read(streaming=True).max_trigger_delay_s == 900


def test_S07_the_sink_takes_includeHeaders_as_kafkas_does() -> None:
    write_options({"path": "/a", "topic": "t", "includeHeaders": "true"}, streaming=False)
    with pytest.raises(ValueError, match="true or false"):
        write_options({"path": "/a", "includeHeaders": "perhaps"}, streaming=False)


def test_S02_stream_and_batch_options_are_told_apart() -> None:
    with pytest.raises(ValueError, match=r"endingOffsets is for spark\.read alone"):
        read(streaming=True, endingOffsets="latest")


def test_S02_a_schema_of_ones_own_must_use_our_names_and_types() -> None:
    assert columns_of(struct("value binary, offset long")) == ("value", "offset")
    with pytest.raises(ValueError, match="column value string"):
        columns_of(struct("value string"))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (StructType().add("value", "binary", nullable=False), "column value may be null"),
        (StructType().add("offset", "long").add("offset", "long"), "name each column once"),
        (StructType(), "name each column once"),  # rows without a column could not even be counted
    ],
)
def test_S02_a_schema_of_ones_own_that_no_row_could_have_is_refused_before_a_task_runs(
    schema: StructType, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        columns_of(schema)


def test_S06_offsets_are_written_in_one_order_because_spark_compares_them_as_text() -> None:
    assert str(to_json({"b": {10: 1, 2: 5}, "a": {0: 3}})) == "{'a': {'0': 3}, 'b': {'2': 5, '10': 1}}"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"compression": "rar"}, "none, gzip, snappy, lz4, zstd"),
        ({"txnAppId": "nightly"}, "go together"),
        ({"txnAppId": "", "txnVersion": "1"}, "txnAppId is empty"),
        ({"txnAppId": "nightly", "txnVersion": str(2**63)}, f"at least 0 and at most {2**63 - 1}"),
        ({"topic": "a/b"}, "no topic name"),
        ({"subscribe": "orders"}, "unknown option 'subscribe' for writing; where rows go is said by topic"),
    ],
)
def test_S07_a_bad_write_option_is_answered_with_what_is_allowed(given: dict[str, str], says: str) -> None:
    with pytest.raises(Exception, match=says):
        write_options({"path": "/a"} | given, streaming=False)


def test_S07_sparks_own_stream_options_come_along_and_are_no_mistake() -> None:
    assert (
        write_options(
            {"path": "/a", "topic": "t", "checkpointlocation": "/c", "queryname": "q"}, streaming=True
        ).topic
        == "t"
    )


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("key binary", "no column value"),
        ("value integer", "value is int; it must be binary or string"),
        ("value binary", "option topic"),
        ("value binary, topic string, headers string", "headers is string"),
        ("value binary, topic string, value string", "more than one column is named value"),
    ],
)
def test_S07_rows_that_cannot_be_records_are_refused_before_a_task_runs(ddl: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_write_schema(struct(ddl), None)
    assert says in str(caught.value)
