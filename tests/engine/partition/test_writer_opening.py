"""The first append opens the writer, and keeps its deadline although the store does not answer."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import logstore
from logstore.engine.write.exclusive_writer import ExclusiveWriter
from logstore.errors import AppendTimeout, Closed, OutcomeUnknown, StoreUnavailable
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background, drive, pairs, running, stored, until
from tests.support.patience import PATIENCE_S


@pytest.fixture(params=["put", "get"])
def held(request: pytest.FixtureRequest) -> str:
    """Where the store hangs: at the claim, or when the partition is loaded."""
    return str(request.param)


WHERE = {"put": "lanes/", "get": "topics/"}


def opened() -> tuple[MemoryStore, GatedStore, logstore.Store]:
    """A topic that another process has created: the first append asks where it stands."""
    objects = MemoryStore()
    with logstore.open(objects) as creator:
        creator.create_topic("t")
    gated = GatedStore(objects)
    return objects, gated, logstore.open(gated)


def openers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "logstore-open"]


def test_L07_a_first_append_whose_claim_hangs_gives_up_in_time_and_the_next_one_finds_the_writer(
    held: str,
) -> None:
    objects, gated, store = opened()
    log = store.topic("t").partition(0)
    with gated.hold(held, prefix=WHERE[held]) as gate:
        with pytest.raises(StoreUnavailable, match="nothing was appended") as late:
            log.append(b"late", timeout=0.01)
        assert late.value.retriable
        waiting = background(log.append, b"patient", timeout=PATIENCE_S)
        with pytest.raises(StoreUnavailable, match="nothing was appended"):
            log.append([b"late", b"too"], timeout=0.01)
        gate.wait_held()
        until(lambda: bool(openers()))  # who is patient has begun
        assert len(openers()) == 1  # all wait for the same one
    assert waiting.result(PATIENCE_S).offset == 0
    assert log.append(b"after").offset == 1
    store.close()
    assert stored(objects) == [(0, b"patient"), (1, b"after")]
    assert openers() == []


def test_L06_a_close_does_not_wait_for_a_writer_whose_claim_hangs(held: str) -> None:
    objects, gated, store = opened()
    log = store.topic("t").partition(0)
    with gated.hold(held, prefix=WHERE[held]) as gate:
        waiting = background(log.append, b"never", timeout=PATIENCE_S)
        gate.wait_held()
        store.close(timeout=0.01)
        with pytest.raises(Closed):
            log.append(b"more")
        (opener,) = openers()
    assert isinstance(waiting.exception(PATIENCE_S), Closed)
    opener.join(PATIENCE_S)
    assert not opener.is_alive()
    assert stored(objects) == []


def test_L28_why_the_writer_could_not_be_opened_is_told_to_everybody_who_waits() -> None:
    faulty = FaultyStore(MemoryStore())
    with logstore.open(faulty) as creator:
        creator.create_topic("t")
    with logstore.open(faulty, probe_interval=0.001) as store:
        log = store.topic("t").partition(0)
        faulty.fail("put", suffix=".seg", times=1 << 30, with_=Fault.UNAVAILABLE)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="could not be opened"):
                log.append(b"a", timeout=0.02)
        patient = background(log.append, b"b", timeout=PATIENCE_S)
        with pytest.raises(StoreUnavailable, match="could not be opened"):
            log.append(b"a", timeout=0.02)  # its end is not that of one who has more time
        faulty.heal()
        assert patient.result(PATIENCE_S).offset == 0
        assert pairs(log) == [(0, b"b")]


def test_a_partition_that_is_written_is_few_objects() -> None:
    """The garbage collector visits all of them again and again, of thousands of partitions."""
    count = 100
    with running(MemoryStore(), lanes=1) as store:
        for topic in ("before", "t"):
            gc.collect()
            before = len(gc.get_objects())
            logs = store.create_topic(topic, count)
            for ack in [logs.partition(number).submit(b"x") for number in range(count)]:
                ack.result(PATIENCE_S)
            del ack
            gc.collect()
        assert (len(gc.get_objects()) - before) / count < 90


# Of a topic that this process has just created: its writer is there before its claim


def test_L07_L28_appends_to_a_new_topic_whose_claim_fails_say_why_in_time_and_are_stored_later() -> None:
    faulty, clock = FaultyStore(MemoryStore()), ManualClock()
    with logstore.open(faulty, clock=clock, probe_interval=0.001) as store:
        log = store.create_topic("t").partition(0)
        rule = faulty.fail("put", suffix=".seg", times=1 << 30, with_=Fault.UNAVAILABLE)
        waiting = log.submit(b"a")
        until(lambda: store._lanes._lanes[0].claiming.last_error is not None)
        assert rule.hits
        with pytest.raises(AppendTimeout, match="injected"):
            log.append(b"b", timeout=0.0)
        faulty.heal()
        assert drive(clock, waiting).offset == 0
        drive(clock, background(log.flush))
        assert pairs(log) == [(0, b"a"), (1, b"b")], "nothing of it was shown before, and nothing is lost"


def test_L06_a_close_does_not_wait_for_the_claim_of_a_new_topic() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = logstore.open(gated)
    log = store.create_topic("t").partition(0)
    with gated.hold("put", prefix="lanes/") as gate:
        waiting = log.submit(b"never acked")
        gate.wait_held()
        with pytest.raises(OutcomeUnknown):
            store.close(timeout=0.01)
    assert isinstance(waiting.exception(PATIENCE_S), OutcomeUnknown)


def test_L05_an_append_between_anothers_claim_and_the_next_one_of_ours_is_flushed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer was opened ahead of its claim, another was faster, and its record is known when ours is given an offset."""
    objects = MemoryStore()
    known, added = threading.Event(), threading.Event()
    go_on, add = ExclusiveWriter.go_on_behind_another, ExclusiveWriter._add_slowly

    def when_added(writer: ExclusiveWriter) -> None:
        known.set()
        assert added.wait(PATIENCE_S)
        go_on(writer)

    def when_known(writer: ExclusiveWriter, *given: Any) -> Any:
        assert known.wait(PATIENCE_S)
        future = add(writer, *given)
        added.set()
        return future

    with running(objects, ManualClock(), lanes=1) as store:
        log = store.create_topic("t").partition(0)
        with running(objects, ManualClock(), lanes=1) as other:
            other.topic("t").partition(0).append(b"theirs")
        monkeypatch.setattr(ExclusiveWriter, "go_on_behind_another", when_added)
        monkeypatch.setattr(ExclusiveWriter, "_add_slowly", when_known)
        assert log.submit(b"ours").result(PATIENCE_S).offset == 1  # on a clock that stands still
    assert stored(objects) == [(0, b"theirs"), (1, b"ours")]
