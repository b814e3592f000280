"""Shared writers: independent producers in many processes on one partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import logstore
from logstore.engine.shared.shared_writer import SharedWriter
from logstore.errors import (
    AppendTimeout,
    Closed,
    Fenced,
    GapError,
    InvalidRecord,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownTopic,
)
from logstore.format.batches.batch import PATCH_SIZE, encode_batch, split
from logstore.format.batches.record import Record
from logstore.format.stored.segment import WriterMode
from logstore.objects import MemoryStore
from logstore.producer import Producer
from logstore.store import Store
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.actors import TOPIC, contents
from tests.support.engine.harness import headers
from tests.support.patience import PATIENCE_S

Open = Callable[..., Store]


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def opened(objects: MemoryStore, stores: list[Store]) -> Open:
    """Open a store on `objects`, or on a wrapper of them; closed at the end, whatever became of it."""

    def open_one(home: Any = None, **given: Any) -> Store:
        settings: dict[str, Any] = {"writer": "shared", "probe_interval": 0.001, **given}
        store = logstore.open(home if home is not None else objects, **settings)
        store.create_topic(TOPIC, exist_ok=True)
        stores.append(store)
        return store

    return open_one


def log_of(store: Store) -> logstore.PartitionLog:
    return store.topic(TOPIC).partition(0)


def test_W11_two_processes_take_turns_and_each_ack_has_the_final_offset(
    opened: Open, objects: MemoryStore
) -> None:
    a, b = log_of(opened()), log_of(opened())
    acked = [(log.append(value).offset, value) for log, value in ((a, b"1"), (b, b"2"), (a, b"3"), (b, b"4"))]
    assert acked == [(0, b"1"), (1, b"2"), (2, b"3"), (3, b"4")]
    assert contents(objects) == acked


def test_W11_the_loser_rebases_without_encoding_again(opened: Open, objects: MemoryStore) -> None:
    """Its PUT is held; a peer takes its place; the batch is stored behind, the same bytes but for the first sixteen."""
    gated = GatedStore(objects)
    loser, winner = log_of(opened(gated)), log_of(opened())
    raw, _ = encode_batch([Record(b"mine", b"k")], now_ms=1_700_000_000_000)
    with gated.hold("put", suffix=".seg") as gate:
        future = loser._internal.submit_batches(raw)
        gate.wait_held()
        assert winner.append([b"theirs-0", b"theirs-1"]).offset == 0
    receipt = future.result(PATIENCE_S)
    assert (receipt.offset, receipt.last_offset) == (2, 2)
    stored = winner.read(2).raw
    assert stored[PATCH_SIZE:] == raw[PATCH_SIZE:]
    assert split(stored)[0].base_offset == 2
    assert loser._internal.health()["races_lost"] == 1


def test_W11_nobody_sees_a_record_before_its_commit(opened: Open, objects: MemoryStore) -> None:
    gated = GatedStore(objects)
    log = log_of(opened(gated))
    log.append(b"first")
    with gated.hold("put", suffix=".seg") as gate:
        future = log.submit(b"second")
        gate.wait_held()
        assert not future.done()
        assert (log.durable_high_watermark, log.buffered_high_watermark) == (1, 1)
        assert [record.value for record in log.records()] == [b"first"]
    assert future.result(PATIENCE_S).offset == 1
    assert [record.value for record in log.records()] == [b"first", b"second"]


@pytest.mark.parametrize("ack", ["buffered", "local"])
def test_W11_only_durable_acks(opened: Open, ack: Any) -> None:
    log = log_of(opened())
    with pytest.raises(ValueError, match=r"durable|wal_dir"):
        log.append(b"x", ack=ack)
    with pytest.raises(ValueError, match=r"durable|wal_dir"):
        opened().topic(TOPIC).append(b"x", ack=ack)
    assert log.append(b"y").offset == 0


def test_W11_group_commit_shares_segments(opened: Open, objects: MemoryStore) -> None:
    """While one upload is held, 20 appends arrive: they become one segment, each with its own offset."""
    gated = GatedStore(objects)
    log = log_of(opened(gated))
    with gated.hold("put", suffix=".seg") as gate:
        first = log.submit(b"first")
        gate.wait_held()
        others = [log.submit(b"%02d" % number) for number in range(20)]
    offsets = [future.result(PATIENCE_S).offset for future in [first, *others]]
    assert offsets == list(range(21))
    assert len(headers(objects)) == 2
    assert contents(objects) == [(0, b"first"), *((number + 1, b"%02d" % number) for number in range(20))]


def test_W11_an_append_of_many_batches_is_whole(opened: Open, objects: MemoryStore) -> None:
    log = log_of(opened(max_batch_bytes=2000))
    values = [b"%04d" % number * 100 for number in range(30)]
    receipt = log.append(values)
    assert (receipt.offset, receipt.last_offset) == (0, 29)
    assert [value for _, value in contents(objects)] == values
    assert len(headers(objects)) == 1


def test_W05_an_exclusive_fence_stops_shared_writers_and_says_so(opened: Open, objects: MemoryStore) -> None:
    shared, owner = log_of(opened()), log_of(opened(writer="exclusive", take_over=True))
    shared.append(b"before")
    owner.append(b"owned")
    with pytest.raises(Fenced, match=r"exclusive writer of epoch 2 .* at offset 1"):
        shared.append(b"late")
    with pytest.raises(Fenced):
        shared.append(b"later still")
    assert contents(objects) == [(0, b"before"), (1, b"owned")]


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W05_a_shared_writer_that_comes_after_an_exclusive_one_stops_it(
    opened: Open, objects: MemoryStore
) -> None:
    owner, shared = log_of(opened(writer="exclusive")), log_of(opened())
    owner.append(b"owned")
    assert shared.append(b"shared").offset == 1
    with pytest.raises(Fenced):
        owner.append(b"late")
    modes = [(header.mode, header.epoch) for header in headers(objects)]
    shared_ones = [
        (WriterMode.SHARED, 2)
    ] * 2  # the first is empty: it is believed after a look at the horizon
    assert modes == [(WriterMode.EXCLUSIVE, 1), (WriterMode.EXCLUSIVE, 1), *shared_ones]


def test_W05_a_shared_writer_of_an_earlier_era_does_not_join_a_later_one(opened: Open) -> None:
    """shared A | exclusive X | shared B: A slept through X and must not go on as if nothing had happened."""
    a = log_of(opened())
    a.append(b"a")
    log_of(opened(writer="exclusive", take_over=True)).append(b"x")
    assert log_of(opened()).append(b"b").offset == 2
    with pytest.raises(Fenced):
        a.append(b"a again")


def test_W05_shared_and_replicated_writers_stop_each_other(opened: Open, objects: MemoryStore) -> None:
    """Neither of them fences at open: the first commit of the other kind begins a new epoch, and that is enough."""
    shared = log_of(opened())
    shared.append(b"shared")
    replica = log_of(opened()).replicated("r")
    replica.compare_and_append([b"replicated"], 0, 1)
    with pytest.raises(Fenced, match="a replicated writer of epoch 2"):
        shared.append(b"late")
    assert log_of(opened()).append(b"shared again").offset == 2
    with pytest.raises(Fenced, match="a shared writer of epoch 3"):
        replica.compare_and_append([b"late"], 1, 2)
    assert [value for _, value in contents(objects)] == [b"shared", b"replicated", b"shared again"]


def test_W11_offsets_that_readers_may_have_seen_are_not_used_again(
    opened: Open, objects: MemoryStore
) -> None:
    """A buffered ack of an exclusive writer that dies reserved offsets: a shared writer starts behind them."""
    gated = GatedStore(objects)
    owner = log_of(opened(gated, writer="exclusive", ack="buffered", flush_interval=3600.0))
    seen = owner.append(b"seen, never stored")
    shared = log_of(opened())
    receipt = shared.append(b"next")
    assert receipt.offset > seen.offset
    assert [tuple(lost) for lost in shared.lost_ranges()] == [(seen.offset, receipt.offset)]


def test_W11_a_deleted_topic_stops_shared_writers(opened: Open) -> None:
    a, b = opened(), opened()
    log = log_of(a)
    log.append(b"x")
    b.delete_topic(TOPIC)
    with pytest.raises(UnknownTopic):
        log.append(b"y")


def test_W04_lost_answer_then_peer_commits_then_retry_is_one_copy(opened: Open, objects: MemoryStore) -> None:
    """The PUT is carried out, its answer lost, and so is every look at it, until a peer has written behind it."""
    gated = GatedStore(objects)
    faulty = FaultyStore(gated)
    mine, peer = log_of(opened(faulty)), log_of(opened())
    mine.append(b"0")
    faulty.fail("put", suffix=".seg", with_=Fault.LOSE_ANSWER)
    look = faulty.fail("get", suffix=".seg", times=None, with_=Fault.UNAVAILABLE)
    with gated.hold("put", suffix=".seg", after=True) as gate:
        future = mine.submit(b"mine")
        gate.wait_held()  # the object stands; its writer does not know
        assert peer.append(b"peer").offset == 2
    faulty.remove(look)
    assert future.result(PATIENCE_S).offset == 1
    assert contents(objects) == [(0, b"0"), (1, b"mine"), (2, b"peer")]


def test_W04_a_timeout_leaves_the_append_queued_and_says_so(opened: Open, objects: MemoryStore) -> None:
    gated = GatedStore(objects)
    log = log_of(opened(gated))
    log.open_writer()
    with gated.hold("put", suffix=".seg") as gate:
        with pytest.raises(AppendTimeout, match="still queued"):
            log.append(b"slow", timeout=0.01)
        gate.wait_held()
    assert log.append(b"next").offset == 1
    assert contents(objects) == [(0, b"slow"), (1, b"next")]


def test_W11_an_outage_keeps_order_and_loses_nothing(opened: Open, objects: MemoryStore) -> None:
    faulty = FaultyStore(objects)
    log = log_of(opened(faulty))
    log.append(b"0")
    faulty.down()
    futures = [log.submit(b"%d" % number) for number in range(1, 6)]
    faulty.heal()
    assert [future.result(PATIENCE_S).offset for future in futures] == [1, 2, 3, 4, 5]
    assert [value for _, value in contents(objects)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_W11_close_stores_the_tail_or_says_what_is_not(opened: Open, objects: MemoryStore) -> None:
    faulty = FaultyStore(objects)
    fine, broken = opened(), opened(faulty)
    future = log_of(fine).submit(b"tail")
    fine.close()
    assert future.result(0).offset == 0
    log = log_of(broken)
    log.open_writer()
    faulty.down()
    lost = log.submit(b"never")
    with pytest.raises(OutcomeUnknown, match="not in the store"):
        broken.close(timeout=0.05)
    with pytest.raises(OutcomeUnknown):
        lost.result(0)
    with pytest.raises(Closed):
        log.append(b"after")
    assert contents(objects) == [(0, b"tail")]


def test_W11_flush_waits_for_what_is_queued(opened: Open, objects: MemoryStore) -> None:
    gated = GatedStore(objects)
    log = log_of(opened(gated))
    log.open_writer()
    assert log.flush() == 0
    with gated.hold("put", suffix=".seg") as gate:
        log.submit(b"x")
        gate.wait_held()
        with pytest.raises(AppendTimeout):
            log.flush(timeout=0.01)
    assert log.flush() == 1


def test_W06_a_writer_that_slept_past_the_grace_period_does_not_ack_into_the_past(
    objects: MemoryStore,
) -> None:
    """While its PUT slept its place in the chain was taken, merged away and collected: it meets the header that is left."""
    clock, gated = ManualClock(), GatedStore(objects)
    settings: dict[str, Any] = {"clock": clock, "delete_grace": 100.0}
    with (
        logstore.open(gated, writer="shared", **settings) as sleepy,
        logstore.open(objects, writer="shared", **settings) as awake,
    ):
        sleepy.create_topic(TOPIC)
        log_of(sleepy).append(b"0")
        with gated.hold("put", suffix=".seg") as gate:
            late = log_of(sleepy).submit(b"10")
            gate.wait_held()
            for number in range(1, 10):
                log_of(awake).append(b"%d" % number)
            assert log_of(awake)._internal.maintenance.compact(clock.now_ms(), bytes(16)) > 4
            clock.advance(200.0)
            assert log_of(awake)._internal.maintenance.collect(clock.now_ms())
        assert late.result(PATIENCE_S).offset == 10
        assert log_of(awake).append(b"11").offset == 11
    assert [value for _, value in contents(objects)] == [b"%d" % number for number in range(12)]


# Numbered appends


def test_W11_a_retry_by_the_next_life_of_a_process_is_acked_where_the_first_try_stands(
    opened: Open, objects: MemoryStore
) -> None:
    first = Producer(log_of(opened()), 17)
    first.append([b"a", b"b"], sequence=0)
    log_of(opened()).append(b"somebody else")
    again = Producer(log_of(opened()), 17)
    assert again.next_sequence() == 2
    retried = again.append([b"a", b"b"], sequence=0)
    assert (retried.offset, retried.last_offset) == (0, 1)
    assert again.append(b"c", sequence=2).offset == 3
    assert [value for _, value in contents(objects)] == [b"a", b"b", b"somebody else", b"c"]


def test_W11_a_retry_while_the_first_try_is_still_queued_joins_it(opened: Open, objects: MemoryStore) -> None:
    gated = GatedStore(objects)
    producer = Producer(log_of(opened(gated)), 17)
    with gated.hold("put", suffix=".seg") as gate:
        for _ in range(3):
            with pytest.raises(AppendTimeout):
                producer.append(b"once", sequence=0, timeout=0.01)
        gate.wait_held()
    assert producer.append(b"once", sequence=0).offset == 0
    assert contents(objects) == [(0, b"once")]


def test_W11_a_retry_of_an_older_append_that_is_still_queued_joins_it_too(
    opened: Open, objects: MemoryStore
) -> None:
    """0, 1, 2 are queued behind an upload, then 0 and 1 again: five acks, three records."""
    gated = GatedStore(objects)
    producer = Producer(log_of(opened(gated)), 17)
    with gated.hold("put", suffix=".seg") as gate:
        other = Producer(producer._log, 18).submit(b"first", sequence=0)
        gate.wait_held()
        futures = [producer.submit(b"%d" % number, sequence=number) for number in (0, 1, 2, 0, 1)]
    assert other.result(PATIENCE_S).offset == 0
    assert [future.result(PATIENCE_S).offset for future in futures] == [1, 2, 3, 1, 2]
    assert [value for _, value in contents(objects)] == [b"first", b"0", b"1", b"2"]


def test_W11_a_peers_segment_that_could_not_be_read_at_once_still_counts(
    opened: Open, objects: MemoryStore
) -> None:
    """The retry loses a race against the very append it repeats, and the look into that segment fails the first time."""
    gated = GatedStore(objects)
    mine = Producer(log_of(opened(gated)), 17)
    mine.append(b"0", sequence=0)
    assert Producer(log_of(opened()), 17).append(b"1", sequence=1).offset == 1
    refused = StoreUnavailable("no")
    refused.retriable = False  # so that no wrapper repeats it unseen
    with gated.hold("get", suffix=".seg") as reads:
        future = mine.submit(b"1", sequence=1)
        reads.wait_held()  # whose segment it is
        reads.release()
        reads.wait_held()  # its tail, which brings its records along
        reads.fail(refused)
    assert future.result(PATIENCE_S).offset == 1
    assert [value for _, value in contents(objects)] == [b"0", b"1"]


def test_W11_flush_and_close_with_numbered_appends_of_many_batches(
    opened: Open, objects: MemoryStore
) -> None:
    store = opened(max_batch_bytes=2000)
    producer = Producer(log_of(store), 17)
    values = [b"%04d" % number * 100 for number in range(12)]
    future = producer.submit(values, sequence=0)
    assert log_of(store).flush() == 12
    again = producer.submit(values, sequence=0)
    store.close()
    assert (future.result(0).offset, again.result(0).offset) == (0, 0)
    assert [value for _, value in contents(objects)] == values


def test_W11_a_gap_a_part_and_an_old_epoch_are_refused_and_store_nothing(
    opened: Open, objects: MemoryStore
) -> None:
    producer = Producer(log_of(opened()), 17)
    producer.append([b"0", b"1"], sequence=0)
    with pytest.raises(GapError, match="sequence 5 came where 2 is next"):
        producer.append(b"5", sequence=5)
    with pytest.raises(InvalidRecord, match="those before 2 are stored"):
        producer.append([b"1", b"2"], sequence=1)
    renewed = Producer(log_of(opened()), 17, epoch=1)
    assert renewed.next_sequence() == 0
    assert renewed.append(b"new life", sequence=0).offset == 2
    with pytest.raises(Fenced, match="epoch 0 was replaced by epoch 1"):
        producer.append(b"2", sequence=2)
    assert [value for _, value in contents(objects)] == [b"0", b"1", b"new life"]


def test_W11_sequences_wrap_round(opened: Open, objects: MemoryStore) -> None:
    producer = Producer(log_of(opened()), 17)
    last = (1 << 31) - 1
    producer.append(b"last", sequence=last)
    assert producer.next_sequence() == 0
    assert producer.append(b"first", sequence=0).offset == 1
    assert producer.append(b"last", sequence=last).offset == 0
    assert len(contents(objects)) == 2


def test_W11_producers_need_a_shared_store(opened: Open) -> None:
    with pytest.raises(ValueError, match="shared"):
        Producer(log_of(opened(writer="exclusive")), 17)


# Seeing it


def test_health_shows_mode_epoch_races_and_a_stall(objects: MemoryStore) -> None:
    clock, gated = ManualClock(), GatedStore(objects)
    with logstore.open(gated, writer="shared", clock=clock, stall_after=60.0) as store:
        log = store.create_topic(TOPIC).partition(0)
        log.append(b"x")
        assert isinstance(log._internal._writer, SharedWriter)
        clock.advance(1000.0)  # idle for long is no stall
        (seen,) = store.health()["partitions"]
        assert (seen["mode"], seen["state"], seen["epoch"], seen["frontier"]) == ("shared", "writing", 1, 1)
        with gated.hold("put", suffix=".seg") as gate:
            future = log.submit(b"y")
            gate.wait_held()
            clock.advance(61.0)
            (seen,) = store.health()["partitions"]
            assert (seen["state"], seen["held_at_offset"]) == ("stalled", 1)
        future.result(PATIENCE_S)
        (seen,) = store.health()["partitions"]
        assert (seen["state"], seen["races_lost"]) == ("writing", 0)


def test_W03_a_store_that_cannot_be_reached_refuses_to_open(objects: MemoryStore) -> None:
    faulty = FaultyStore(objects)
    with logstore.open(faulty, writer="shared") as store:
        log = store.create_topic(TOPIC).partition(0)
        faulty.down()
        with pytest.raises(StoreUnavailable):
            log.append(b"x", timeout=0.05)
        faulty.heal()
        assert log.append(b"x").offset == 0
