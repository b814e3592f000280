"""What a source's past is known from besides its records: how they were routed, into which topic, and what was trimmed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import logstore
from logstore.errors import Fenced, StoreUnavailable, UnsupportedStore
from logstore.ingest import EVERY_PARTITION, Collector, journal
from logstore.ingest.journal import Journal, Mark, Route
from logstore.ingest.position import Position, Upper
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import GatedStore
from tests.support.ingest.story import (
    PARTITIONS,
    Change,
    Reports,
    Transaction,
    collecting,
    crashing,
    expected,
    feed,
    stored,
    transactions,
    values,
)
from tests.support.patience import PATIENCE_S

STORY = transactions({"orders": 40}, {"orders": 40}, {"orders": 40})


def counted(objects: ObjectStore) -> dict[int, int]:
    """How many records of `orders` each partition has."""
    return {partition: len(records) for (_, partition), records in stored(objects).items()}


def folder(objects: ObjectStore, partition: int) -> str:
    with logstore.open(objects, writer="read_only") as store:
        return f"topics/orders/{store.topic('orders')._internal.descriptor.incarnation}/{partition}/"


def grow(objects: ObjectStore, total: int = 4) -> None:
    with logstore.open(objects) as store:
        store.add_partitions("orders", total)


def crash_between_the_partitions(
    objects: ObjectStore, reports: Reports, story: list[Transaction], stuck: int
) -> None:
    """The first transaction is stored and reported. Of the second, all partitions but one have their share."""
    gated = GatedStore(objects)
    with collecting(gated, reports, lanes=0) as collector:  # of a lane, all have theirs or none has
        feed(collector, story[:1])
        collector.flush()
    before = counted(objects)
    with gated.hold("put", prefix=folder(objects, stuck)) as gate:
        gate.release()
        with crashing(gated, reports, reports.seen[-1], lanes=0) as collector:
            opening = threading.Thread(target=collector.own, args=("orders",))
            opening.start()
            while opening.is_alive():
                gate.release()
                opening.join(0.01)
            feed(collector, story[1:2])
            gate.wait_held(PATIENCE_S)
            pause = threading.Event()
            while counted(objects)[1 - stuck] == before[1 - stuck]:
                pause.wait(0.01)
        gate.fail(StoreUnavailable("the process is gone"))
    assert counted(objects)[stuck] == before[stuck]


@pytest.mark.parametrize("stuck", range(PARTITIONS))
def test_F14_partitions_added_between_a_crash_and_the_replay_lose_and_double_nothing(stuck: int) -> None:
    objects, reports = MemoryStore(), Reports()
    crash_between_the_partitions(objects, reports, STORY, stuck)
    grow(objects)
    with collecting(objects, reports, reports.seen[-1]) as collector:
        feed(collector, STORY, after=reports.seen[-1])
        collector.flush()
    assert values(objects) == expected(STORY)
    assert set(counted(objects)) == {0, 1, 2, 3}, "what is new goes to all of them"
    assert reports.seen[-1] == STORY[-1].boundary


def test_F14_a_source_that_goes_back_behind_two_growths_finds_every_record_where_it_was() -> None:
    objects, reports = MemoryStore(), Reports()
    story = transactions(*[{"orders": 40}] * 4)
    for number, total in enumerate((2, 3, 7, 7), 1):
        if number > 1:
            grow(objects, total)
        with collecting(objects, reports) as collector:
            feed(collector, story[:number])
            collector.flush()
            assert collector.counts.skipped == 40 * (number - 1)
    assert values(objects) == expected(story)
    assert len(counted(objects)) == 7


def test_F14_a_copy_for_every_partition_is_made_for_those_that_there_were() -> None:
    def everywhere(change: Change) -> list[tuple[Any, ...]]:
        return [(*change, (), None, EVERY_PARTITION)]

    objects = MemoryStore()
    with collecting(objects, Reports(), routing=everywhere) as collector:
        feed(collector, STORY[:1])
        collector.flush()
    grow(objects)
    with collecting(objects, Reports(), routing=everywhere) as collector:
        feed(collector, STORY[:2])
        collector.flush()
        assert collector.counts.skipped == 40 * PARTITIONS
    assert counted(objects) == {0: 80, 1: 80, 2: 40, 3: 40}


@pytest.mark.parametrize("made_again", [False, True])
def test_F14_a_topic_that_was_deleted_since_it_was_filled_is_not_made_again_without_a_word(
    made_again: bool,
) -> None:
    objects = MemoryStore()
    with collecting(objects, Reports()) as collector:
        feed(collector, STORY[:1])
        collector.flush()
    with logstore.open(objects) as store:
        store.delete_topic("orders")
        if made_again:
            store.create_topic("orders", PARTITIONS)
    reports = Reports()
    for _ in range(2):  # a supervisor starts it again
        with collecting(objects, reports, STORY[0].boundary) as collector:
            with pytest.raises(UnsupportedStore, match=r"'orders' was deleted.*Start over with a snapshot"):
                feed(collector, STORY[1:])
    assert reports.seen == []
    assert stored(objects) == {}
    with collecting(objects, reports, STORY[0].boundary) as collector:
        collector.begin(10_000, "snapshot", starts_over=True)
        collector.changes([("orders", b"orders-1", b"fresh")])
        collector.commit(10_001)
        collector.flush()
    assert values(objects) == {"orders": [b"fresh"]}


def trim(objects: ObjectStore, *, all_of_it: bool = True) -> None:
    with logstore.open(objects) as store:
        topic = store.topic("orders")
        for partition in range(topic.partitions):
            log = topic.partition(partition)
            log.delete_before(log.durable_high_watermark - (not all_of_it))


@pytest.mark.parametrize("all_of_it", [True, False])
def test_F14_a_replay_of_what_was_trimmed_away_is_skipped_all_the_same(all_of_it: bool) -> None:
    objects, reports = MemoryStore(), Reports()
    with collecting(objects, reports) as collector:
        feed(collector, STORY[:2])
        collector.flush()
        collector.check()
    trim(objects, all_of_it=all_of_it)
    with collecting(objects, reports) as collector:  # the source has forgotten what it was told
        feed(collector, STORY)
        collector.flush()
        assert collector.counts.skipped == 80
    left = [] if all_of_it else values(objects)["orders"][:PARTITIONS]
    assert values(objects)["orders"] == [*left, *expected(STORY[2:])["orders"]]


def test_F14_what_was_trimmed_before_it_was_noted_is_an_error_and_not_stored_again() -> None:
    objects = MemoryStore()
    with collecting(objects, Reports()) as collector:
        feed(collector, STORY[:2])
        collector.flush()
    trim(objects)
    with collecting(objects, Reports()) as collector:
        with pytest.raises(UnsupportedStore, match=r"were deleted.*not noted before.*Start over"):
            feed(collector, STORY)
    assert stored(objects) == {}
    with collecting(objects, Reports()) as collector:
        collector.begin(10_000, "snapshot", starts_over=True)
        collector.changes([(table, key, b"fresh") for table, key, _ in STORY[0].changes])
        collector.commit(10_001)
        collector.flush()
    assert values(objects) == {"orders": [b"fresh"] * 40}


def test_F14_what_others_had_in_a_topic_and_trimmed_is_nothing_to_the_source() -> None:
    objects = MemoryStore()
    with logstore.open(objects) as store:
        store.create_topic("orders", PARTITIONS)
        for partition in range(PARTITIONS):
            store.topic("orders").partition(partition).append([b"foreign"] * 5)
    trim(objects)
    for _ in range(2):
        with collecting(objects, Reports()) as collector:
            feed(collector, STORY)
            collector.flush()
    assert values(objects) == expected(STORY)


def test_F10_a_store_that_hangs_while_a_topic_is_opened_is_said_and_the_source_is_kept_awake() -> None:
    gated, waited = GatedStore(MemoryStore()), threading.Event()
    seen: list[str | None] = []

    class Stop(Exception):
        pass

    def on_wait() -> None:
        seen.append(collector.opening)
        waited.set()
        raise Stop

    with logstore.open(gated, flush_interval=0.01) as store:
        collector: Collector[Any] = Collector(
            store, lambda change: [change], print, source="s", on_wait=on_wait
        )
        with gated.hold("put", prefix="catalog/orders"):
            collector.begin(1)
            with pytest.raises(Stop):
                collector.changes([("orders", b"k", b"v")])
        assert seen == ["orders"]
        collector.close()


def test_F08_the_journal_is_owned_by_the_collector_that_wrote_to_it_last() -> None:
    objects = MemoryStore()
    with logstore.open(objects) as first, logstore.open(objects) as second:
        route = {"t": Route("1", [(0, 1)])}
        older, newer = Journal(first, "s"), Journal(second, "s")
        older.note(routes=route)
        assert newer.read().routes == route
        older.note(origin={"system": "1"})  # to read it was no take-over
        newer.note(routes={"u": Route("2", [(0, 2), (17, 4)])})
        assert newer.origin == {"system": "1"}
        with pytest.raises(Fenced):
            older.note(routes=route)
        assert Journal(second, "s").read().routes == newer.routes


def test_F15_the_journal_is_written_again_when_it_is_long_and_says_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "NOTES_MAX", 10)
    monkeypatch.setattr(journal, "_MARKS_IN_A_NOTE", 3)
    objects = MemoryStore()
    with logstore.open(objects) as store:
        mine = Journal(store, "odd name")
        mine.note(origin={"system": "1"}, routes={"t": Route("i", [(0, 8)]), "u": Route("j", [(0, 1)])})
        for number in range(30):
            upper = Upper(Position(number, 3), number % 2 == 0)
            assert mine.mark([(("t", number % 8), Mark(number, upper))])
            store.flush()
            if mine.is_long:
                mine.write_whole()
        again = Journal(store, "odd name").read()
        assert (again.origin, again.routes) == (mine.origin, mine.routes)
        assert again.routes["t"].marks[5] == Mark(29, Upper(Position(29, 3), False))
        log = store.topic(journal.journal_topic("odd name")).partition(0)
        assert len(list(log.records())) < 20
