"""Standing by and taking over: whenever the active writer dies, the next goes on without a hole and without a copy."""

from __future__ import annotations

from itertools import count

import pytest

import logstore
from logstore.engine.replicated.source_ranges import Applied
from logstore.errors import (
    AppendTimeout,
    Fenced,
    Indeterminate,
    LogStoreError,
    OutcomeUnknown,
    StoreUnavailable,
)
from logstore.objects import MemoryStore
from logstore.standby import Standby
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.actors import TOPIC, DiesAt, Process, contents, kill
from tests.support.patience import PATIENCE_S
from tests.support.scheduler import Choices, RandomChoices, Schedule, for_every_schedule

pytestmark = pytest.mark.usefixtures("quiet")


def nothing(process: Process) -> None:
    """These processes are driven by hand."""


@pytest.mark.parametrize("after", [False, True], ids=["before-the-call", "after-the-call"])
def test_W12_exclusive_the_active_dies_at_any_call(after: bool) -> None:
    """Active appends 4 records; it dies at its n-th store call, for every n; the standby is promoted and appends 2."""
    for calls in count(1):
        objects = MemoryStore()
        active, passive = (Process(objects, name, nothing) for name in range(2))
        standby = Standby(passive.log)
        active.switch.inner = DiesAt(objects, calls, after=after)
        died = False
        try:
            for number in range(4):
                active.append(b"active-%d" % number, timeout=0.05)
                standby.follow()
        except LogStoreError:
            died = True
        kill(active)
        start = standby.promote()
        passive.append(b"standby-0")
        passive.append(b"standby-1")
        passive.close()
        stored = contents(objects)
        assert [offset for offset, _ in stored] == list(range(len(stored)))
        assert set(active.acked) <= set(stored)
        assert passive.acked == stored[-2:]
        assert passive.acked[0][0] == start
        kept = [value for _, value in stored[:-2]]
        assert kept == [b"active-%d" % number for number in range(len(kept))]
        assert len(active.acked) <= len(kept) <= len(active.acked) + 1
        if not died:
            assert calls > 5
            return


@pytest.mark.parametrize("after", [False, True], ids=["before-the-call", "after-the-call"])
def test_W12_replicated_the_active_dies_at_any_call_and_the_standby_holds_the_rest(after: bool) -> None:
    for calls in count(1):
        objects = MemoryStore()
        active, passive = (
            Process(objects, name, nothing, follow_interval=0.001, append_timeout=PATIENCE_S)
            for name in range(2)
        )
        source = [b"%d" % at for at in range(6)]
        standby = passive.log.replicated("standby", standby=True)
        held = [standby.submit(source[at : at + 2], at, at + 2) for at in (0, 2, 4)]
        first = active.log.replicated("active")
        active.switch.inner = DiesAt(objects, calls, after=after)
        died = False
        try:
            for at in (0, 2):
                first.compare_and_append(source[at : at + 2], at, at + 2, timeout=0.05)
        except LogStoreError:
            died = True
        kill(active)
        assert standby.promote() in (0, 2, 4)
        assert [
            future.result(PATIENCE_S).upper >= at for future, at in zip(held, (2, 4, 6), strict=True)
        ] == [True] * 3
        assert standby.frontier == 6
        passive.close()
        assert contents(objects) == list(enumerate(source))
        if not died:
            assert calls > 2
            return


def test_W12_a_standby_stores_nothing_and_drops_what_the_active_stores() -> None:
    objects = MemoryStore()
    active, passive = (Process(objects, name, nothing, follow_interval=0.001) for name in range(2))
    standby = passive.log.replicated("standby", standby=True)
    future, later = standby.submit([b"0", b"1"], 0, 2), standby.submit([b"2"], 2, 3)
    active.log.replicated("active").compare_and_append([b"0", b"1"], 0, 2)
    assert future.result(PATIENCE_S) == Applied("peer", 2)
    assert not later.done()
    assert standby.health()["state"] == "standby"
    assert contents(objects) == [(0, b"0"), (1, b"1")]
    standby.promote()
    assert later.result(PATIENCE_S) == Applied("us", 3)
    active.close()
    passive.close()


def test_W12_promotion_stops_the_old_writer_for_good() -> None:
    objects = MemoryStore()
    active, passive = (Process(objects, name, nothing) for name in range(2))
    old = active.log.replicated("old")
    old.compare_and_append([b"0"], 0, 1)
    new = passive.log.replicated("new", standby=True)
    assert new.promote() == 1
    for _ in range(2):
        with pytest.raises(Fenced, match="took the partition over at offset 1"):
            old.compare_and_append([b"1"], 1, 2)
    assert new.compare_and_append([b"1"], 1, 2) == Applied("us", 2)
    active.close()
    passive.close()
    assert contents(objects) == [(0, b"0"), (1, b"1")]


def test_W12_a_promotion_that_cannot_reach_the_store_can_be_repeated() -> None:
    objects = MemoryStore()
    passive = Process(objects, 0, nothing)
    standby = passive.log.replicated("standby", standby=True)
    future = standby.submit([b"0"], 0, 1)
    passive.switch.inner = DiesAt(objects, 1, after=True)  # the fence is, and nobody is told
    with pytest.raises(StoreUnavailable, match="promote again"):
        standby.promote(timeout=0.05)
    assert not future.done()
    passive.switch.inner = objects
    assert standby.promote() == 0
    assert future.result(PATIENCE_S) == Applied("us", 1)
    passive.close()
    assert contents(objects) == [(0, b"0")]


def test_W12_a_promotion_ends_when_its_store_is_closed() -> None:
    """However long it was to go on, and although no further wait is any: it does not ask in a loop."""
    objects = MemoryStore()
    passive = Process(objects, 0, nothing)
    standby = passive.log.replicated("standby", standby=True)
    passive.switch.inner = gone = DiesAt(objects, 1, after=False)
    passive.log._internal._runtime.begin_close()
    with pytest.raises(StoreUnavailable, match="promote again"):
        standby.promote(timeout=PATIENCE_S)
    assert gone._left > -10
    passive.switch.inner = objects
    passive.close()


@pytest.mark.parametrize("again", [True, False], ids=["promoted-again", "goes-on"])
def test_W12_an_active_writer_is_not_stopped_by_a_fence_of_its_own_that_it_was_not_told_of(
    again: bool,
) -> None:
    objects = MemoryStore()
    active, peer = (Process(objects, name, nothing) for name in range(2))
    writer, other = active.log.replicated("active"), peer.log.replicated("peer")
    writer.compare_and_append([b"0"], 0, 1)
    other.compare_and_append([b"1"], 1, 2)
    writer.upper()
    active.switch.inner = DiesAt(objects, 1, after=True)  # the fence is, and nobody is told
    with pytest.raises(StoreUnavailable, match="promote again"):
        writer.promote(timeout=0.05)
    active.switch.inner = objects
    if again:
        assert writer.promote() == 2
    assert writer.compare_and_append([b"2"], 2, 3) == Applied("us", 3)
    with pytest.raises(Fenced):
        other.compare_and_append([b"3"], 3, 4)
    active.close()
    peer.close()
    assert contents(objects) == [(0, b"0"), (1, b"1"), (2, b"2")]


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W12_promoting_a_writer_whose_commit_is_in_doubt_stores_it_behind_the_fence() -> None:
    """Its PUT was lost; before the retry is due it becomes the only writer: the fence is where the retry would go."""
    gated = GatedStore(MemoryStore())
    with logstore.open(gated, clock=ManualClock()) as store:
        writer = store.create_topic(TOPIC).partition(0).replicated("mine")
        with gated.hold("put", suffix=".seg") as puts:
            future = writer.submit([b"0"], 0, 1)
            puts.wait_held()
            puts.fail(Indeterminate("lost on the way"))
        assert writer.promote() == 0
        assert future.result(PATIENCE_S) == Applied("us", 1)
    assert contents(gated.inner) == [(0, b"0")]


def test_W12_a_standby_is_for_exclusive_stores_and_skips_what_readers_may_have_seen() -> None:
    objects = MemoryStore()
    active, passive, shared = (
        Process(objects, 0, nothing, ack="buffered", flush_interval=3600.0),
        Process(objects, 1, nothing),
        Process(objects, 2, nothing, writer="shared"),
    )
    seen = active.log.append(b"acked buffered, read by somebody, never stored")
    kill(active)
    start = Standby(passive.log).promote()
    assert start > seen.offset
    passive.append(b"next")
    assert passive.acked == [(start, b"next")]
    with pytest.raises(ValueError, match="shared mode"):
        Standby(shared.log).promote()
    passive.close()
    shared.close()


def run_race(choices: Choices, *, faults_max: int) -> None:
    """The active feeds on while the standby, which holds the same input, is promoted."""
    objects = MemoryStore()
    source = [b"%d" % at for at in range(3)]
    outcomes: list[str] = []

    def active(process: Process) -> None:
        writer = process.log.replicated("active")
        try:
            for at in range(3):
                writer.compare_and_append([source[at]], at, at + 1)
            outcomes.append("finished")
        except (Fenced, AppendTimeout, OutcomeUnknown):
            outcomes.append("fenced")

    def standby(process: Process) -> None:
        writer = process.log.replicated("standby", standby=True)
        writer.promote()
        for at in range(writer.frontier, 3):
            writer.compare_and_append([source[at]], at, at + 1)

    processes = [Process(objects, number, body) for number, body in enumerate((active, standby))]
    try:
        processes[0].log.replicated("active")
        processes[1].log.replicated("standby", standby=True)
        Schedule(objects, choices, faults_max=faults_max).run([process.act for process in processes])
    finally:
        for process in processes:
            process.close()
    assert contents(objects) == list(enumerate(source))
    assert len(outcomes) == 1


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W12_promotion_races_the_active_in_every_order() -> None:
    """Requests that end the lane in which a topic begins make more orders than can be tried; the seeds try some."""
    assert for_every_schedule(lambda choices: run_race(choices, faults_max=0)) > 10


@pytest.mark.parametrize("seed", range(60))
def test_W12_promotion_races_the_active_with_faults(seed: int) -> None:
    run_race(RandomChoices(seed), faults_max=4)
