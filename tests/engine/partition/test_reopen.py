"""A writer that has stopped stays stopped; `reopen` gives a fresh log in the same store, and nothing acked is lost by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import logstore
from logstore.errors import (
    AppendTimeout,
    Closed,
    Fenced,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownTopic,
)
from logstore.layout.catalog import TopicDescriptor
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
    at,
    background,
    drive,
    numbered,
    open_store,
    pairs,
    partition,
    running,
)
from tests.support.patience import PATIENCE_S


def test_W05_a_partition_goes_from_one_store_to_another_and_back_without_either_being_opened_again(
    objects: ObjectStore,
) -> None:
    with running(objects) as one, running(objects) as two:
        first, second = one.create_topic("t"), two.topic("t")
        offsets = [first.append(b"0").offset, second.append(b"1").offset]
        for number in range(2, 8):
            topic = (first, second)[number % 2]
            log = topic.partition(0)
            for _ in range(2):
                with pytest.raises(Fenced, match=r"reopen\(\)"):
                    topic.append(b"refused")
            fresh = log.reopen()
            assert log._internal.replaced
            assert topic.partition(0) is fresh
            assert fresh is not log
            offsets.append(topic.append(b"%d" % number).offset)
            with pytest.raises(Fenced):
                log.append(b"the old one keeps refusing")
        assert offsets == list(range(8))
        assert pairs(second.partition(0)) == at(0, [b"%d" % number for number in range(8)])


def test_W05_every_topic_object_that_is_held_gives_the_fresh_log() -> None:
    objects = MemoryStore()
    with running(objects) as one, running(objects) as two:
        before = one.create_topic("t")
        log = before.partition(0)
        grown = one.add_partitions("t", 2)
        assert grown.partition(0) is log
        log.append(b"a")
        two.topic("t").append(b"b", partition=0)
        with pytest.raises(Fenced):
            log.append(b"c")
        fresh = log.reopen()
        assert before.partition(0) is grown.partition(0) is one.topic("t").partition(0) is fresh
        assert log.reopen() is fresh
        assert fresh.append(b"c").offset == 2


def test_a_log_that_is_replaced_while_a_topic_asks_for_it_is_not_kept() -> None:
    """The store has handed out the old log, another thread reopens it, and only then the topic takes it in."""
    with running(MemoryStore()) as store:
        topic = store.create_topic("t")
        log = store.topic("t").partition(0)
        again = store.add_partitions("t", 2)
        handed_out = again._internal._open
        stale = iter([log])

        def late(descriptor: TopicDescriptor, number: int) -> logstore.PartitionLog:
            found = next(stale, None)
            if found is None:
                return handed_out(descriptor, number)
            found.reopen()
            return found

        again._internal._open = late
        assert again.partition(0) is topic.partition(0)
        assert not again.partition(0)._internal.replaced


def test_L06_a_writer_that_has_not_stopped_is_closed_first_and_leaves_no_gap() -> None:
    objects = MemoryStore()
    with running(objects, ack="buffered") as store:
        log = partition(store)
        log.append(numbered(0, 3))
        epoch = log._internal.epoch
        fresh = log.reopen()
        assert fresh.durable_high_watermark == 3
        with pytest.raises(Closed, match="reopened"):
            log.append(b"refused")
        assert fresh.append(b"next").offset == 3
        assert fresh._internal.epoch == epoch + 1
        assert fresh.lost_ranges() == []
        assert pairs(fresh) == at(0, [*numbered(0, 3), b"next"])


def test_L06_a_log_that_never_wrote_can_be_reopened_too() -> None:
    with running(MemoryStore()) as store:
        log = partition(store)
        fresh = log.reopen()
        with pytest.raises(Closed, match="reopened"):
            log.append(b"refused")
        assert fresh.append(b"x").offset == 0


def test_L06_what_cannot_be_stored_in_time_keeps_the_log_as_it_is() -> None:
    faulty, clock = FaultyStore(MemoryStore()), ManualClock()
    with running(faulty, clock, ack="buffered") as store:
        log = partition(store)
        log.append(b"kept")
        faulty.down()
        reopening = background(log.reopen, 2.0)
        with pytest.raises(AppendTimeout):
            drive(clock, reopening)
        assert not log._internal.replaced
        assert log.append(b"goes on").offset == 1
        assert pairs(log) == [(0, b"kept"), (1, b"goes on")]
        faulty.heal()
        fresh = drive(clock, background(log.reopen))
        assert drive(clock, background(pairs, fresh)) == [(0, b"kept"), (1, b"goes on")]


def test_W05_records_that_a_fence_took_are_still_named_when_the_store_is_closed() -> None:
    objects = MemoryStore()
    one = open_store(objects)
    log = partition(one)
    log.append(b"stored")
    log.append(b"lost", ack="buffered")
    with running(objects) as two:
        two.topic("t").append(b"theirs")
    with pytest.raises(Fenced):
        log.flush()
    fresh = log.reopen()
    assert fresh.append(b"mine again").durability == "durable"
    assert (1, b"lost") not in pairs(fresh)
    assert fresh.lost_ranges()[0].start == 1
    with pytest.raises(OutcomeUnknown, match="offsets 1 to 1"):
        one.close()


@pytest.mark.parametrize("stopped", [True, False], ids=["fenced", "alive"])
def test_L09_the_wal_goes_over_to_the_fresh_log(stopped: bool, wal_dir: Callable[[], str]) -> None:
    objects = MemoryStore()
    with running(objects, wal_dir=wal_dir()) as one, running(objects) as two:
        log = partition(one)
        log.append(b"local", ack="local")
        if stopped:
            log.flush()
            two.topic("t").append(b"theirs")
            with pytest.raises(Fenced):
                log.append(b"refused")
        fresh = log.reopen()
        assert fresh.append(b"local again", ack="local").durability == "local"
        kept = [value for _, value in pairs(fresh)]
        assert kept == [b"local", *([b"theirs"] if stopped else []), b"local again"]


def test_of_two_who_reopen_at_once_both_get_the_same_log() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated, ack="buffered") as store:
        log = partition(store)
        log.append(b"a")
        with gated.hold("put", suffix=".seg") as gate:
            both = [background(log.reopen) for _ in range(2)]
            gate.wait_held()
        first, second = (future.result(PATIENCE_S) for future in both)
        assert first is second is store.topic("t").partition(0)
        assert pairs(first) == [(0, b"a")]


def test_L14_a_tail_of_the_old_log_ends() -> None:
    with running(MemoryStore()) as store:
        log = partition(store)
        log.append(b"a")
        seen = background(lambda: [record.value for record in log.tail()])
        fresh = log.reopen()
        assert seen.result(PATIENCE_S) == [b"a"]
        assert fresh.append(b"b").offset == 1


def test_W11_a_shared_writer_that_was_stopped_by_an_exclusive_one_joins_again() -> None:
    objects = MemoryStore()
    with running(objects, writer="shared") as shared:
        log = partition(shared)
        log.append(b"0")
        with running(objects, take_over=True) as owner:
            owner.topic("t").append(b"1")
        with pytest.raises(Fenced):
            log.append(b"refused")
        assert log.reopen().append(b"2").offset == 2


def test_reopening_what_is_gone_says_so() -> None:
    store = open_store(MemoryStore())
    log = partition(store)
    log.append(b"x")
    store.delete_topic("t")
    with pytest.raises(UnknownTopic):
        log.reopen()
    other = partition(store, "u")
    store.close()
    with pytest.raises(Closed, match="the store is closed"):
        other.reopen()


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
def test_W04_lost_answers_while_it_is_reopened_lose_and_double_nothing(fault: Fault) -> None:
    faulty, clock = FaultyStore(MemoryStore()), ManualClock()
    with running(faulty, clock, ack="buffered") as store:
        log = partition(store)
        log.append(b"a")
        faulty.fail("put", suffix=".seg", with_=fault, times=3)
        fresh = drive(clock, background(log.reopen))
        assert drive(clock, background(fresh.append, b"b")).offset == 1
        assert drive(clock, background(pairs, fresh)) == [(0, b"a"), (1, b"b")]


def test_a_store_that_is_down_does_not_keep_a_fenced_partition_from_being_reopened_when_it_is_back() -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, append_timeout=0.05) as one, running(faulty.inner) as two:
        log = partition(one)
        log.append(b"a")
        two.topic("t").append(b"b")
        with pytest.raises(Fenced):
            log.append(b"c", timeout=PATIENCE_S)
        faulty.down()
        fresh = log.reopen()
        with pytest.raises(StoreUnavailable):
            fresh.append(b"c")
        faulty.heal()
        assert fresh.append(b"c", timeout=PATIENCE_S).offset == 2


def test_W05_who_appends_while_another_thread_reopens_is_told_where_to_go_on() -> None:
    """The store is open: to say that it is closed would send its caller the wrong way."""
    gated = GatedStore(MemoryStore())
    with running(gated) as store:
        log = partition(store)
        log.append(b"a")
        with gated.hold("put") as gate:
            reopening = background(log.reopen)
            gate.wait_held()
            with pytest.raises(Closed, match=r"it was reopened: go on with `Topic\.partition`"):
                log.append(b"no")
        reopening.result(PATIENCE_S)
        assert partition(store).append(b"b").offset == 1
