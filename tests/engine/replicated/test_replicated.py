"""Replicated writers: the same deterministic input, fed by several, stored once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import logstore
from logstore.engine.replicated.replicated_writer import ReplicatedWriter
from logstore.engine.replicated.source_ranges import Applied, Place, classify
from logstore.errors import (
    AppendTimeout,
    BufferFull,
    Closed,
    DivergentWriters,
    Fenced,
    GapError,
    OutcomeUnknown,
    ReadOnly,
    RecordTooLarge,
    StoreUnavailable,
    StraddlingTransaction,
)
from logstore.format.batches.record import Record
from logstore.format.stored.segment import WriterMode
from logstore.objects import MemoryStore
from logstore.store import Store
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.actors import TOPIC, contents
from tests.support.engine.harness import headers
from tests.support.patience import PATIENCE_S

Writers = Callable[..., ReplicatedWriter]


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def writer(objects: MemoryStore, stores: list[Store]) -> Writers:
    """A replicated writer in a process of its own, on `objects` or on a wrapper of them."""

    def open_one(name: str = "a", home: Any = None, *, standby: bool = False, **settings: Any) -> Any:
        settings = {"probe_interval": 0.001, "follow_interval": 0.001} | settings
        store = logstore.open(home if home is not None else objects, **settings)
        stores.append(store)
        return store.create_topic(TOPIC, exist_ok=True).partition(0).replicated(name, standby=standby)

    return open_one


def source(lower: int, upper: int) -> list[bytes]:
    """What the source gives: one record for each offset."""
    return [b"%d" % offset for offset in range(lower, upper)]


def values(objects: MemoryStore) -> list[bytes | None]:
    return [value for _, value in contents(objects)]


# The three-way rule


@pytest.mark.parametrize(
    ("lower", "upper", "place"),
    [
        (0, 5, Place.BELOW),
        (5, 10, Place.BELOW),
        (10, 10, Place.BELOW),
        (9, 11, Place.AT),
        (10, 11, Place.AT),
        (11, 12, Place.ABOVE),
    ],
)
def test_W07_below_at_above_against_a_frontier_of_ten(lower: int, upper: int, place: Place) -> None:
    assert classify(lower, upper, 10) is place


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W07_below_is_dropped_and_counted_at_is_stored(writer: Writers, objects: MemoryStore) -> None:
    ahead, behind = writer("ahead"), writer("behind")
    assert ahead.compare_and_append(source(0, 10), 0, 10) == Applied("us", 10)
    assert behind.compare_and_append(source(0, 5), 0, 5) == Applied("peer", 10)
    assert (behind.dropped, behind.frontier) == (5, 10)
    assert behind.compare_and_append(source(5, 12), 5, 12) == Applied("us", 12)
    assert (behind.dropped, behind.frontier) == (10, 12)
    assert values(objects) == source(0, 12)
    ranges = [(header.source_lower, header.source_upper) for header in headers(objects)]
    assert ranges == [(0, 10), (10, 12)]


def test_W07_above_is_kept_until_a_peer_fills_the_gap(writer: Writers, objects: MemoryStore) -> None:
    mine, peer = writer("mine"), writer("peer")
    future = mine.submit(source(7, 9), 7, 9)
    assert not future.done()
    peer.compare_and_append(source(0, 7), 0, 7)
    assert future.result(PATIENCE_S) == Applied("us", 9)
    assert values(objects) == source(0, 9)


def test_W07_ranges_submitted_in_any_order_are_stored_in_source_order(
    writer: Writers, objects: MemoryStore
) -> None:
    mine = writer()
    futures = [mine.submit(source(lower, lower + 2), lower, lower + 2) for lower in (4, 2, 6, 0)]
    assert [future.result(PATIENCE_S).by for future in futures] == ["us"] * 4
    assert values(objects) == source(0, 8)


def two_way(
    held: list[tuple[int, int]], frontier: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The rule that froze: what is at the frontier is stored, *everything else* is put back."""
    return [r for r in held if r[0] == frontier], [r for r in held if r[0] != frontier]


def test_W07_contrast_the_two_way_rule_wedges_where_ours_moves(writer: Writers, objects: MemoryStore) -> None:
    """A peer has stored up to 10 while we held 5 and 7. Two-way: they never come to be *at* 10 and pin us at 5 for ever."""
    held, frontier, stored = [(5, 6), (7, 8)], 10, list[Any]()
    for _ in range(100):
        stored, held = two_way(held, frontier)
    assert stored == []
    assert min(lower for lower, _ in held) == 5  # pinned, below the frontier

    writer("peer").compare_and_append(source(0, 10), 0, 10)
    mine = writer("mine")
    futures = [mine.submit([b"%d" % at], at, at + 1) for at in (5, 7)]
    assert [future.result(PATIENCE_S) for future in futures] == [Applied("peer", 10)] * 2
    assert mine.compare_and_append(source(10, 11), 10, 11) == Applied("us", 11)
    assert (mine.dropped, mine.frontier) == (2, 11)


def test_W07_a_straddling_range_that_cannot_be_cut_says_where_to_go_on(
    writer: Writers, objects: MemoryStore
) -> None:
    """Three records for ten source offsets, and nobody said which belongs where."""
    writer("peer").compare_and_append(source(0, 4), 0, 4)
    mine = writer("mine")
    with pytest.raises(StraddlingTransaction, match="from 4 on"):
        mine.compare_and_append([b"x", b"y", b"z"], 0, 10)
    assert mine.compare_and_append([b"rest"], 4, 10) == Applied("us", 10)
    assert values(objects) == [*source(0, 4), b"rest"]


def test_W07_records_that_carry_source_offsets_are_cut_exactly(writer: Writers, objects: MemoryStore) -> None:
    mine, peer = writer("mine"), writer("peer")
    sparse = [Record(b"%d" % at, offset=at) for at in (1, 1, 4, 8)]
    peer.compare_and_append(sparse[:2], 0, 3)
    assert mine.compare_and_append(sparse, 0, 10) == Applied("us", 10)
    assert values(objects) == [b"1", b"1", b"4", b"8"]
    assert mine.dropped == 2


# Usage


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W08_a_gap_is_refused_and_nothing_is_written(writer: Writers, objects: MemoryStore) -> None:
    mine = writer()
    mine.compare_and_append(source(0, 3), 0, 3)
    with pytest.raises(GapError, match="source offsets 3 to 5 are missing"):
        mine.compare_and_append(source(5, 6), 5, 6)
    assert len(headers(objects)) == 1
    assert mine.compare_and_append(source(3, 6), 3, 6).upper == 6


def test_W08_a_stale_view_is_no_gap(writer: Writers) -> None:
    """We have not looked for a while and a peer has gone on: the store is asked before anybody is refused."""
    mine, peer = writer("mine"), writer("peer")
    peer.compare_and_append(source(0, 5), 0, 5)
    assert mine.frontier == 0
    assert mine.compare_and_append(source(5, 6), 5, 6) == Applied("us", 6)


@pytest.mark.parametrize(
    ("records", "lower", "upper"),
    [
        ([b"x"], 3, 3),
        ([], 3, 2),
        ([b"x"], -1, 0),
        ([b"x"], 0.5, 1),
        ([Record(b"x", offset=5)], 0, 5),
        ([Record(b"x", offset=1), b"y"], 0, 2),
        ([Record(b"x", offset=1), Record(b"y", offset=0)], 0, 2),
    ],
)
def test_W02_bad_ranges_are_usage_errors(
    writer: Writers, objects: MemoryStore, records: Any, lower: Any, upper: Any
) -> None:
    with pytest.raises(ValueError):
        writer().compare_and_append(records, lower, upper)
    assert headers(objects) == []


def test_W02_an_empty_range_moves_the_upper_and_uppers_form_a_chain(
    writer: Writers, objects: MemoryStore
) -> None:
    mine, peer = writer("mine"), writer("peer")
    assert mine.upper() == 0
    mine.compare_and_append([], 0, 1000)  # a source that begins at 1000
    peer.compare_and_append([b"x"], 1000, 1001)
    mine.compare_and_append([], 1001, 1005)
    assert (mine.upper(), peer.upper()) == (1005, 1005)
    found = headers(objects)
    uppers = [header.source_upper for header in found]
    assert [header.source_lower for header in found] == [0, *uppers[:-1]]
    assert values(objects) == [b"x"]
    assert {header.mode for header in found} == {WriterMode.REPLICATED}


def test_one_kind_of_writer_in_one_process(stores: list[Store], objects: MemoryStore) -> None:
    stores.append(store := logstore.open(objects))
    log = store.create_topic(TOPIC).partition(0)
    mine = log.replicated("a")
    assert log.replicated("a") is mine
    with pytest.raises(ValueError, match="append through them"):
        log.append(b"x")
    stores.append(other := logstore.open(objects))
    other.topic(TOPIC).partition(0).append(b"x")
    with pytest.raises(ValueError, match="one kind"):
        other.topic(TOPIC).partition(0).replicated("b")
    stores.append(reader := logstore.open(objects, writer="read_only"))
    with pytest.raises(ReadOnly):
        reader.topic(TOPIC).partition(0).replicated("c")


# Peers


def test_W09_a_peers_commit_is_progress(writer: Writers, objects: MemoryStore) -> None:
    """Frontier, lag, counters and waiting futures move with a peer's commit as with our own."""
    mine, peer = writer("mine"), writer("peer")
    peer.compare_and_append(source(0, 6), 0, 6)
    assert mine.upper() == 6
    seen = mine.health()
    assert (seen["frontier"], seen["lag"], seen["commits"], seen["peer_commits"]) == (6, 6, 0, 1)
    assert mine.submit(source(0, 4), 0, 4).result(PATIENCE_S) == Applied("peer", 6)
    seen = mine.health()
    assert (seen["lag"], seen["dropped_below_upper"]) == (2, 4)


def test_W10_the_same_range_with_other_records_is_divergence(writer: Writers, objects: MemoryStore) -> None:
    mine, peer = writer("mine"), writer("peer")
    peer.compare_and_append([b"a", b"b"], 0, 2)
    with pytest.raises(DivergentWriters, match="source offsets 0 to 2"):
        mine.compare_and_append([b"a", b"B"], 0, 2)
    with pytest.raises(DivergentWriters):
        mine.compare_and_append([b"c"], 2, 3)
    assert mine.health()["state"] == "stopped"
    assert values(objects) == [b"a", b"b"]


def test_W10_divergence_is_found_however_the_source_was_cut(writer: Writers) -> None:
    """The peer stored one range of 6; we feed it in three. The last record of the last one differs."""
    mine, peer = writer("mine"), writer("peer")
    peer.compare_and_append(source(0, 6), 0, 6)
    assert mine.compare_and_append(source(0, 2), 0, 2).by == "peer"
    assert mine.compare_and_append(source(2, 4), 2, 4).by == "peer"
    with pytest.raises(DivergentWriters):
        mine.compare_and_append([b"4", b"five"], 4, 6)


def test_W10_equal_input_cut_differently_is_no_divergence(writer: Writers, objects: MemoryStore) -> None:
    mine, peer = writer("mine"), writer("peer")
    for lower, upper in ((0, 3), (3, 4), (4, 9)):
        peer.compare_and_append(source(lower, upper), lower, upper)
    for lower, upper in ((0, 1), (1, 7), (7, 12)):
        mine.compare_and_append(source(lower, upper), lower, upper)
    assert values(objects) == source(0, 12)


@pytest.mark.parametrize(
    "other",
    [
        Record(b"v", b"k", (("h", b"1"),), 5),
        Record(b"v", b"K", (("h", b"1"),), 5),
        Record(b"v", b"k", (("h", b"2"),), 5),
        Record(b"v", b"k", (("h", None),), 5),
        Record(b"v", b"k", (), 5),
        Record(b"v", b"k", (("h", b"1"),), 6),
        Record(None, b"k", (("h", b"1"),), 5),
        Record(b"v", None, (("h", b"1"),), 5),
    ],
)
def test_W10_key_value_headers_and_timestamp_all_count(writer: Writers, other: Record) -> None:
    mine, peer = writer("mine"), writer("peer")
    one = Record(b"v", b"k", (("h", b"1"),), 5)
    peer.compare_and_append([one], 0, 1)
    if other == one:
        assert mine.compare_and_append([other], 0, 1) == Applied("peer", 1)
    else:
        with pytest.raises(DivergentWriters):
            mine.compare_and_append([other], 0, 1)


# Trouble


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.REFUSE, Fault.CONFLICT])
def test_W04_any_end_of_a_put_is_one_copy(writer: Writers, objects: MemoryStore, fault: Fault) -> None:
    faulty = FaultyStore(objects)
    mine = writer("mine", faulty)
    faulty.fail("put", suffix=".seg", with_=fault, times=2)
    assert mine.compare_and_append(source(0, 3), 0, 3) == Applied("us", 3)
    assert mine.compare_and_append(source(3, 4), 3, 4) == Applied("us", 4)
    assert values(objects) == source(0, 4)


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W04_lost_answer_then_a_look_at_the_upper_finds_our_own(objects: MemoryStore) -> None:
    """The PUT is done, its answer lost, the look at it refused; before the retry is due somebody asks for the upper."""
    gated = GatedStore(objects)
    refused = StoreUnavailable("no")
    refused.retriable = False
    with logstore.open(gated, clock=ManualClock()) as store:
        mine = store.create_topic(TOPIC).partition(0).replicated("mine")
        with gated.hold("get", suffix=".seg") as looks, gated.hold("put", suffix=".seg") as puts:
            future = mine.submit(source(0, 3), 0, 3)
            puts.wait_held()
            puts.release_lost()
            looks.wait_held()
            looks.fail(refused)
        assert mine.upper() == 3
        assert future.result(PATIENCE_S) == Applied("us", 3)
        assert (mine.dropped, mine.stats.commits, len(headers(objects))) == (0, 1, 1)


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W04_after_a_timeout_the_same_call_again_is_safe(writer: Writers, objects: MemoryStore) -> None:
    gated = GatedStore(objects)
    mine = writer("mine", gated)
    with gated.hold("put", suffix=".seg") as gate:
        with pytest.raises(AppendTimeout, match="again is safe"):
            mine.compare_and_append(source(0, 3), 0, 3, timeout=0.01)
        gate.wait_held()
    assert mine.compare_and_append(source(0, 3), 0, 3).upper == 3
    assert values(objects) == source(0, 3)


def test_W05_an_exclusive_fence_stops_replicated_writers_and_keeps_the_upper(
    writer: Writers, objects: MemoryStore, stores: list[Store]
) -> None:
    mine = writer("mine")
    mine.compare_and_append(source(0, 3), 0, 3)
    stores.append(owner := logstore.open(objects))
    owner.topic(TOPIC).append(b"owned")
    with pytest.raises(Fenced, match="exclusive writer"):
        mine.compare_and_append(source(3, 4), 3, 4)
    again = writer("again")
    assert again.upper() == 3
    again.compare_and_append(source(3, 4), 3, 4)
    assert values(objects) == [*source(0, 3), b"owned", *source(3, 4)]


def test_W07_a_range_in_many_batches_is_cut_inside_one(writer: Writers, objects: MemoryStore) -> None:
    mine, peer = writer("mine", max_batch_bytes=1000), writer("peer", max_batch_bytes=1000)
    rows = [b"%05d" % number * 30 for number in range(50)]
    peer.compare_and_append(rows[:17], 0, 17)
    assert mine.compare_and_append(rows, 0, 50) == Applied("us", 50)
    assert values(objects) == rows


def test_W07_what_is_held_above_leaves_room_for_what_is_missing(
    writer: Writers, objects: MemoryStore
) -> None:
    mine = writer(max_buffered_bytes=20_000, max_batch_bytes=10_000)
    future = mine.submit([b"x" * 8000], 1, 2)
    with pytest.raises(BufferFull, match="above source offset 0"):
        mine.submit([b"y" * 8000], 2, 3)
    with pytest.raises(RecordTooLarge):
        mine.submit([b"z" * 8000] * 3, 0, 3)
    assert mine.compare_and_append([b"w" * 8000], 0, 1) == Applied("us", 1)
    assert future.result(PATIENCE_S) == Applied("us", 2)
    assert [value[:1] for value in values(objects) if value] == [b"w", b"x"]


def test_close_tells_who_waits_for_a_range_that_never_came(writer: Writers, stores: list[Store]) -> None:
    mine = writer()
    future = mine.submit(source(5, 6), 5, 6)
    with pytest.raises(OutcomeUnknown, match="source offsets from 5 on"):
        stores.pop().close()
    with pytest.raises(Closed):
        future.result(0)


def test_health_reports_a_stall_with_the_source_offset_that_holds_it(objects: MemoryStore) -> None:
    """It holds 5 to 6, and 0 to 5 does not come: that is what an operator must be told, with status and offset."""
    clock = ManualClock()
    store = logstore.open(objects, clock=clock, stall_after=60.0)
    mine = store.create_topic(TOPIC).partition(0).replicated("mine")
    clock.advance(1000.0)
    assert mine.health()["state"] == "writing"  # nothing held: idle is no stall
    mine.submit(source(5, 6), 5, 6)
    assert mine.health()["state"] == "writing"
    clock.advance(61.0)
    (seen,) = store.health()["partitions"][0]["replicated"]
    assert (seen["state"], seen["held_at_source_offset"], seen["mode"]) == ("stalled", 0, "replicated")
    mine.compare_and_append(source(0, 5), 0, 5)
    assert mine.health()["state"] == "writing"
    store.close()


# Stopped in the middle of a step


def test_W07_a_range_that_is_compared_while_its_writer_is_stopped_is_told(
    writer: Writers, objects: MemoryStore, stores: list[Store]
) -> None:
    """It straddles the upper, so what is stored is looked up; meanwhile the partition is reopened."""
    writer().compare_and_append([b"0", b"1"], 0, 2)
    gated = GatedStore(objects)
    late = writer("late", gated)
    log = stores[-1].topic(TOPIC).partition(0)
    with gated.hold("get", suffix=".seg") as reads:
        straddling = late.submit([b"0", b"1", b"2"], 0, 3)
        reads.wait_held()
        log.reopen(timeout=0.01)
    with pytest.raises(Closed):
        straddling.result(PATIENCE_S)


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W07_a_commit_that_outlives_its_writer_fails_no_step(
    writer: Writers, objects: MemoryStore, stores: list[Store]
) -> None:
    gated = GatedStore(objects)
    mine = writer("mine", gated)
    log = stores[-1].topic(TOPIC).partition(0)
    with gated.hold("put", suffix=".seg") as puts:
        future = mine.submit([b"0"], 0, 1)
        puts.wait_held()
        log.reopen(timeout=0.01)
        with pytest.raises(Closed):
            future.result(0)
    with pytest.raises(OutcomeUnknown, match="not stored by 'mine'"):
        stores.pop().close()  # waits for the step that was under way
    assert mine.stats.failures == 0
    assert contents(objects) == [(0, b"0")]
