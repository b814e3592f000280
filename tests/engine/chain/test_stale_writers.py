"""C01: a writer that idled, and whose place was collected meanwhile, acks nothing in the past."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import logstore
from logstore.errors import (
    Fenced,
    Indeterminate,
    OutcomeUnknown,
    UnknownTopic,
)
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.collecting import (
    COLLECTIONS,
    collected_at_grace_0,
    compact,
    gc,
)
from tests.support.engine.harness import at, background, numbered, open_store, pairs, running, stored
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("no_checkpoints")


@pytest.mark.parametrize("collect", COLLECTIONS)
@pytest.mark.parametrize("mode", ["shared", "exclusive"])
@pytest.mark.usefixtures("own_chain")
def test_C01_a_shared_writer_that_idled_appends_at_the_end(
    mode: str, collect: Callable[[ObjectStore], None]
) -> None:
    """`mode`: of the one who wrote before it. Behind an exclusive writer its place may really be empty again."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock, writer=mode) as first:
        first.create_topic("t").append(b"v0")
    idle = open_store(objects, clock, writer="shared")
    log = idle.topic("t").partition(0)
    log.append(b"v1") if mode == "shared" else log.open_writer()
    begun = 2 if mode == "shared" else 1
    with open_store(objects, clock, writer=mode) as peer:
        other = peer.topic("t").partition(0)
        for value in numbered(begun, 40):
            other.append(value)
        compact(other)
        collect(objects)
        if mode == "exclusive":  # it took the partition over: that is told, and nothing is acked
            with pytest.raises(Fenced):
                log.append(b"late")
            log = log.reopen()
        for number in range(5):
            assert log.append(b"late").offset == begun + 40 + number
    idle.close()
    assert stored(objects) == at(0, [*numbered(0, begun + 40), *[b"late"] * 5])


@pytest.mark.usefixtures("own_chain")
def test_C01_a_shared_writer_that_opened_behind_an_exclusive_one_puts_nothing_into_its_emptied_places() -> (
    None
):
    """The exclusive writer goes on in the same epoch, so the place where the shared one stands is really emptied."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as owner:
        log = owner.create_topic("t").partition(0)
        log.append(b"v0")
        shared = open_store(objects, clock, writer="shared")
        late = shared.topic("t").partition(0)
        late.open_writer()
        for value in numbered(1, 30):
            log.append(value)
        compact(log)
        collected_at_grace_0(objects)
        assert objects.head(log._internal.paths.segment(2)) is None
        assert late.append(b"late").offset == 31
        with pytest.raises(Fenced):
            log.append(b"too late")
        shared.close()
    assert stored(objects) == at(0, [*numbered(0, 31), b"late"])


@pytest.mark.parametrize("collect", COLLECTIONS)
def test_C01_a_replicated_writer_that_idled_learns_what_its_peers_stored(
    collect: Callable[[ObjectStore], None],
) -> None:
    objects, clock = MemoryStore(), ManualClock()
    idle, awake = open_store(objects, clock), open_store(objects, clock)
    sleeper = idle.create_topic("t").partition(0).replicated("sleeper")
    sleeper.compare_and_append([b"v0"], 0, 1)
    log = awake.topic("t").partition(0)
    peer = log.replicated("peer")
    for number in range(1, 40):
        peer.compare_and_append(numbered(number, 1), number, number + 1)
    compact(log)
    collect(objects)
    assert sleeper.compare_and_append([b"v1"], 1, 2).by == "peer"
    assert sleeper.compare_and_append([b"v40"], 40, 41).by == "us"
    idle.close()
    awake.close()
    assert stored(objects) == at(0, numbered(0, 41))


def test_C01_an_exclusive_writer_that_a_shared_one_superseded_acks_nothing() -> None:
    objects, clock = MemoryStore(), ManualClock()
    idle = open_store(objects, clock)
    log = idle.create_topic("t").partition(0)
    log.append(b"v0")
    with open_store(objects, clock, writer="shared") as peer:
        other = peer.topic("t").partition(0)
        for value in numbered(1, 39):
            other.append(value)
        compact(other)
        collected_at_grace_0(objects)
    with pytest.raises(Fenced):
        log.append(b"into the past")
    idle.close()
    assert stored(objects) == at(0, numbered(0, 40))


@pytest.mark.usefixtures("own_chain")
def test_C01_an_exclusive_commit_in_doubt_is_told_from_a_lost_race_after_a_collection() -> None:
    """Its segment stood, its answer was lost, another took over, and all of it was merged and collected."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    asleep = open_store(gated, clock)
    log = asleep.create_topic("t").partition(0)
    log.append(b"v0")
    with gated.hold("put", suffix=".seg", after=True) as gate:
        doubtful = log.submit(b"v1")
        gate.wait_held()  # it is carried out; the answer is on its way
        with open_store(objects, clock) as successor:
            other = successor.topic("t").partition(0)
            for value in numbered(2, 20):
                other.append(value)
            compact(other)
            collected_at_grace_0(objects)
        gate.fail(Indeterminate("the answer got lost"))
    assert doubtful.result(PATIENCE_S).offset == 1
    with pytest.raises(Fenced):
        log.append(b"too late")
    asleep.close()
    assert stored(objects) == at(0, numbered(0, 22))


def test_C01_a_header_that_was_cut_off_as_it_was_left_is_no_free_place() -> None:
    """A server that is killed in a put leaves an object of no bytes, also where a segment was and its header was to stay.
    At the chain's end nobody has committed it; here somebody has, and the chain has gone on."""
    objects, clock = MemoryStore(), ManualClock()
    idle = open_store(objects, clock, writer="shared")
    reader = open_store(objects, clock, writer="read_only")
    log = idle.create_topic("t").partition(0)
    log.append(b"v0")
    follower = reader.topic("t").partition(0)
    assert pairs(follower) == at(0, [b"v0"])
    with open_store(objects, clock, writer="shared") as peer:
        other = peer.topic("t").partition(0)
        for value in numbered(1, 40):
            other.append(value)
        compact(other)
        collected_at_grace_0(objects)
        objects.put(log._internal.paths.segment(1), b"")
        follower.refresh()
        assert pairs(follower) == at(0, numbered(0, 41))
        with pytest.raises(OutcomeUnknown, match="gone on"):
            log.append(b"late")
        assert log.reopen().append(b"late").offset == 41
    idle.close()
    reader.close()
    assert stored(objects) == at(0, [*numbered(0, 41), b"late"])


def test_C01_an_object_of_no_bytes_in_a_deleted_topic_is_replaced_and_stays_so() -> None:
    objects, clock = MemoryStore(), ManualClock()
    idle = open_store(objects, clock, writer="shared")
    log = idle.create_topic("t").partition(0)
    log.append(b"v0")
    with open_store(objects, clock, writer="shared") as peer:
        for value in numbered(1, 10):
            peer.topic("t").partition(0).append(value)
        peer.delete_topic("t")
    objects.put(log._internal.paths.segment(1), b"")
    assert [item.key for item in gc(objects)] == [log._internal.paths.segment(1)]
    assert gc(objects) == []
    with pytest.raises(UnknownTopic):
        log.append(b"late")
    idle.close()


def collected_and_the_manifest_lost(objects: MemoryStore, log: logstore.PartitionLog) -> None:
    """The first manifest there ever was: who slept since before it saw none, and sees none now."""
    for value in numbered(1, 30):
        log.append(value)
    compact(log)
    collected_at_grace_0(objects)
    objects.delete(log._internal.paths.manifest)
    assert objects.head(log._internal.paths.segment(2)) is None


@pytest.mark.usefixtures("own_chain")
def test_C01_a_shared_writer_from_before_the_first_manifest_appends_at_the_end_though_that_is_lost() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as owner:
        log = owner.create_topic("t").partition(0)
        log.append(b"v0")
        shared = open_store(objects, clock, writer="shared")
        late = shared.topic("t").partition(0)
        late.open_writer()
        collected_and_the_manifest_lost(objects, log)
        assert late.append(b"late").offset == 31
        with pytest.raises(Fenced):
            log.append(b"too late")
        shared.close()
    assert stored(objects) == at(0, [*numbered(0, 31), b"late"])


@pytest.mark.usefixtures("own_chain")
def test_C01_a_fence_from_before_the_first_manifest_goes_to_the_end_though_that_is_lost() -> None:
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with open_store(objects, clock) as owner, running(gated, clock) as successor:
        log = owner.create_topic("t").partition(0)
        log.append(b"v0")
        late = successor.topic("t").partition(0)
        with gated.hold("put", suffix=".seg") as gate:
            opening = background(late.open_writer)
            gate.wait_held()
            collected_and_the_manifest_lost(objects, log)
        opening.result(PATIENCE_S)
        assert late.append(b"late").offset == 31
        with pytest.raises(Fenced):
            log.append(b"too late")
    assert stored(objects) == at(0, [*numbered(0, 31), b"late"])
