"""F14: whatever is replayed, after whatever crash, is stored once, in order and reported; what cannot fit
raises.
"""

from __future__ import annotations

from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from logstore.errors import InvalidRecord, StraddlingTransaction, UnsupportedStore
from logstore.format.batches.record import Record
from logstore.ingest import Collector
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import GatedStore
from tests.support.ingest.story import (
    Change,
    Reports,
    Transaction,
    collecting,
    crashing,
    expected,
    feed,
    position_of,
    stored,
    transactions,
    values,
)

STORY = transactions({"orders": 3, "items": 5}, {"items": 1}, {}, {"orders": 40})
LARGE = transactions({"orders": 5}, {"orders": 300}, {"orders": 2}, value_bytes=500)


def shares_are_whole(objects: ObjectStore) -> bool:
    """Each partition's positions rise strictly, and exactly the last record of each transaction says it is
    the last.
    """
    for records in stored(objects).values():
        numbers = [position_of(record) for record in records]
        ends = ["source-end" in dict(record.headers) for record in records]
        wanted = [
            at + 1 == len(numbers) or numbers[at + 1][0] != transaction
            for at, (transaction, _) in enumerate(numbers)
        ]
        if numbers != sorted(set(numbers)) or ends != wanted:
            return False
    return True


def test_F14_a_replay_of_everything_after_a_restart_is_skipped_and_still_reported() -> None:
    objects, first, second = MemoryStore(), Reports(), Reports()
    with collecting(objects, first) as collector:
        feed(collector, STORY)
        collector.flush()
    with collecting(objects, second) as collector:
        feed(collector, STORY)
        collector.flush()
        counts = collector.counts
    assert values(objects) == expected(STORY)
    assert (counts.records, counts.skipped) == (0, sum(len(transaction.changes) for transaction in STORY))
    assert second.seen[-1] == STORY[-1].boundary


def test_F14_a_replay_of_another_history_is_not_skipped_over() -> None:
    """The source went back and on in another way: what is at lower positions now was never stored."""
    objects, reports = MemoryStore(), Reports()
    with collecting(objects, reports) as collector:
        feed(collector, STORY)
        collector.flush()
    with crashing(objects, reports) as collector:
        feed(collector, STORY[:3])
        collector.begin(STORY[3].position - 1)
        collector.changes(STORY[3].changes[:1])
        collector.commit(STORY[3].boundary - 1)
        collector.begin(STORY[3].position + 1)
        with pytest.raises(StraddlingTransaction, match="had nothing there"):
            collector.changes(STORY[3].changes)
    assert values(objects) == expected(STORY)


def test_F14_a_partition_that_has_more_than_the_source_is_refused_when_it_is_opened_and_later() -> None:
    objects, reports = MemoryStore(), Reports()
    with collecting(objects, reports) as collector:
        feed(collector, STORY)
        collector.flush()
        collector.source_ends_at(STORY[-1].position + 1)
        with pytest.raises(UnsupportedStore, match="restored to an earlier time"):
            collector.source_ends_at(STORY[-1].position)
    with crashing(objects, reports) as collector:
        collector.source_ends_at(STORY[-1].position)
        collector.own("items")
        with pytest.raises(UnsupportedStore, match="orders"):
            collector.own("orders")
        collector.source_ends_at(STORY[-1].position + 1)
        collector.own("orders")


def test_F14_a_crash_inside_a_large_transaction_resumes_behind_what_is_stored() -> None:
    objects, reports = MemoryStore(), Reports()
    with crashing(objects, reports, chunk_bytes=20_000) as collector:
        feed(collector, LARGE[:1])
        collector.flush()
        collector.begin(LARGE[1].position)
        collector.changes(LARGE[1].changes[:200])
        collector.flush()
    torn = values(objects)["orders"]
    assert 5 < len(torn) < 205
    assert not shares_are_whole(objects)
    assert reports.seen == [LARGE[0].boundary]
    with collecting(objects, reports, start=reports.seen[-1], chunk_bytes=20_000) as collector:
        feed(collector, LARGE, after=reports.seen[-1])
        collector.flush()
    assert values(objects) == expected(LARGE)
    assert shares_are_whole(objects)
    assert reports.seen[-1] == LARGE[-1].boundary


def test_F14_a_broken_connection_inside_a_transaction_rewinds_in_the_same_process() -> None:
    objects, reports = MemoryStore(), Reports()
    with collecting(objects, reports, chunk_bytes=20_000) as collector:
        feed(collector, LARGE[:1], more=True)
        collector.begin(LARGE[1].position)
        collector.changes(LARGE[1].changes[:200])
        feed(collector, LARGE, after=collector.rewind(), more=True)
        collector.flush()
    assert values(objects) == expected(LARGE)
    assert shares_are_whole(objects)
    assert reports.seen[-1] == LARGE[-1].boundary


def test_F14_a_rewind_while_uploads_are_in_flight_sends_nothing_twice() -> None:
    gated, reports = GatedStore(MemoryStore()), Reports()
    with collecting(gated, reports) as collector:
        feed(collector, STORY[:2])
        collector.flush()
        with gated.hold("put", suffix=".seg") as gate:
            feed(collector, STORY[2:])
            gate.wait_held()
            feed(collector, STORY, after=collector.rewind())
            collector.rewind()
            feed(collector, STORY)  # a source that goes back further than it was told to
        collector.flush()
    assert values(gated) == expected(STORY)
    assert reports.seen[-1] == STORY[-1].boundary


def test_F08_a_sink_that_failed_by_our_own_doing_is_handed_over_and_replayed() -> None:
    """The source's thread is interrupted while it hands records to a log: only the log knows what it has."""
    objects, reports = MemoryStore(), Reports()
    with collecting(objects, reports) as collector:
        feed(collector, STORY[:1])
        collector.flush()
        victim = next(sink for sink in collector._sinks if sink.name == ("items", 0))
        right, before = victim.log, victim.lease

        class Interrupted:
            def submit(self, *_: object, **__: object) -> None:
                raise KeyboardInterrupt

        victim.log = Interrupted()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            feed(collector, transactions({}, {"items": 30})[1:])
        victim.log = right
        story = [STORY[0], *transactions({}, {"items": 30})[1:]]
        feed(collector, story, after=collector.rewind())
        collector.flush()
        assert victim.lease.generation > before.generation
    assert values(objects) == expected(story)
    assert reports.seen[-1] == story[-1].boundary


def stored_story(story: list[Transaction] = STORY) -> MemoryStore:
    objects = MemoryStore()
    with collecting(objects, Reports()) as collector:
        feed(collector, story)
        collector.flush()
    return objects


def torn_story() -> MemoryStore:
    objects = MemoryStore()
    with crashing(objects, Reports(), chunk_bytes=5_000) as collector:
        feed(collector, LARGE[:1])
        collector.begin(LARGE[1].position)
        collector.changes(LARGE[1].changes[:200])
        collector.flush()
    return objects


def test_F14_a_transaction_that_has_grown_since_it_was_stored_straddles() -> None:
    objects = stored_story()
    grown = [Transaction(t.position, t.boundary, t.changes * 2) for t in STORY]
    with collecting(objects, Reports()) as collector:
        with pytest.raises(StraddlingTransaction, match="the stored part says that it is whole"):
            feed(collector, grown)
    assert values(objects) == expected(STORY)


def test_F14_a_source_that_forgot_the_rest_of_a_torn_transaction_straddles() -> None:
    objects = torn_story()
    before = values(objects)
    with collecting(objects, Reports()) as collector:
        with pytest.raises(StraddlingTransaction, match="the rest of 200 was never replayed"):
            feed(collector, LARGE, after=LARGE[1].boundary)
    assert values(objects) == before


def test_F14_a_torn_transaction_that_comes_back_shorter_straddles() -> None:
    objects = torn_story()
    shorter = [Transaction(t.position, t.boundary, t.changes[:100]) for t in LARGE]
    with collecting(objects, Reports()) as collector:
        with pytest.raises(StraddlingTransaction, match="ends where the stored part goes on"):
            feed(collector, shorter)


def test_F14_a_torn_transaction_that_comes_back_routed_otherwise_straddles() -> None:
    objects = torn_story()

    def only_late(change: Change) -> list[Change]:
        return [change] if change[1] > b"orders-2" else []

    with collecting(objects, Reports(), routing=only_late) as collector:
        with pytest.raises(StraddlingTransaction):
            feed(collector, LARGE)


def test_F14_a_replay_that_ends_earlier_than_what_is_owed_raises_instead_of_waiting_without_end() -> None:
    """The append was refused after the commit had made the debt; the routing that caused it is mended, and gives less."""
    reports = Reports()
    with collecting(MemoryStore(), reports, routing=lambda change: [change]) as collector:
        collector.begin(1)
        collector.changes([("t", b"k", b"fine"), ("t", b"k", "not bytes")])
        with pytest.raises(InvalidRecord, match="must be bytes"):
            collector.commit(2)
        assert collector.rewind() == 0
        collector.begin(1)
        collector.changes([("t", b"k", b"fine")])
        with pytest.raises(
            StraddlingTransaction, match="went on to record 1 before, and the replay does not"
        ):
            collector.commit(2)
        collector.rewind()
        collector.begin(1)
        collector.changes([("t", b"k", b"fine"), ("t", b"k", b"now bytes")])
        collector.commit(2)
        collector.flush()
    assert reports.seen == [2]


def test_F14_a_boundary_that_was_reported_cannot_bring_anything_new() -> None:
    objects = stored_story(STORY[:2])
    with collecting(objects, Reports(), start=10_000) as collector:
        with pytest.raises(StraddlingTransaction, match=r"40 of its records were not"):
            feed(collector, STORY)


def test_F14_a_source_that_starts_over_leaves_the_torn_part_behind_it() -> None:
    objects, reports = torn_story(), Reports()
    with collecting(objects, reports) as collector:
        collector.begin(10_000, "snapshot", starts_over=True)
        collector.changes([("orders", b"orders-1", b"fresh")])
        collector.commit(10_001)
        collector.flush()
    assert values(objects)["orders"][-1] == b"fresh"
    assert reports.seen == [10_001]


@pytest.mark.parametrize(
    "position",
    [b"source", b"source/1", b"source/x/1", b"other/9/9", b"\xff/9/9", b"source/-9/1", b"9/source/9/9", b""],
)
def test_F14_the_upper_is_found_behind_records_of_others(position: bytes) -> None:
    """Somebody else appended to the partition too, under a header of the same name: the newest record of *this* source
    counts."""
    import logstore

    objects = stored_story(STORY[:1])
    foreign = Record(b"of somebody else", headers=(("source-position", position),))
    with logstore.open(objects) as store:
        for partition in range(2):
            store.topic("items").partition(partition).append([foreign] * 20)
    reports = Reports()
    with collecting(objects, reports) as collector:
        feed(collector, STORY)
        collector.flush()
        assert collector.counts.skipped == len(STORY[0].changes)
    assert reports.seen[-1] == STORY[-1].boundary


shapes = st.lists(
    st.dictionaries(st.sampled_from(["orders", "items"]), st.integers(1, 12), max_size=2),
    min_size=1,
    max_size=6,
)
stops = st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["crash", "rewind"])), max_size=4)


class Stop(Exception):
    pass


@settings(max_examples=60, deadline=None)
@given(
    shapes=shapes,
    stops=stops,
    chunk_bytes=st.sampled_from([1, 900, 1 << 20]),
    fragment=st.integers(1, 5),
    more=st.booleans(),
)
def test_F14_any_crashes_and_rewinds_at_any_change_store_everything_once(
    shapes: list[dict[str, int]], stops: list[tuple[int, str]], chunk_bytes: int, fragment: int, more: bool
) -> None:
    """Runs of the source that end at some change, by a crash or a rewind; then one that reaches the end."""
    story = transactions(*shapes)
    objects, reports = MemoryStore(), Reports()

    def run(collector: Collector[Change], after: int, steps: int) -> None:
        for transaction in story:
            if transaction.boundary <= after:
                continue
            collector.begin(transaction.position)
            for start in range(0, len(transaction.changes), fragment):
                if steps == 0:
                    raise Stop
                steps -= 1
                collector.changes(transaction.changes[start : start + fragment])
            collector.commit(transaction.boundary, more=more)

    for steps, how in stops:
        start = (reports.seen or [0])[-1]
        with crashing(objects, reports, start, chunk_bytes=chunk_bytes) as collector:
            after = start
            for _ in range(2 if how == "rewind" else 1):
                with suppress(Stop):
                    run(collector, after, steps)
                after = collector.rewind() if how == "rewind" else after
    start = (reports.seen or [0])[-1]
    with collecting(objects, reports, start, chunk_bytes=chunk_bytes) as collector:
        run(collector, start, -1)
        collector.flush()
    assert values(objects) == expected(story)
    assert shares_are_whole(objects)
    assert reports.seen == sorted(set(reports.seen))
    assert reports.seen[-1] == story[-1].boundary
