"""S10 and B14: Spark reads what Kafka's transactions have committed, if asked to: a batch, its latest, a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from logstore.objects import LocalStore
from logstore.spark.options.read_options import read_options
from logstore.testing import ManualClock
from tests.support.engine.producers import Producers, record
from tests.support.engine.upkeep import open_store
from tests.support.spark.stream_reader import ALL, micro_batch, reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def producers(tmp_path: Path) -> Iterator[Producers]:
    objects = LocalStore(tmp_path / "log")
    with open_store(objects, ManualClock()) as store:
        of = Producers(store.create_topic("orders").partition(0))
        of.store_snapshot(objects)
        yield of


def where(tmp_path: Path) -> str:
    return (tmp_path / "log").as_uri()


def write(producers: Producers) -> None:
    """Committed: offsets 0, 3 and 5. Aborted: 1. Open from 7 on, with a record outside of it at 8."""
    producers.plain(record("a", b"0"))
    producers.send(1, record("a", b"1"))
    producers.end(1, commit=False)
    producers.send(2, record("a", b"3"))
    producers.end(2, commit=True)
    producers.plain(record("b", b"5"))
    producers.send(3, record("a", b"6"))
    producers.plain(record("b", b"7"))


@pytest.mark.parametrize(
    "options", [{"visibility": "committed"}, {"kafka.isolation.level": "read_committed"}], ids=str
)
def test_S10_B14_a_batch_holds_what_is_committed(
    spark: SparkSession, producers: Producers, tmp_path: Path, options: dict[str, str]
) -> None:
    write(producers)

    def read(**more: Any) -> list[bytes]:
        source = spark.read.format("logstore").option("subscribe", "orders")
        found = source.options(**more).load(where(tmp_path)).collect()
        return [bytes(row.value) for row in sorted(found, key=lambda row: row.offset)]

    assert read() == [b"0", b"1", b"3", b"5", b"6", b"7"], "as Kafka's source: what is durable"
    assert read(**options) == [b"0", b"3", b"5"]
    assert read(**options, startingOffsets='{"orders": {"0": 1}}') == [b"3", b"5"]
    assert read(**options, endingOffsets='{"orders": {"0": 8}}') == [b"0", b"3", b"5"]
    assert read(**options, view="latest") == [b"3", b"5"]
    assert (
        spark.read.format("logstore").options(subscribe="orders", **options).load(where(tmp_path)).count()
        == 3
    )


def test_S06_B14_a_stream_comes_to_the_last_stable_offset_and_goes_on_when_it_moves(
    producers: Producers, tmp_path: Path
) -> None:
    write(producers)
    stream = reader(where(tmp_path), visibility="committed")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert end == {"orders": {"0": 6}}
    assert [offset for _, offset in micro_batch(stream, start, end)] == [0, 3, 5]
    assert stream.latestOffset(end, ALL) == end
    producers.end(3, commit=False)
    later = stream.latestOffset(end, ALL)
    assert later == {"orders": {"0": 9}}
    assert [offset for _, offset in micro_batch(stream, end, later)] == [7]
    restarted = reader(where(tmp_path), visibility="committed")
    assert [offset for _, offset in micro_batch(restarted, start, end)] == [0, 3, 5], (
        "the same batch, run again"
    )
    assert [offset for _, offset in micro_batch(restarted, start, later)] == [0, 3, 5, 7]


def test_S06_B14_a_stream_that_begins_behind_an_open_transaction_never_goes_back(
    producers: Producers, tmp_path: Path
) -> None:
    write(producers)
    stream = reader(where(tmp_path), visibility="committed", startingOffsets='{"orders": {"0": 7}}')
    start = stream.initialOffset()
    assert start == {"orders": {"0": 7}}
    assert [stream.latestOffset(start, ALL), stream.latestOffset(), stream.latestOffset()] == [start] * 3
    assert micro_batch(stream, start, start) == []
    producers.end(3, commit=True)
    end = stream.latestOffset(start, ALL)
    assert [offset for _, offset in micro_batch(stream, start, end)] == [7]


def test_S06_B14_a_batch_that_was_planned_over_an_open_transaction_is_not_cut_short(
    producers: Producers, tmp_path: Path
) -> None:
    """By a stream that read what is durable, and is run again as one of committed records."""
    write(producers)
    with pytest.raises(logstore.LogStoreError, match="a transaction that began at 6 has not ended"):
        reader(where(tmp_path), visibility="committed").partitions({"orders": {"0": 0}}, {"orders": {"0": 8}})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "durable"),
        ({"visibility": "durable"}, "durable"),
        ({"visibility": "Committed"}, "committed"),
        ({"kafka.isolation.level": "read_uncommitted"}, "durable"),
        ({"kafka.isolation.level": "READ_COMMITTED", "visibility": "committed"}, "committed"),
    ],
)
def test_S02_what_is_seen_is_said_in_our_words_or_in_kafkas(given: dict[str, str], expected: str) -> None:
    usual = {"path": "file:///nowhere", "subscribe": "orders"}
    assert read_options(usual | given, streaming=None).visibility == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kafka.isolation.level": "serializable"}, "read_committed or read_uncommitted"),
        ({"kafka.isolation.level": "read_committed", "visibility": "durable"}, "different things"),
    ],
)
def test_S02_what_contradicts_itself_is_refused(given: dict[str, str], says: str) -> None:
    usual = {"path": "file:///nowhere", "subscribe": "orders"}
    with pytest.raises(ValueError, match=says):
        read_options(usual | given, streaming=None)
