"""The upsert view: what it takes in, when it emits, and who is believed."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

import logstore
from logstore.engine.partition.internal import Partition
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import (
    AppendTimeout,
    DivergentWriters,
)
from logstore.objects import MemoryStore
from logstore.store import Store
from logstore.testing import GatedStore
from logstore.upsert import UpsertView
from logstore.upsert.stash import Stash
from tests.support.patience import PATIENCE_S
from tests.support.upsert import TOPIC, Views, changes


@pytest.mark.usefixtures("begin_in_own_chains")
def test_U01_state_changes_only_by_reading_the_committed_log(view: Views, objects: MemoryStore) -> None:
    """The commit is under way, its bytes are made: the view still shows what the log holds."""
    gated = GatedStore(objects)
    mine = view("mine", gated)
    mine.apply(b"k", b"1", order=1, time=0)
    with gated.hold("put", suffix=".seg") as gate:
        with pytest.raises(AppendTimeout):
            mine.advance(1, timeout=0.01)
        gate.wait_held()
        assert (mine.get(b"k"), mine.frontier, len(mine)) == (None, 0, 0)
    assert mine.drain() == 1
    assert (mine.get(b"k"), len(mine)) == (b"1", 1)


def test_U01_a_peers_commit_is_believed_not_our_own_input(view: Views) -> None:
    """A peer stored a time before all of our input for it had come. The log is right, whatever we hold."""
    mine, peer = view("mine"), view("peer")
    mine.apply(b"k", b"an earlier one", order=1, time=0)
    peer.apply(b"k", b"the last one", order=2, time=0)
    peer.advance(1)
    assert mine.refresh() == 1
    assert (mine.get(b"k"), mine.dropped) == (b"the last one", 1)


def test_U01_a_commit_is_taken_in_alike_whether_we_computed_it_or_not(
    view: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours, read back in one piece or in many, and a peer's: values, count and frontier are the same."""
    mine, peer = view("mine"), view("peer")
    rng = random.Random(5)
    for time in range(0, 40, 2):
        monkeypatch.setattr("logstore.upsert.view._READ_BYTES", rng.choice([1, 1 << 20]))
        mine.apply_many(
            (b"%d" % rng.randrange(50), rng.choice([None, b"x", b"%d" % time]), order, time + order % 2)
            for order in range(60)
        )
        mine.advance(time + 2)
        peer.refresh()
        assert (peer.frontier, len(peer), dict(peer.items())) == (time + 2, len(mine), dict(mine.items()))
    assert mine.snapshot() == view("fresh").snapshot()


def test_U01_nobody_sees_half_of_a_commit_that_takes_several_reads(
    view: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a reader looks, the values are those of the frontier, and what is iterated does not change unnoticed."""
    mine, peer = view("mine"), view("peer")
    keys, size = [b"%d" % number for number in range(6)], 300_000  # more than fits one batch
    for time in range(3):
        peer.apply_many((key, b"%d" % time * size, 1, time) for key in keys)
    peer.apply(b"3", None, order=2, time=2)
    peer.advance(3)
    at = {time: dict.fromkeys(keys, b"%d" % time * size) for time in range(3)}
    wanted = [{}, at[0], at[1], {key: value for key, value in at[2].items() if key != b"3"}]
    seen: list[int] = []
    read = Partition.read

    def look_and_read(log: Partition, *arguments: Any, **kw: Any) -> Any:
        seen.append(mine.frontier)
        assert dict(mine.items()) == wanted[mine.frontier]
        assert len(mine) == len(wanted[mine.frontier])
        return read(log, *arguments, **kw)

    monkeypatch.setattr("logstore.upsert.view._READ_BYTES", 1)
    monkeypatch.setattr(Partition, "read", look_and_read)
    assert mine.refresh() == 3
    assert (len(seen) > 3, set(seen) <= {0, 1, 2}, dict(mine.items())) == (True, True, wanted[3])


@pytest.mark.usefixtures("begin_in_own_chains")
def test_U02_our_own_commit_found_by_a_refresh_is_not_counted_as_a_peers(
    view: Views, objects: MemoryStore
) -> None:
    gated = GatedStore(objects)
    mine = view("mine", gated)
    mine.apply(b"k", b"1", order=1, time=0)
    with gated.hold("put", suffix=".seg") as gate:
        with pytest.raises(AppendTimeout):
            mine.advance(1, timeout=0.01)
        gate.wait_held()
    assert mine._under_way is not None
    mine._under_way[0].result(PATIENCE_S)
    assert (mine.refresh(), mine.get(b"k"), mine.dropped, mine.stashed) == (1, b"1", 0, 0)


Fed = dict[bytes, bytes | None]


@pytest.mark.parametrize("spilled", [False, True], ids=["in-memory", "spilled"])
@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        ({b"k": b"theirs"}, {b"k": b"ours"}, "b'k' at time 1: a peer stored b'theirs', and we hold b'ours'"),
        ({b"k": None}, {b"k": b"ours"}, "b'k' at time 1: a peer stored None, and we hold b'ours'"),
        ({b"a": b"1", b"k": b"2"}, {b"a": b"1"}, "b'k' at time 1: a peer stored b'2', and we hold no update"),
        ({b"a": b"1"}, {b"a": b"1", b"k": b"2"}, "b'k' at time 1: we hold b'2', and a peer stored no change"),
        ({b"a": b"1"}, {b"a": b"1", b"k": None}, "b'k' at time 1: we hold None, and a peer stored no change"),
    ],
)
@pytest.mark.parametrize("later", [0, 1], ids=["alone", "with-a-later-time"])
def test_W10_views_that_get_other_input_for_the_same_time_raise(
    view: Views, theirs: Fed, ours: Fed, why: str, later: int, spilled: bool
) -> None:
    settings = {"max_memory_bytes": 1} if spilled else {}
    mine, peer = view("mine", **settings), view("peer")
    for one, fed in ((mine, ours), (peer, theirs)):
        one.apply(b"k", b"before", order=1, time=0)
        one.apply_many((key, value, 1, 1) for key, value in fed.items())
        if later:
            one.apply(b"k", b"after", order=1, time=2)
    peer.advance(1)
    mine.refresh()
    peer.advance(2 + later)
    with pytest.raises(DivergentWriters, match=why):
        mine.advance(2 + later)
    raised = []
    for call in (mine.drain, mine.refresh, lambda: mine.get(b"k")):
        with pytest.raises(DivergentWriters, match=why) as caught:
            call()
        raised.append(caught.value)
    assert len({id(error) for error in raised}) == 3, "one object would collect the frames of every call"
    assert mine.health()["state"] == "stopped"
    peer.apply(b"k", b"goes on", order=1, time=3)
    assert peer.advance(4) == 4


def test_W10_input_that_says_the_same_in_other_words_is_no_divergence(view: Views) -> None:
    """Updates that change nothing, lower orders, another order of arrival, and other cuts of the times into commits."""
    mine, peer = view("mine"), view("peer")
    for time in range(6):
        peer.apply_many([(b"a", b"%d" % time, 2, time), (b"b", b"x", 1, time)])
        mine.apply_many(
            [
                (b"b", b"x", 1, time),
                (b"absent", None, 1, time),
                (b"a", b"lower", 1, time),
                (b"a", b"%d" % time, 2, time),
            ]
        )
    peer.advance(2)
    peer.advance(5)
    assert mine.advance(6) == 6
    assert (mine.get(b"a"), mine.dropped) == (b"5", 15)


def test_U02_only_complete_times_are_emitted(view: Views, objects: MemoryStore) -> None:
    mine = view()
    mine.apply(b"a", b"1", order=1, time=0)
    mine.apply(b"b", b"1", order=1, time=1)
    mine.apply(b"c", b"1", order=1, time=5)
    assert mine.drain() == 0
    assert changes(objects) == []
    assert mine.advance(1) == 1
    assert changes(objects) == [(b"a", None, b"1", 0)]
    assert mine.advance(5) == 5
    assert (mine.stashed, mine.get(b"c")) == (1, None)
    assert mine.advance(6) == 6
    assert [change[0] for change in changes(objects)] == [b"a", b"b", b"c"]


@pytest.mark.usefixtures("begin_in_own_chains")
def test_U02_an_update_for_a_time_that_was_declared_complete_is_refused(
    view: Views, objects: MemoryStore
) -> None:
    gated = GatedStore(objects)
    mine = view("mine", gated)
    with gated.hold("put", suffix=".seg") as gate:
        with pytest.raises(AppendTimeout):
            mine.advance(6, timeout=0.01)
        gate.wait_held()
        with pytest.raises(ValueError, match="at time 5, but the input was declared complete below 6"):
            mine.apply(b"x", b"1", order=1, time=5)
    assert mine.drain() == 6
    mine.apply(b"x", b"1", order=1, time=5)  # now the log holds that time: dropped, as for any late replica
    assert mine.dropped == 1


def test_U02_U06_seed_feedback_at_ten_with_input_at_five_and_seven(view: Views, objects: MemoryStore) -> None:
    """As it was reported: the log is at 10 by a peer, we hold 5 and 7: both are dropped, and the frontier becomes 11."""
    peer, mine = view("peer"), view("mine")
    mine.apply(b"k", b"at-5", order=1, time=5)
    mine.apply(b"k", b"at-7", order=1, time=7)
    peer.advance(10)
    assert mine.advance(11) == 11
    assert (mine.dropped, mine.stashed, mine.frontier) == (2, 0, 11)
    assert changes(objects) == []


class KeepingStash(Stash):
    def drop_below(self, frontier: int) -> int:
        return 0


class TwoWayView(UpsertView):
    """The rule that froze Materialize's operator: what is not *at* the frontier is put back, also what is below it."""

    def __init__(self, partition: PartitionLog, writer_id: str) -> None:
        super().__init__(partition, writer_id)
        self._stash = KeepingStash()

    @property
    def frontier(self) -> int:
        """What it holds back pins what it may tell the world."""
        held = self._stash.first
        return self._frontier if held is None else min(self._frontier, held)

    def drain(self, *, timeout: float | None = None) -> int:
        if self.frontier < self._take_in():
            return self.frontier  # something below is "not yet eligible": it waits for its turn, for ever
        return super().drain(timeout=timeout)


def test_U02_U06_contrast_the_two_way_rule_pins_at_five(
    objects: MemoryStore, stores: list[Store], view: Views
) -> None:
    peer = view("peer")
    stores.append(store := logstore.open(objects))
    mine = TwoWayView(store.topic(TOPIC).partition(0), "mine")
    mine.apply(b"k", b"at-5", order=1, time=5)
    mine.apply(b"k", b"at-7", order=1, time=7)
    peer.advance(10)
    mine.refresh()
    for _ in range(10):
        assert mine.advance(11) == 5
    assert peer.refresh() == 10  # and so the log stands still, without an error anywhere


@pytest.mark.parametrize("arrival", list(itertools.permutations(range(3))))
def test_U03_the_highest_order_wins_whatever_the_arrival(view: Views, arrival: tuple[int, ...]) -> None:
    mine = view()
    updates = [(b"k", b"old", 1, 0), (b"k", None, 2, 0), (b"k", b"newest", 3, 0)]
    for number in arrival:
        mine.apply_many([updates[number], updates[number]])
    mine.advance(1)
    assert mine.get(b"k") == b"newest"


def test_U03_orders_of_any_kind_that_sorts_and_ties_end_alike() -> None:
    results = []
    for arrival in ([b"x", None, b"y"], [b"y", b"x", None], [None, b"y", b"x"]):
        stash = Stash()
        stash.add_many([(b"k", value, (3, "partition-1"), 0) for value in arrival], 0, 0)
        stash.add_many([(b"k", b"earlier", (2, "partition-9"), 0)], 0, 0)
        stash.complete(1)
        results += [latest[b"k"][1] for _, latest in stash.eligible()]
    assert results == [b"y"] * 3


@pytest.mark.parametrize("bad", [("k", b"v", 0), (b"k", "v", 0), (b"k", b"v", 0.5), (b"k", b"v", 1 << 63)])
def test_bad_input_is_refused(view: Views, bad: tuple[Any, Any, Any]) -> None:
    key, value, time = bad
    mine = view()
    with pytest.raises((TypeError, ValueError)):
        mine.apply(key, value, order=1, time=time)
    with pytest.raises(ValueError):
        mine.advance(-1)
    assert mine.stashed == 0


def test_U02_what_is_due_and_larger_than_the_buffer_goes_in_several_commits(objects: MemoryStore) -> None:
    """20 times of 50 kB, then all of them replaced: each change carries the old value too. Every time is whole."""
    with logstore.open(objects, max_buffered_bytes=300_000, compression="none") as store:
        mine = UpsertView(store.create_topic(TOPIC).partition(0), "mine")
        for start in (0, 20):
            for time in range(start, start + 20):
                mine.apply(b"%d" % (time % 20), b"%d" % time * 25_000, order=1, time=time)
            assert mine.advance(start + 20) == start + 20
        assert mine.snapshot() == {b"%d" % key: b"%d" % (key + 20) * 25_000 for key in range(20)}
        assert mine.dropped == 0
    assert [time for _, _, _, time in changes(objects)] == list(range(40))


def test_a_time_below_0_is_refused_and_not_forgotten(view: Views) -> None:
    mine = view()
    with pytest.raises(ValueError, match="time=-1"):
        mine.apply(b"k", b"v", order=1, time=-1)
    assert (mine.stashed, mine.dropped) == (0, 0)


def test_U02_what_was_dropped_before_a_bad_update_is_counted_too(view: Views) -> None:
    mine, peer = view("mine"), view("peer")
    peer.advance(5)
    mine.refresh()
    with pytest.raises(TypeError):
        mine.apply_many([(b"k", b"late", 1, 3), (b"k", b"late", 1, 4), (b"k", b"new", 1, 5), (b"k", 6, 1, 6)])  # type: ignore[list-item]
    assert (mine.dropped, mine.health()["dropped_below_upper"], mine.stashed) == (2, 2, 1)
