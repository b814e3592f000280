"""B14: `visibility="committed"`, embedded and as columns: what transactions have committed, up to the first that is open."""

from __future__ import annotations

import asyncio
import pickle
import random
from pathlib import Path
from typing import Any, ClassVar

import pytest

import logstore
import logstore.aio
from logstore import Record
from logstore.errors import OffsetOutOfRange
from logstore.layout.broker import producers_key
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from logstore.testing import ManualClock
from tests.support.engine.producers import Producers, fold, record
from tests.support.engine.upkeep import merge_all, open_store

pytestmark = pytest.mark.usefixtures("no_checkpoints")

COMMITTED: Any = "committed"


def seen(objects: ObjectStore, clock: ManualClock) -> list[Record]:
    """By a process that has just come."""
    with open_store(objects, clock, writer="read_only") as store:
        return list(store.topic("t").partition(0).records(visibility="committed"))


class Counting(MemoryStore):
    asked: ClassVar[list[str]] = []

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self.asked.append(key)
        return super().get(key, start, end)


class Follower:
    """A process that reads on, now and then."""

    def __init__(self, objects: ObjectStore, clock: ManualClock, rng: random.Random) -> None:
        self.store = open_store(objects, clock, writer="read_only")
        self.log = self.store.topic("t").partition(0)
        self.position, self.rng = 0, rng
        self.found: list[Record] = []

    def read_on(self) -> None:
        while True:
            result = self.log.read(self.position, self.rng.choice([0, 200, 1 << 20]), visibility="committed")
            self.found += result.records()
            assert (result.next_offset == self.position) <= (not result.parts)
            if result.next_offset == self.position:
                return
            self.position = result.next_offset


@pytest.mark.parametrize("lanes", [0, 1])
@pytest.mark.parametrize("seed", range(12))
def test_B14_committed_records_are_seen_once_in_order_and_no_others(seed: int, lanes: int) -> None:
    """Producers interleaved; ended, timed out and left open; snapshots of any age; another writer takes the partition over;
    segments are merged. `Producers` says what is committed and where the first open transaction begins, from the calls."""
    rng, objects, clock = random.Random(seed), MemoryStore(), ManualClock()
    store = open_store(objects, clock, lanes=lanes)
    producers = Producers(store.create_topic("t").partition(0))
    producers.store_snapshot(objects)  # stands before the first transactional batch
    followers = [Follower(objects, clock, rng) for _ in range(2)]
    epochs: dict[int, int] = {}
    for turn in range(60):
        pid, value = rng.randrange(4), b"%d" % turn
        match rng.randrange(9):
            case 0:
                producers.plain(*[record("p", value) for _ in range(rng.randrange(1, 4))])
            case 1 | 2 | 3:
                records = [record(f"{pid}", value + b"-%d" % n) for n in range(rng.randrange(1, 4))]
                producers.send(pid, *records, epoch=epochs.get(pid, 0))
            case 4 | 5:
                producers.end(pid, commit=rng.random() < 0.6, epoch=epochs.get(pid, 0))
            case 6:  # timed out: aborted by a marker of the next epoch
                epochs[pid] = epochs.get(pid, 0) + 1
                producers.end(pid, commit=False, epoch=epochs[pid])
                producers.sequences.pop(pid, None)
            case 7:
                producers.store_snapshot(objects)
            case _ if rng.random() < 0.3:
                store.close()
                store = open_store(objects, clock, lanes=lanes)
                producers.log = store.topic("t").partition(0)
                producers.log.open_writer()
                merge_all(producers.log, clock)
        if turn % 5 == 0:
            rng.choice(followers).read_on()
        if turn % 10 == 9:
            stable = producers.stable
            wanted = producers.committed_below(stable)
            assert seen(objects, clock) == wanted
            assert list(producers.log.records(visibility="committed")) == wanted, (
                "of the writer's own process"
            )
            start = rng.randrange(producers.log.durable_high_watermark + 1)
            above = [each for each in wanted if (each.offset or 0) >= start]
            assert list(producers.log.records(start, visibility="committed")) == above
    for each in followers:
        each.read_on()
        assert each.found == producers.committed_below(producers.stable)
        assert each.position == producers.stable
        each.store.close()
    store.close()


@pytest.mark.parametrize("seed", range(8))
def test_B14_columns_of_committed_records_are_the_same_records(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rng, clock = random.Random(seed), ManualClock()
    objects = LocalStore(tmp_path)
    with open_store(objects, clock, lanes=seed % 2) as store:
        topic = store.create_topic("t", partitions=2)
        of = [Producers(topic.partition(number)) for number in range(2)]
        for producers in of:
            producers.store_snapshot(objects)
        for turn in range(80):
            producers, pid = rng.choice(of), rng.randrange(3)
            if rng.random() < 0.7:
                producers.send(pid, *[record("k", b"%d-%d" % (turn, n)) for n in range(rng.randrange(1, 5))])
            else:
                producers.end(pid, commit=rng.random() < 0.5)
            if rng.random() < 0.05:
                producers.store_snapshot(objects)
        wanted = [
            (number, each.offset, each.value)
            for number, producers in enumerate(of)
            for each in producers.committed_below(producers.stable)
        ]
        everything = sum(log.durable_high_watermark for log in map(topic.partition, range(2)))
        columns = ["partition", "offset", "value"]
        table = topic.to_arrow(columns, visibility=COMMITTED)
        assert [tuple(row.values()) for row in table.to_pylist()] == wanted
        offsets = topic.to_arrow(["offset"], visibility=COMMITTED).column("offset").to_pylist()
        assert offsets == [offset for _, offset, _ in wanted]
        pieces = topic.splits(columns, max_bytes=300, visibility=COMMITTED)
        read = [pickle.loads(pickle.dumps(piece)).read().read_all().to_pylist() for piece in pieces]
        assert [tuple(row.values()) for rows in read for row in rows] == wanted
        assert len(pieces) > 2
        assert len(wanted) < topic.to_arrow(["offset"]).num_rows < everything, (
            "markers are no rows of anybody"
        )


@pytest.mark.parametrize("seed", range(6))
def test_B14_compaction_by_key_leaves_the_same_table_to_committed_readers(seed: int) -> None:
    rng, objects, clock = random.Random(seed), MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, segment_bytes=2000).partition(0)
        producers = Producers(log)
        producers.store_snapshot(objects)
        for turn in range(120):
            pid, key = rng.randrange(3), f"k{rng.randrange(6)}"
            if rng.random() < 0.6:
                producers.send(pid, record(key, b"%d" % turn))
            elif rng.random() < 0.7:
                producers.end(pid, commit=rng.random() < 0.5)
            else:
                producers.plain(record(key, b"plain %d" % turn))
            if rng.random() < 0.1:
                log._internal.maintenance.clean(clock.now_ms())
            if rng.random() < 0.03:
                producers.store_snapshot(objects)
            if turn % 20 == 19:
                assert fold(seen(objects, clock)) == producers.table(producers.stable)
                assert fold(list(log.records(visibility="committed"))) == producers.table(producers.stable)


def test_B14_a_tail_of_committed_records_waits_for_the_marker() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        topic = store.create_topic("t")
        producers = Producers(topic.partition(0))
        producers.store_snapshot(objects)
        producers.plain(record("p", b"1"))
        tails = [producers.log.tail(visibility="committed"), topic.tail(visibility="committed")]
        assert [next(tail).value for tail in tails] == [b"1", b"1"]
        producers.send(7, record("a", b"open"))
        producers.plain(record("p", b"2"))
        assert list(producers.log.records(visibility="committed"))[-1].value == b"1"
        assert producers.log.read(1, visibility="committed").next_offset == 1
        from_end = [
            producers.log.tail("end", visibility="committed"),
            topic.tail("end", visibility="committed"),
        ]
        producers.end(7, commit=True)
        for tail in [*tails, *from_end]:
            assert [next(tail).value for _ in range(2)] == [b"open", b"2"], (
                "the end was the last stable offset"
            )
        producers.send(7, record("a", b"gone"))
        producers.end(7, commit=False)
        producers.plain(record("p", b"3"))
        for tail in [*tails, *from_end]:
            assert next(tail).value == b"3"


def test_B14_a_start_between_the_last_stable_offset_and_the_end_is_inside() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        producers = Producers(store.create_topic("t").partition(0))
        producers.store_snapshot(objects)
        producers.send(7, record("a", b"open"), record("a", b"more"))
        assert list(producers.log.records(1, visibility="committed")) == []
        result = producers.log.read(1, visibility="committed")
        assert (result.parts, result.next_offset) == ((), 1)
        with pytest.raises(OffsetOutOfRange):
            producers.log.records(3, visibility="committed")
        with pytest.raises(OffsetOutOfRange):
            producers.log.read(3, visibility="committed")


def test_B14_without_transactions_a_look_costs_one_request_and_only_when_the_log_has_grown() -> None:
    objects, clock, asked = Counting(), ManualClock(), Counting.asked
    with open_store(objects, clock) as store:
        log = store.create_topic("t").partition(0)
        for n in range(3):
            log.append(record("k", b"%d" % n))
        snapshot = producers_key(log._internal.paths)
        for _ in range(3):
            assert len(list(log.records(visibility="committed"))) == 3
        assert asked.count(snapshot) == 1
        log.append(record("k", b"3"))
        assert len(list(log.records(visibility="committed"))) == 4
        assert asked.count(snapshot) == 2


@pytest.mark.parametrize("left", [b"{", b"[]", b'{"offset": "x"}', b'{"offset": 99, "transactions": {}}'])
def test_B14_a_snapshot_that_says_nothing_is_not_believed(left: bytes) -> None:
    """Nor one that knows more of the log than there is."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        producers = Producers(store.create_topic("t").partition(0))
        objects.put(producers_key(producers.log._internal.paths), left)
        producers.send(7, record("a", b"gone"))
        producers.send(8, record("a", b"kept"))
        producers.end(7, commit=False)
        producers.end(8, commit=True)
        assert [each.value for each in seen(objects, clock)] == [b"kept"]


def test_B14_a_snapshot_that_knows_more_than_the_reader_makes_it_look_again() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store, open_store(objects, clock, writer="read_only") as other:
        producers = Producers(store.create_topic("t").partition(0))
        producers.plain(record("p", b"1"))
        log = other.topic("t").partition(0)
        assert log.durable_high_watermark == 1
        producers.store_snapshot(objects)
        producers.send(7, record("a", b"gone"))
        producers.end(7, commit=False)
        producers.plain(record("p", b"2"))
        producers.store_snapshot(objects)
        assert log._internal.end_seen("committed") == 4, "what it had seen ends at 1"
        assert [each.value for each in log.records(visibility="committed")] == [b"1", b"2"]


def test_B14_who_follows_others_is_at_the_end_when_it_is_at_the_last_stable_offset() -> None:
    """Though more is durable: it asks when that is due, whether the transaction has ended, and not all the time."""
    objects, clock = Counting(), ManualClock()
    with open_store(objects, clock) as store, open_store(objects, clock, writer="read_only") as other:
        producers = Producers(store.create_topic("t").partition(0))
        producers.store_snapshot(objects)
        producers.plain(record("p", b"1"))
        producers.send(7, record("a", b"open"))
        topic = other.topic("t")
        many, _ = topic._internal.many(None, "committed")
        many.put([topic._internal.cursor(0, None)])
        [taken] = many.take(10)
        assert ([each.value for each in taken.records], taken.next_offset) == ([b"1"], 1)
        assert many.take(10) == []
        Counting.asked.clear()
        assert many.take(10) == []
        assert Counting.asked == []
        assert many.delay() <= other.config.follow_interval, "it is due soon, and not in an hour"
        producers.end(7, commit=True)
        clock.advance(other.config.follow_interval)
        [taken] = many.take(10)
        assert [each.value for each in taken.records] == [b"open"]
        many.close()


def test_B14_a_group_of_committed_records_hands_out_no_others() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        producers = Producers(store.create_topic("t").partition(0))
        producers.store_snapshot(objects)
        producers.send(7, record("a", b"gone"))
        producers.send(8, record("a", b"kept"))
        producers.end(7, commit=False)
        producers.end(8, commit=True)
        producers.send(9, record("a", b"open"))
        with store.group("g", ["t"], visibility="committed") as group:
            found: list[Any] = []
            while not found:
                found = group.poll(timeout=1.0)
            assert [each.value for each in found] == [b"kept"]
            assert group.poll(timeout=0) == []
            producers.end(9, commit=True)
            while len(found) < 2:
                found += group.poll(timeout=1.0)
            assert [each.value for each in found] == [b"kept", b"open"]


def test_B14_a_marker_that_retention_took_does_not_hold_a_reader_for_ever() -> None:
    """It has seen the transaction open, and was away when the marker came and was deleted."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store, open_store(objects, clock, writer="read_only") as other:
        producers = Producers(store.create_topic("t").partition(0))
        producers.store_snapshot(objects)
        producers.send(7, record("a", b"open"))
        log = other.topic("t").partition(0)
        assert list(log.records(visibility="committed")) == []
        producers.end(7, commit=True)
        for n in range(3):
            producers.plain(record("p", b"%d" % n))
        producers.log.delete_before(3)
        producers.log._internal.maintenance.compact(clock.now_ms(), bytes(16))
        later = other.topic("t").partition(0).reopen()
        assert [each.value for each in later.records(visibility="committed")] == [b"1", b"2"]
        index = log._internal._transactions
        assert index is not None
        read = later._internal.read
        found = index.learn(3, 5, lambda offset, size: read(offset, size, visibility="durable"))
        assert found.end == 5, "what the first look knew as open has ended"
        topic = other.topic("t")
        assert topic.to_arrow(["value"], visibility=COMMITTED).column("value").to_pylist() == [b"1", b"2"]


def test_B14_with_asyncio_a_read_waits_for_the_marker_and_for_nothing_else() -> None:
    """More records become durable meanwhile, behind the open transaction: the read goes on to wait."""
    objects = MemoryStore()

    async def run() -> None:
        async with logstore.aio.open(objects) as store:
            topic = await store.create_topic("t")
            log = topic.partition(0)
            producers = Producers(log.blocking)
            await asyncio.to_thread(producers.store_snapshot, objects)
            await asyncio.to_thread(producers.send, 7, record("a", b"gone"))
            await asyncio.to_thread(producers.send, 8, record("a", b"kept"))
            tail = log.tail(visibility="committed")
            first = asyncio.ensure_future(anext(tail))
            reading = asyncio.ensure_future(log.read(0, visibility="committed", wait=60))
            await asyncio.to_thread(producers.plain, record("p", b"behind"))
            await asyncio.to_thread(producers.end, 8, commit=True)
            assert (await log.read(0, visibility="committed")).next_offset == 0
            assert not reading.done()
            assert not first.done()
            await asyncio.to_thread(producers.end, 7, commit=False)
            assert [each.value for each in (await reading).records()] == [b"kept", b"behind"]
            assert (await first).value == b"kept"
            assert [each.value async for each in log.records(visibility="committed")] == [b"kept", b"behind"]

    asyncio.run(run())


def test_columns_are_of_stored_records() -> None:
    pytest.importorskip("pyarrow")
    with logstore.open(MemoryStore()) as store:
        topic = store.create_topic("t")
        wrong: Any = "buffered"
        with pytest.raises(ValueError, match="durable or committed"):
            topic.to_arrow(visibility=wrong)
