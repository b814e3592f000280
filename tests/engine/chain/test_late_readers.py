"""Who looks at a partition again after longer than the grace period: what came next has been merged and deleted by then.

That nothing is in the next place of the chain then says nothing about where the chain ends.
"""

from __future__ import annotations

from typing import Any

import pytest

import logstore
from logstore.errors import Fenced
from logstore.objects import MemoryStore
from logstore.producer import Producer
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.harness import at, background, numbered, open_store, pairs, running, stored
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("no_checkpoints")

GRACE_S = 3600.0


def opened(objects: Any, clock: ManualClock, **settings: Any) -> logstore.Store:
    return open_store(objects, clock, delete_grace=GRACE_S, **settings)


def go_on_for_a_while(log: logstore.PartitionLog, clock: ManualClock, values: list[bytes]) -> None:
    """Append them one by one; then all but the newest are merged, and what they were is deleted."""
    for value in values:
        log.append(value)
    assert log._internal.maintenance.compact(clock.now_ms(), b"m" * 16) > 4
    clock.advance(2 * GRACE_S)
    assert len(log._internal.maintenance.collect(clock.now_ms())) > 4


@pytest.mark.parametrize("fenced_since", [False, True])
@pytest.mark.usefixtures("own_chain")
def test_L23_a_reader_that_comes_back_after_the_grace_period_sees_what_came_since(fenced_since: bool) -> None:
    """`fenced_since`: the next place is taken, because a fence always stays, and only those behind it are free."""
    objects, clock = MemoryStore(), ManualClock()
    writing = opened(objects, clock)
    writing.create_topic("t").append(b"v0")
    with opened(objects, clock, writer="read_only") as reading:
        log = reading.topic("t").partition(0)
        assert pairs(log) == at(0, numbered(0, 1))
        if fenced_since:
            writing.close()
            writing = opened(objects, clock)
        go_on_for_a_while(writing.topic("t").partition(0), clock, numbered(1, 19))
        assert log.read(1).next_offset > 1
        assert log.durable_high_watermark == 20
        assert pairs(log) == at(0, numbered(0, 20))
    writing.close()


def test_L14_a_reader_that_asks_often_enough_asks_for_the_next_segment_alone() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with opened(objects, clock) as store, opened(objects, clock, writer="read_only") as reading:
        log = store.create_topic("t").partition(0)
        log.append(b"v0")
        follower = reading.topic("t").partition(0)
        assert pairs(follower) == at(0, numbered(0, 1))
        go_on = numbered(1, 8)
        for value in go_on:
            log.append(value)
            clock.advance(GRACE_S / 4)
            follower.refresh()
        assert pairs(follower) == at(0, numbered(0, 9))
        assert len(follower.segments()) == 9, "it never had to ask which objects hold the records"


@pytest.mark.parametrize("fenced_since", [False, True])
@pytest.mark.parametrize("writer", ["exclusive", "shared"])
@pytest.mark.usefixtures("own_chain")
def test_W06_a_log_that_was_only_read_until_its_place_was_free_again_appends_at_the_end(
    writer: str, fenced_since: bool
) -> None:
    """It opened its writer where it had last seen the end: in the past. Every ack of it was false."""
    objects, clock = MemoryStore(), ManualClock()
    peer = opened(objects, clock, writer=writer)
    peer.create_topic("t").append(b"v0")
    with opened(objects, clock, writer=writer) as store:
        log = store.topic("t").partition(0)
        assert pairs(log) == at(0, numbered(0, 1))
        if fenced_since:
            peer.close()
            peer = opened(objects, clock, writer="exclusive")
        go_on_for_a_while(peer.topic("t").partition(0), clock, numbered(1, 19))
        assert log.append(b"v20").offset == 20
        assert log.append(b"v21").offset == 21
        assert pairs(log) == at(0, numbered(0, 22))
    peer.close()
    assert stored(objects) == at(0, numbered(0, 22))


def test_W06_a_replicated_writer_of_a_log_that_was_only_read_goes_on_at_the_end() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with opened(objects, clock) as peer, opened(objects, clock) as store:
        active = peer.create_topic("t").partition(0)
        feed = active.replicated("active")
        feed.compare_and_append([b"v0"], 0, 1)
        log = store.topic("t").partition(0)
        assert pairs(log) == at(0, numbered(0, 1))
        for number in range(1, 20):
            feed.compare_and_append([b"v%d" % number], number, number + 1)
        assert active._internal.maintenance.compact(clock.now_ms(), b"m" * 16) > 4
        clock.advance(2 * GRACE_S)
        assert len(active._internal.maintenance.collect(clock.now_ms())) > 4
        late = log.replicated("late")
        assert late.frontier == 20
        late.compare_and_append([b"v20"], 20, 21)
    assert stored(objects) == at(0, numbered(0, 21))


@pytest.mark.usefixtures("own_chain")
def test_W06_a_fence_that_was_on_its_way_until_its_place_was_free_again_is_put_again_at_the_end() -> None:
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with opened(objects, clock) as peer:
        other = peer.create_topic("t").partition(0)
        other.append(b"v0")
        late = opened(gated, clock)
        log = late.topic("t").partition(0)
        with gated.hold("put", suffix=".seg") as gate:
            opening = background(log.append, b"not into the past", timeout=100 * GRACE_S)
            gate.wait_held()
            go_on_for_a_while(other, clock, numbered(1, 19))
        assert opening.result(PATIENCE_S).offset == 20
        with pytest.raises(Fenced):
            other.append(b"too late")
        late.close()
    assert stored(objects) == [*at(0, numbered(0, 20)), (20, b"not into the past")]


def test_W11_a_shared_writer_that_was_idle_for_longer_than_the_grace_period_appends_at_the_end() -> None:
    """What a producer stored before, and what others have since, is known to it all the same."""
    objects, clock = MemoryStore(), ManualClock()
    asleep = opened(objects, clock, writer="shared")
    log = asleep.create_topic("t").partition(0)
    producer = Producer(log, 17)
    producer.append(b"v0", sequence=0)
    with running(objects, clock, writer="shared", delete_grace=GRACE_S) as peer:
        other = peer.topic("t").partition(0)
        assert Producer(other, 17).append(b"v1", sequence=1).offset == 1
        go_on_for_a_while(other, clock, numbered(2, 18))
        assert producer.append(b"v1", sequence=1).offset == 1
        assert producer.append(b"v20", sequence=2).offset == 20
        assert other.append(b"v21").offset == 21
        assert pairs(log) == at(0, numbered(0, 22))
    asleep.close()
    assert stored(objects) == at(0, numbered(0, 22))


@pytest.mark.parametrize("has_written", [False, True])
@pytest.mark.usefixtures("own_chain")
def test_W05_a_shared_writer_that_slept_through_a_take_over_is_fenced(has_written: bool) -> None:
    """Nothing of the exclusive writer's fence or its segments is left, but that a later epoch is at the end."""
    objects, clock = MemoryStore(), ManualClock()
    asleep = opened(objects, clock, writer="shared")
    log = asleep.create_topic("t").partition(0)
    if has_written:
        log.append(b"v0")
    else:
        log.open_writer()
    with running(objects, clock, delete_grace=GRACE_S, take_over=True) as owner:
        if not has_written:
            owner.topic("t").partition(0).append(b"v0")
        go_on_for_a_while(owner.topic("t").partition(0), clock, numbered(1, 19))
        with pytest.raises(Fenced, match="exclusive writer of epoch 2" if has_written else "exclusive"):
            log.append(b"late")
        assert owner.topic("t").append(b"v20").offset == 20
    asleep.close()
    assert stored(objects) == at(0, numbered(0, 21))


def test_W11_a_shared_writer_that_slept_before_its_first_segment_joins_the_others() -> None:
    objects, clock = MemoryStore(), ManualClock()
    asleep = opened(objects, clock, writer="shared")
    log = asleep.create_topic("t").partition(0)
    log.open_writer()
    with running(objects, clock, writer="shared", delete_grace=GRACE_S) as peer:
        go_on_for_a_while(peer.topic("t").partition(0), clock, numbered(0, 20))
        assert log.append(b"v20").offset == 20
        assert peer.topic("t").append(b"v21").offset == 21
    asleep.close()
    assert stored(objects) == at(0, numbered(0, 22))


def test_W06_a_shared_writer_that_slept_does_not_take_the_first_segment_it_meets_for_news() -> None:
    """A large segment is not merged, and is in the sleeper's place; the small ones behind it were, and left theirs."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    asleep = opened(gated, clock, writer="shared", compression="none")
    log = asleep.create_topic("t").partition(0)
    log.append(b"v0")
    with running(objects, clock, writer="shared", delete_grace=GRACE_S, compression="none") as peer:
        other = peer.topic("t").partition(0)
        with gated.hold("put", suffix=".seg") as gate:
            late = log.submit(b"v21")
            gate.wait_held()
            other.append(bytes(100_000))
            go_on_for_a_while(other, clock, numbered(2, 19))
        assert late.result(PATIENCE_S).offset == 21
    asleep.close()
    assert stored(objects)[2:] == at(2, numbered(2, 20))


@pytest.mark.parametrize("on_its_way", [False, True])
def test_W06_a_damaged_manifest_does_not_let_a_writer_that_slept_commit_into_the_past(
    on_its_way: bool,
) -> None:
    """Nothing says any more that its place was taken and is free again, but that the chain goes on behind it."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    asleep = opened(gated, clock, writer="shared")
    log = asleep.create_topic("t").partition(0)
    log.append(b"v0")
    with running(objects, clock, writer="shared", delete_grace=GRACE_S) as peer:
        other = peer.topic("t").partition(0)
        if on_its_way:
            with gated.hold("put", suffix=".seg") as gate:
                late = log.submit(b"v20")
                gate.wait_held()
                go_on_for_a_while(other, clock, numbered(1, 19))
                objects.put(log._internal.paths.manifest, b"scribble")
            assert late.result(PATIENCE_S).offset == 20
        else:
            go_on_for_a_while(other, clock, numbered(1, 19))
            objects.put(log._internal.paths.manifest, b"scribble")
            assert log.append(b"v20").offset == 20
    asleep.close()
    assert stored(objects) == at(0, numbered(0, 21))


@pytest.mark.parametrize("fed", [False, True])
def test_W12_a_standby_that_slept_past_the_grace_period_goes_on_where_the_active_one_is(fed: bool) -> None:
    """`fed`: it gets input before it is promoted, else promotion is the first that it hears since."""
    objects, clock = MemoryStore(), ManualClock()
    with opened(objects, clock) as store, opened(objects, clock) as elsewhere:
        active = store.create_topic("t").partition(0)
        feed = active.replicated("active")
        feed.compare_and_append([b"v0"], 0, 1)
        standby = elsewhere.topic("t").partition(0).replicated("standby", standby=True)
        for number in range(1, 20):
            feed.compare_and_append([b"v%d" % number], number, number + 1)
        assert active._internal.maintenance.compact(clock.now_ms(), b"m" * 16) > 4
        clock.advance(2 * GRACE_S)
        assert len(active._internal.maintenance.collect(clock.now_ms())) > 4
        if fed:
            assert standby.submit([b"v1"], 1, 2).result(PATIENCE_S) == ("peer", 20)
        assert standby.promote() == 20
        assert standby.compare_and_append([b"v20"], 20, 21) == ("us", 21)
        with pytest.raises(Fenced):
            feed.compare_and_append([b"v20"], 20, 21)
    assert stored(objects) == at(0, numbered(0, 21))


@pytest.mark.parametrize("promoted", [False, True])
def test_W07_a_replicated_writer_that_slept_past_the_grace_period_goes_on_at_the_upper(
    promoted: bool,
) -> None:
    """Unless a peer was promoted while it slept: that stops it, whatever became of the fence."""
    objects, clock = MemoryStore(), ManualClock()
    with opened(objects, clock) as store, opened(objects, clock) as elsewhere:
        active = store.create_topic("t").partition(0)
        feed = active.replicated("active")
        feed.compare_and_append([b"v0"], 0, 1)
        asleep = elsewhere.topic("t").partition(0).replicated("asleep")
        assert asleep.upper() == 1
        if promoted:
            feed.promote()
        for number in range(1, 20):
            feed.compare_and_append([b"v%d" % number], number, number + 1)
        assert active._internal.maintenance.compact(clock.now_ms(), b"m" * 16) > 4
        clock.advance(2 * GRACE_S)
        assert len(active._internal.maintenance.collect(clock.now_ms())) > 4
        if promoted:
            with pytest.raises(Fenced, match="another replicated writer of epoch 2"):
                asleep.compare_and_append([b"v20"], 20, 21)
            assert feed.compare_and_append([b"v20"], 20, 21) == ("us", 21)
        else:
            assert asleep.compare_and_append([b"v1", b"v2"], 1, 3) == ("peer", 20)
            assert asleep.compare_and_append([b"v20"], 20, 21) == ("us", 21)
            assert feed.upper() == 21
    assert stored(objects) == at(0, numbered(0, 21))


@pytest.mark.parametrize("promoted", [False, True])
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("before", ["nothing", "an exclusive writer"])
@pytest.mark.usefixtures("own_chain")
def test_W07_a_replicated_writer_that_slept_before_its_first_segment_joins_the_others(
    before: str, deleted: bool, promoted: bool
) -> None:
    """The epoch of all of them began while it slept. Unless that was a promotion, which stops it: its fence still exists."""
    objects, clock = MemoryStore(), ManualClock()
    with (
        opened(objects, clock) as store,
        opened(objects, clock) as elsewhere,
        opened(objects, clock) as owner,
    ):
        active = store.create_topic("t").partition(0)
        values = []
        if before != "nothing":
            values += [b"before"]
            owner.topic("t").append(b"before")
        feed = active.replicated("active")
        asleep = elsewhere.topic("t").partition(0).replicated("asleep")
        if promoted:
            feed.promote()
        for number in range(20):
            feed.compare_and_append([b"v%d" % number], number, number + 1)
        clock.advance(GRACE_S / 2)
        if deleted:
            assert active._internal.maintenance.compact(clock.now_ms(), b"m" * 16) > 4
            clock.advance(2 * GRACE_S)
            assert len(active._internal.maintenance.collect(clock.now_ms())) > 4
        if promoted:
            with pytest.raises(Fenced, match="another replicated writer"):
                asleep.compare_and_append([b"v20"], 20, 21)
            assert feed.compare_and_append([b"v20"], 20, 21) == ("us", 21)
        else:
            assert asleep.compare_and_append([b"v20"], 20, 21) == ("us", 21)
            assert feed.upper() == 21
    assert stored(objects) == at(0, values + numbered(0, 21))
