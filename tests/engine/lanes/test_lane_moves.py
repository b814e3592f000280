"""A partition moves alone from one lane to another: taken over, given up, left by a process that was killed."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

import logstore
from logstore.engine.write.lanes import entry_maker, lane_queue
from logstore.errors import Fenced, PreconditionFailed
from logstore.format.stored.entry import EntryHeader, build_entry
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import FaultyStore, GatedStore
from tests.support.engine.harness import background, crash, open_store, running, until
from tests.support.lanes.entries import entries, place, seen, store_lane, values
from tests.support.patience import PATIENCE_S


def entries_of(objects: ObjectStore, lane: str) -> list[str]:
    return [key for key in entries(objects) if key.startswith(f"lanes/{lane}/")]


def test_N03_one_partition_moves_and_no_ack_fails_in_the_others(any_home: ObjectStore) -> None:
    faulty = FaultyStore(any_home)
    with running(faulty, lanes=1) as store, running(any_home, lanes=1) as other:
        topic = store.create_topic("t", 3)
        logs = [topic.partition(number) for number in range(3)]
        for log in logs:
            log.append(b"mine")
        assert other.topic("t").partition(1).append(b"taken").offset == 1
        before = faulty.count("put", prefix="lanes/")
        assert [logs[0].append(b"x").offset, logs[2].append(b"y").offset] == [1, 1]
        assert faulty.count("put", prefix="lanes/") - before == 3, (
            "one of them met the seal, and its window went one place further"
        )
        with pytest.raises(Fenced, match=rf"epoch 2 \(.*{os.getpid()}.*\) took the partition over"):
            logs[1].append(b"no")
        assert values(logs[1].reopen()) == [b"mine", b"taken"]
    assert seen(any_home, 1) == [(0, b"mine"), (1, b"taken")]


def test_N03_what_an_owner_asks_at_anothers_seal_it_asks_at_once() -> None:
    """Every ack of the lane waits for it: what stands there, and whether it is of the past, side by side."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lanes=1) as store, running(objects, lanes=1) as other:
        topic = store.create_topic("t", 2)
        for number in range(2):
            topic.partition(number).append(b"mine")
        other.topic("t").partition(1).append(b"taken")
        seal = entries_of(objects, store_lane(store))[-1]
        with gated.hold("get", prefix=f"lanes/{store_lane(store)}/") as asked:
            ack = topic.partition(0).submit(b"x")
            both = asked.wait_held(PATIENCE_S, count=2)
            asked.open()
            assert ack.result(PATIENCE_S).offset == 1
    assert {call.key.rpartition("/")[2] for call in both} == {"checkpoint", seal.rpartition("/")[2]}


@pytest.mark.usefixtures("begin_in_own_chains")
def test_N03_a_partition_that_is_taken_while_it_is_opened_is_fenced_at_once() -> None:
    """The lane meets the seal before the claim has a writer. One that nobody stopped would wait for its deadline."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lanes=1) as store, running(objects, lanes=1) as other:
        topic = store.create_topic("t", 2)
        topic.partition(0).append(b"mine")
        chain = topic.partition(1)._internal.paths.prefix
        with (
            gated.hold("get", prefix=chain, suffix=".seg") as looks,
            gated.hold("put", prefix=chain, suffix=".seg") as fence,
        ):
            late = background(topic.partition(1).append, b"late", timeout=1e6)
            fence.wait_held()
            fence.release_lost()
            looks.wait_held()  # its fence is there, and it does not know yet; meanwhile
            assert other.topic("t").partition(1).append(b"taken").offset == 0
            assert topic.partition(0).append(b"more").offset == 1
        with pytest.raises(Fenced, match="took the partition over while it was opened"):
            late.result(PATIENCE_S)
    assert seen(objects, 1) == [(0, b"taken")]


def test_N03_a_partition_that_is_taken_back_and_forth_has_every_record_once() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as a, running(objects, lanes=2) as b:
        a.create_topic("t", 2)
        for turn in range(6):
            store = (a, b)[turn % 2]
            log = store.topic("t").partition(0)
            if log._internal.stopped is not None:
                log = log.reopen()
            try:
                log.append(b"%d" % turn)
            except Fenced:
                log = log.reopen()
                log.append(b"%d" % turn)
    assert seen(objects, 0) == [(turn, b"%d" % turn) for turn in range(6)]


def test_N04_what_a_killed_process_wrote_goes_on_in_the_next(any_home: ObjectStore) -> None:
    store = open_store(any_home, lanes=1)
    topic = store.create_topic("t", 4)
    for number in range(4):
        topic.partition(number).append([b"%d" % number, b"more"])
    crash(store)
    with running(any_home, lanes=1) as again:
        for number in range(4):
            assert again.topic("t").partition(number).append(b"next").offset == 2
    for number in range(4):
        assert seen(any_home, number) == [(0, b"%d" % number), (1, b"more"), (2, b"next")]


def test_N04_a_sealed_partition_that_nobody_claimed_is_claimed_by_whoever_wants_it() -> None:
    """The taker dies between its seal and its fence."""
    objects = MemoryStore()
    store = open_store(objects, lanes=1)
    store.create_topic("t").partition(0).append(b"a")
    faulty = FaultyStore(objects)
    faulty.fail("put", prefix="topics/", times=None)
    taker = open_store(faulty, lanes=0, append_timeout=0.2, probe_interval=0.01)
    with pytest.raises(logstore.StoreUnavailable):
        taker.topic("t").partition(0).append(b"no")
    crash(taker)
    with pytest.raises(Fenced):
        store.topic("t").partition(0).append(b"sealed")
    with running(objects, lanes=1) as third:
        assert third.topic("t").partition(0).append(b"b").offset == 1
    assert seen(objects, 0) == [(0, b"a"), (1, b"b")]
    crash(store)


def test_N03_a_callback_may_append_to_another_partition_and_wait_for_it() -> None:
    """Acks come in the order of the entries; one that waits for a later ack must not hold that up."""
    objects = MemoryStore()
    done = threading.Event()
    with running(objects, lanes=1) as store:
        topic = store.create_topic("t", 2)
        for number in range(2):
            topic.partition(number).append(b"opened")

        def then(_: Future[logstore.Receipt]) -> None:
            topic.partition(1).append(b"from the callback")
            done.set()

        topic.partition(0).submit(b"first").add_done_callback(then)
        assert done.wait(PATIENCE_S)
    assert seen(objects, 1)[-1] == (1, b"from the callback")


def test_N03_a_partition_that_its_owner_gives_up_moves_and_nobody_is_late() -> None:
    """The owner's own entry carries the seal: the taker puts nothing into its lane, and no upload is in vain."""
    objects = MemoryStore()
    faulty, taking = FaultyStore(objects), FaultyStore(objects)
    with running(faulty, lanes=1) as owner, running(taking, lanes=1) as taker:
        topic = owner.create_topic("t", 3)
        for number in range(3):
            topic.partition(number).append(b"a")
        topic.partition(0).reopen()
        assert taker.topic("t").partition(0).append(b"b").offset == 1
        assert not taking.count("put", prefix=f"lanes/{store_lane(owner)}/")
        faulty.forget_calls()
        for number in (1, 2):
            assert topic.partition(number).append(b"c").offset == 1
        assert [(call.operation, call.outcome) for call in faulty.calls] == [("put", "ok")] * 2
        # It can be given back in the same way.
        taker.topic("t").partition(0).reopen()
        assert owner.topic("t").partition(0).append(b"d").offset == 2
    assert seen(objects, 0) == [(0, b"a"), (1, b"b"), (2, b"d")]


def test_N03_a_partition_is_given_up_although_a_seal_of_another_one_comes_first() -> None:
    """The entry that gives it up is void, and is made again behind the seal."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lanes=1) as owner, running(objects, lanes=1) as taker:
        topic = owner.create_topic("t", 3)
        for number in range(3):
            topic.partition(number).append(b"a")
        with place(gated, 3) as gate:
            giving = background(topic.partition(0).reopen)
            gate.wait_held(PATIENCE_S)
            assert taker.topic("t").partition(1).append(b"b").offset == 1
            gate.release()
            giving.result(PATIENCE_S)
        assert taker.topic("t").partition(0).append(b"b").offset == 1
        assert topic.partition(2).append(b"c").offset == 1
    assert [seen(objects, number) for number in (0, 1)] == [[(0, b"a"), (1, b"b")]] * 2


def test_N03_what_a_partition_holds_when_it_is_given_up_is_stored_with_the_seal() -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, lanes=1) as owner:
        log = owner.create_topic("t").partition(0)
        log.append(b"a")
        log.append(b"b", ack="buffered")
        log.reopen()
        state = owner._runtime.lanes.snapshot(store_lane(owner))
        assert state.has_ended_whole
        assert owner.topic("t").partition(0).append(b"c").offset == 2, "nothing stays reserved"
    assert seen(faulty, 0) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_N02_what_is_sent_again_keeps_its_order_when_a_second_seal_is_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three uploads of one partition meet a seal. The first is there again, the second meets another seal, and the third is
    being made meanwhile: before the second it would leave a hole, and the second's records would be acked and gone."""
    monkeypatch.setattr(lane_queue, "ENTRY_BYTES", 1)
    armed, making, go_on = threading.Event(), threading.Event(), threading.Event()

    def slowly(header: EntryHeader, parts: Any, *rest: Any) -> Any:
        if armed.is_set() and parts and parts[0].base_offset == 3 and not making.is_set():
            making.set()
            assert go_on.wait(PATIENCE_S)
        return build_entry(header, parts, *rest)

    monkeypatch.setattr(entry_maker, "build_entry", slowly)
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1)
    topic = store.create_topic("t", 3)
    mine, *moved = (topic.partition(number) for number in range(3))
    for log in (mine, *moved):
        log.append(b"0")
    with gated.hold("put", prefix="lanes/") as gate, running(objects, lanes=1) as other:
        waiting = []
        for number in range(1, 4):
            waiting.append(mine.submit(b"%d" % number))
            gate.wait_held(count=number)
        other.topic("t").partition(1).append(b"taken")
        gate.release(1)
        until(lambda: moved[0]._internal.stopped is not None)
        gate.wait_held(PATIENCE_S, count=3)
        gate.fail(PreconditionFailed("a void entry would be in the way of the first"), 2)
        armed.set()
        gate.release()
        gate.wait_held(PATIENCE_S)
        assert making.wait(PATIENCE_S)
        other.topic("t").partition(2).append(b"taken")
        gate.release()
        until(lambda: moved[1]._internal.stopped is not None)
        go_on.set()
        gate.open()
        assert [future.result(PATIENCE_S).offset for future in waiting] == [1, 2, 3]
    assert seen(objects, 0) == [(number, b"%d" % number) for number in range(4)]
    crash(store)


def test_L08_a_lane_lets_go_of_the_writers_that_have_stopped() -> None:
    """Two processes take a partition from each other again and again. Each knows as much of it as of one that it has."""
    objects = MemoryStore()
    known: list[weakref.ref[object]] = []
    with running(objects, lanes=1, take_over=True) as one, running(objects, lanes=1, take_over=True) as two:
        one.create_topic("t", 2).partition(1).append(b"stays")
        for turn in range(6):
            for store in (one, two):
                log = store.topic("t").partition(0)
                try:
                    log.append(b"%d" % turn)
                except Fenced:
                    log = log.reopen()
                    log.append(b"%d" % turn)
                known.append(weakref.ref(log._internal.state))
            del log
        assert [lane.partitions for lane in one._lanes.overviews()] == [2]
        assert [lane.partitions for lane in two._lanes.overviews()] == [1]
        gc.collect()
        assert [state for state in known[:-4] if state() is not None] == []
    assert [value for _, value in seen(objects)] == [b"%d" % (turn // 2) for turn in range(12)]
