"""B13 and B14: compaction by key of a topic that transactions write to. Who reads what is committed finds the same table
before and after; nothing stays open, and nothing of what was aborted stays."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import count

import pytest

from logstore import Record
from logstore.engine.maintenance import offset_map
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import LogStoreError
from logstore.format.batches.batch import BatchInfo, split
from logstore.format.batches.markers import read_marker
from logstore.format.batches.records import decode_records
from logstore.format.batches.transactions import Transactions
from logstore.objects import MemoryStore
from logstore.testing import ManualClock
from tests.support.engine.dying import DiesAt, OvertakenAt
from tests.support.engine.producers import Producers, fold, record
from tests.support.engine.upkeep import merge_all, open_store

pytestmark = pytest.mark.usefixtures("no_checkpoints")

Batches = list[tuple[bytes, BatchInfo]]
END = 1 << 60


def batches_of(objects: MemoryStore, clock: ManualClock) -> Batches:
    """The log, as a process reads it that has just come."""
    found: Batches = []
    with open_store(objects, clock, writer="read_only") as store:
        log, position = store.topic("t").partition(0), 0
        while position < log.durable_high_watermark:
            result = log.read(position, 1 << 20, visibility="durable")
            for part in result.parts:
                raw = bytes(part)
                found += [(raw, info) for info in split(raw)]
            position = result.next_offset
    return found


def read_committed(batches: Batches, known: Transactions) -> list[Record]:
    """As clients do it: they are told what was aborted, by somebody who may have known it for long."""
    stable = known.last_stable(END)
    starts = [(each.first_offset, each.producer_id) for each in known.aborted(0, stable)]
    skipped: set[int] = set()
    found: list[Record] = []
    for raw, info in batches:
        if info.base_offset >= stable:
            break
        while starts and starts[0][0] <= info.last_offset:
            skipped.add(starts.pop(0)[1])
        if info.is_control:
            marker = read_marker(raw, info)
            if marker is not None and not marker.is_commit:
                skipped.discard(marker.producer_id)
        elif not (info.is_transactional and info.producer_id in skipped):
            found += decode_records(raw, info)
    return found


def check(objects: MemoryStore, clock: ManualClock, producers: Producers) -> None:
    batches, wanted = batches_of(objects, clock), producers.known
    stable = wanted.last_stable(END)
    views = [producers.known]  # of the broker that has written all of it
    for offset, dumped in [(0, json.dumps(Transactions().dump(0))), *producers.snapshots]:
        known = Transactions.load(json.loads(dumped))
        for raw, info in batches:
            if info.base_offset >= offset:
                known.replay(raw, info)
        views.append(known)
    for known in views:
        assert known.open == wanted.open, "what is open, and nothing else, and from where on"
        assert known.last_ends == wanted.last_ends
        assert fold(read_committed(batches, known)) == producers.table(stable)


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def producers(objects: MemoryStore, clock: ManualClock) -> Iterator[Producers]:
    with open_store(objects, clock) as store:
        topic = store.create_topic("t", compact=True, segment_bytes=1500, tombstone_seconds=60)
        yield Producers(topic.partition(0))


def clean(producers: Producers, clock: ManualClock) -> int:
    done = producers.log._internal.maintenance.clean(clock.now_ms())
    return done.records


def test_B13_what_was_committed_replaces_and_is_replaced(
    objects: MemoryStore, clock: ManualClock, producers: Producers
) -> None:
    producers.plain(record("a", b"old"))
    producers.send(1, record("a", b"1"), record("b", b"1"))
    producers.end(1, commit=True)
    producers.plain(record("b", b"new"))
    producers.plain(record("end", b"end"))
    assert clean(producers, clock) == 2
    check(objects, clock, producers)
    left = [r.offset for raw, info in batches_of(objects, clock) for r in decode_records(raw, info)]
    assert left == [1, 4, 5]


def test_B13_what_was_aborted_goes_and_replaces_nothing(
    objects: MemoryStore, clock: ManualClock, producers: Producers
) -> None:
    producers.plain(record("a", b"kept"))
    producers.send(1, record("a", b"aborted"), record("b", None))
    producers.send(2, record("a", b"aborted, too"))
    producers.end(2, commit=False)
    producers.end(1, commit=False)
    producers.plain(record("end", b"end"))
    assert clean(producers, clock) == 3
    check(objects, clock, producers)
    assert producers.table(END)[b"a"] == b"kept"


def test_B13_nothing_from_the_last_stable_offset_on_is_touched(
    objects: MemoryStore, clock: ManualClock, producers: Producers
) -> None:
    """Also what others have committed behind it: the pass comes back when the open one has ended."""
    for n in range(3):
        producers.plain(record("a", b"%d" % n))
    producers.send(1, record("b", b"open"))
    for n in range(3):
        producers.plain(record("a", b"%d" % n))
    assert clean(producers, clock) == 2
    assert clean(producers, clock) == 0, "and it does not begin again and again"
    check(objects, clock, producers)
    producers.end(1, commit=True)
    producers.plain(record("end", b"end"))
    assert clean(producers, clock) == 3
    check(objects, clock, producers)


def test_B13_markers_go_when_nobody_needs_them(
    objects: MemoryStore, clock: ManualClock, producers: Producers
) -> None:
    """That of a transaction of which nothing is left; not the last one of a producer, which says its epoch, and not one that
    says aborted, which a consumer may wait for."""
    for n in range(20):
        producers.send(1, record("a", b"%d" % n))
        producers.end(1, commit=n != 10)
    producers.plain(record("end", b"end"))
    clean(producers, clock)
    check(objects, clock, producers)
    markers = [read_marker(raw, info) for raw, info in batches_of(objects, clock) if info.is_control]
    kept = [marker.started_ms for marker in markers if marker is not None]
    assert {11, 20} <= set(kept)
    assert len(kept) <= 2 + len(producers.log._internal._chain.load().segments), "one may keep a run's place"


def test_B13_the_number_of_a_producers_last_batch_stays_known(
    objects: MemoryStore, clock: ManualClock, producers: Producers
) -> None:
    """Its record is replaced; the marker behind it is not its last batch."""
    producers.send(1, record("a", b"1"), record("a", b"2"))
    producers.end(1, commit=True)
    producers.plain(record("a", b"new"))
    producers.plain(record("end", b"end"))
    assert clean(producers, clock) == 2
    check(objects, clock, producers)
    [info] = [info for _, info in batches_of(objects, clock) if info.producer_id == 1 and not info.is_control]
    assert (info.count, info.base_sequence + info.span - 1) == (0, 1)


def prepared() -> tuple[MemoryStore, Producers]:
    """Two producers side by side, in several runs; a transaction of each lies across two of them."""
    made, producers = _made()
    objects = MemoryStore()
    for key, data in made.items():
        objects.put(key, data)
    return objects, producers


@cache
def _made() -> tuple[dict[str, bytes], Producers]:
    objects = MemoryStore()
    with open_store(objects, ManualClock()) as store:
        producers = Producers(store.create_topic("t", compact=True, segment_bytes=4000).partition(0))
        for n in range(6):
            producers.send(1, record("a", b"%d" % n), record(f"only-{n}", b"x"))
            producers.send(2, record("b", b"%d" % n))
            producers.end(1, commit=n != 3)
            producers.plain(record("c", b"%d" % n * 40))
            producers.end(2, commit=n != 4)
        producers.plain(record("end", b"end"))
    return {info.key: objects.get(info.key) for info in objects.list("")}, producers


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_B13_killed_at_any_step_beside_transactions(clock: ManualClock, after: bool) -> None:
    for request in count(after, 3):
        objects, producers = prepared()
        lifeline = DiesAt(objects)
        with open_store(lifeline, clock, writer="read_only") as store:
            log = store.topic("t").partition(0)
            log._internal.state  # noqa: B018
            lifeline.die_at(request, after=after)
            with contextlib.suppress(LogStoreError):
                log._internal.maintenance.clean(clock.now_ms())
            died = lifeline.died
            lifeline.die_at(-1, after=False)
        check(objects, clock, producers)
        with open_store(objects, clock) as store:
            store.topic("t").partition(0)._internal.maintenance.clean(clock.now_ms())
        check(objects, clock, producers)
        if not died:
            assert request > 20
            return


@pytest.mark.parametrize("act", ["merge", "clean"])
def test_B13_overtaken_at_any_step_beside_transactions(clock: ManualClock, act: str) -> None:
    """What is gone over again, because a swap was lost, is judged as at the first time."""
    for request in count(0, 2):
        objects, producers = prepared()
        overtaken = OvertakenAt(objects)
        with (
            open_store(objects, clock) as other_store,
            open_store(overtaken, clock, writer="read_only") as store,
        ):
            other, log = other_store.topic("t").partition(0), store.topic("t").partition(0)

            def meanwhile(other: PartitionLog = other) -> None:
                if act == "merge":
                    merge_all(other, clock)
                else:
                    other._internal.maintenance.clean(clock.now_ms())

            overtaken.overtake_at(request, meanwhile)
            log._internal.maintenance.clean(clock.now_ms())
            check(objects, clock, producers)
            if not overtaken.overtaken:
                assert request > 20
                return


@pytest.mark.parametrize("seed", range(12))
def test_B13_any_history_of_transactions_reads_the_same(
    objects: MemoryStore, clock: ManualClock, producers: Producers, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers that go on side by side, with passes, merges and snapshots at any time, and room for a few keys or many."""
    rng = random.Random(seed)
    monkeypatch.setattr(offset_map, "KEYS_MAX", rng.choice([6, 1 << 10]))

    def some() -> list[Record]:
        keys = [f"key-{rng.randrange(8)}" for _ in range(rng.randint(1, 4))]
        return [record(key, None if rng.random() < 0.2 else rng.randbytes(20)) for key in keys]

    for turn in range(100):
        producer = rng.randrange(4)
        what = rng.random()
        if what < 0.45:
            producers.send(producer, *some())
        elif what < 0.75:
            if producer in producers.open:
                producers.end(producer, commit=rng.random() < 0.6)
        else:
            producers.plain(*some())
        if rng.random() < 0.1:
            producers.snapshot()
        if rng.random() < 0.1:
            merge_all(producers.log, clock)
        if rng.random() < 0.2:
            clean(producers, clock)
            clock.advance(rng.choice([1.0, 61.0]))
        if turn % 10 == 0:
            check(objects, clock, producers)
    for producer in list(producers.open):
        producers.end(producer, commit=False)
    producers.plain(record("end", b"end"))
    clean(producers, clock)
    check(objects, clock, producers)
    left = {r.offset for raw, info in batches_of(objects, clock) for r in decode_records(raw, info)}
    assert not left & producers.aborted
    assert producers.aborted
