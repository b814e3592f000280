"""F01–F15 through the collector and the real engine."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.config import Ack
from logstore.errors import (
    Closed,
    Fenced,
    InvalidRecord,
    OutcomeUnknown,
    StoreUnavailable,
    StraddlingTransaction,
)
from logstore.ingest import EVERY_PARTITION, Routed
from logstore.objects import MemoryStore, ObjectStore
from logstore.objects.homes.local import LocalStore
from logstore.testing import FaultyStore, GatedStore
from tests.support.ingest.story import (
    Reports,
    Transaction,
    collecting,
    expected,
    feed,
    stored,
    transactions,
    values,
)
from tests.support.patience import PATIENCE_S

STORY = transactions({"orders": 3, "items": 5}, {"items": 1}, {}, {"orders": 40})


@pytest.fixture(params=["memory", "local"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "store")


def test_F01_F02_every_record_is_stored_once_and_the_last_boundary_is_reported(objects: ObjectStore) -> None:
    reports = Reports()
    with collecting(objects, reports) as collector:
        feed(collector, STORY)
        collector.flush()
    assert values(objects) == expected(STORY)
    assert reports.seen == sorted(set(reports.seen))
    assert set(reports.seen) <= {transaction.boundary for transaction in STORY}
    assert reports.seen[-1] == STORY[-1].boundary


def test_F14_records_carry_position_transaction_and_the_end_of_their_share(objects: ObjectStore) -> None:
    with collecting(objects, Reports(), source="shop") as collector:
        feed(collector, transactions({"orders": 4}), fragment=1)
        collector.flush()
    found = [
        (dict(record.headers)["source-position"], record.value)
        for records in stored(objects).values()
        for record in records
    ]
    assert sorted(found) == [(b"shop/100/%d" % n, b"1/orders/%d" % n) for n in range(4)]
    for records in stored(objects).values():
        assert [dict(record.headers)["source-transaction"] for record in records] == [b"tx100"] * len(records)
        assert ["source-end" in dict(record.headers) for record in records] == [False] * (
            len(records) - 1
        ) + [True]


@pytest.mark.parametrize(
    ("fragment", "chunk_bytes", "more"), list(itertools.product([1, 3, 1_000], [1, 2_000, 1 << 20], [0, 1]))
)
def test_F03_fragment_size_chunk_size_and_batching_do_not_change_the_answer(
    fragment: int, chunk_bytes: int, more: int
) -> None:
    objects, reports = MemoryStore(), Reports()
    with collecting(objects, reports, chunk_bytes=chunk_bytes) as collector:
        feed(collector, STORY, fragment=fragment, more=bool(more))
        collector.flush()
    assert values(objects) == expected(STORY)
    assert reports.seen[-1] == STORY[-1].boundary


def test_F05_a_fragment_over_64_KB_is_stored_before_its_commit_and_the_commit_is_still_reported() -> None:
    """The first change is stored while the transaction is open; at the commit nothing is left to flush for it."""
    objects, reports = MemoryStore(), Reports()
    (big,) = transactions({"items": 3, "orders": 2}, value_bytes=70_000)
    with collecting(objects, reports, chunk_bytes=64 * 1024) as collector:
        collector.begin(big.position)
        collector.changes(big.changes)
        collector.flush()
        early = values(objects)
        assert reports.seen == []
        collector.commit(big.boundary)
        reports.wait_for(big.boundary)
    assert (
        0 < len(early["items"]) < 3
    )  # the newest of each partition is held back: it will say that it is the last
    assert set(early["items"]) < set(expected([big])["items"])
    assert values(objects) == expected([big])


def test_F07_size_triggers_only_then_silence_and_the_report_reaches_the_last_boundary() -> None:
    objects, reports = MemoryStore(), Reports()
    with collecting(objects, reports) as collector:
        feed(collector, [*STORY, *transactions(*[{"orders": 1}] * 9)[4:]])
        reports.wait_for(950)  # and no call on the collector meanwhile


def test_F07_an_empty_transaction_waits_only_for_its_elders() -> None:
    gated, reports = GatedStore(MemoryStore()), Reports()
    with collecting(gated, reports) as collector:
        feed(collector, STORY[:1])
        collector.flush()
        with gated.hold("put", suffix=".seg") as gate:
            feed(collector, STORY[1:3])
            gate.wait_held()
            assert reports.seen[-1] == STORY[0].boundary
        reports.wait_for(STORY[2].boundary)


def test_F02_one_partition_whose_upload_hangs_holds_the_report_and_is_named() -> None:
    """Each has uploads of its own; those of a lane hang together."""
    gated, reports = GatedStore(MemoryStore()), Reports()
    with collecting(gated, reports, lanes=0) as collector:
        feed(collector, STORY[:2])
        collector.flush()
        with gated.hold("put", prefix="topics/orders", suffix=".seg") as gate:
            feed(collector, STORY[2:])
            gate.wait_held()
            assert reports.seen[-1] <= STORY[2].boundary
            holders = collector.explain().held_by
            assert {holder.lease.sink[0] for holder in holders} == {"orders"}  # type: ignore[index]
            assert holders[0].owes == STORY[3].boundary
        reports.wait_for(STORY[3].boundary)


def test_F04_a_refused_report_is_repeated_on_the_sources_thread() -> None:
    objects, refusing, seen = MemoryStore(), threading.Event(), []
    refused = threading.Event()

    def on_flushed(boundary: int) -> None:
        if refusing.is_set():
            refused.set()
            raise ConnectionError("the source is away")
        seen.append(boundary)

    with collecting(objects, on_flushed) as collector:
        refusing.set()
        feed(collector, STORY[:1])
        assert refused.wait(PATIENCE_S)
        with pytest.raises(ConnectionError):
            collector.flush()
        refusing.clear()
        collector.heartbeat(0)
        assert seen == [STORY[0].boundary]
    assert values(objects) == expected(STORY[:1])


def test_F09_a_fenced_partition_keeps_its_debt_and_the_next_call_says_so() -> None:
    objects, reports = MemoryStore(), Reports()
    with suppress(OutcomeUnknown):  # the thief left this store records that it cannot store
        with collecting(objects, reports) as collector:
            feed(collector, STORY[:2])
            collector.flush()
            with logstore.open(objects) as thief:
                thief.topic("orders").partition(0).open_writer()
                thief.topic("orders").partition(1).open_writer()
            feed(collector, STORY[2:])
            with pytest.raises(Fenced):
                collector.flush()
            assert reports.seen[-1] < STORY[3].boundary
            assert {holder.lease.sink[0] for holder in collector.explain().held_by} == {"orders"}  # type: ignore[index]
            assert {finding.reason for finding in collector.check()} == {"owner gone"}  # type: ignore[union-attr]
            with pytest.raises(Fenced):
                collector.rewind()  # this writer is gone for good
    with collecting(objects, reports, start=reports.seen[-1]) as collector:
        feed(collector, STORY, after=reports.seen[-1])
        collector.flush()
    assert values(objects) == expected(STORY)
    assert reports.seen[-1] == STORY[3].boundary


def test_F10_close_discards_nothing_and_reports_nothing_new() -> None:
    gated, reports = GatedStore(MemoryStore()), Reports()
    with collecting(gated, reports) as collector:
        feed(collector, STORY[:2])
        collector.flush()
        before = list(reports.seen)
        with gated.hold("put", suffix=".seg") as gate:
            feed(collector, STORY[2:])
            gate.wait_held()
            collector.close()
        with pytest.raises(Closed):
            collector.begin(1_000)
    assert reports.seen == [*before, STORY[2].boundary]  # the empty one, which owed nobody anything


def test_F12_a_fragment_whose_beginning_was_never_seen_raises() -> None:
    with collecting(MemoryStore(), Reports()) as collector:
        with pytest.raises(StraddlingTransaction, match=r"changes of a transaction .* never seen"):
            collector.changes(STORY[0].changes)
        with pytest.raises(StraddlingTransaction, match=r"a commit of a transaction .* never seen"):
            collector.commit(150)
        collector.begin(100)
        with pytest.raises(StraddlingTransaction, match=r"transaction 200 .* begins inside 100"):
            collector.begin(200)


def test_F12_a_position_that_does_not_rise_is_not_taken_for_a_replay() -> None:
    """Two transactions under one position: the second one's records would be skipped as known."""
    objects = MemoryStore()
    with collecting(objects, Reports()) as collector:
        with pytest.raises(StraddlingTransaction, match="not negative"):
            collector.begin(-1)
        feed(collector, STORY[:2])
        with pytest.raises(
            StraddlingTransaction, match=r"transaction 200 .* comes after 200: .* call rewind"
        ):
            feed(collector, STORY[1:])
        feed(collector, STORY, after=collector.rewind())
        collector.flush()
    assert values(objects) == expected(STORY)


def test_F13_heartbeats_count_only_while_nothing_is_owed_or_open() -> None:
    gated, reports = GatedStore(MemoryStore()), Reports()
    with collecting(gated, reports) as collector:
        assert collector.heartbeat(10)
        feed(collector, STORY[:1])
        collector.flush()
        with gated.hold("put", suffix=".seg") as gate:
            feed(collector, STORY[1:2])
            gate.wait_held()
            assert not collector.heartbeat(STORY[1].boundary + 1)
        reports.wait_for(STORY[1].boundary)
        collector.begin(STORY[2].position)
        assert not collector.heartbeat(STORY[1].boundary + 1)
        collector.commit(STORY[2].boundary)
        assert collector.heartbeat(STORY[2].boundary + 7)
    assert reports.seen == [10, *(transaction.boundary for transaction in STORY[:3]), STORY[2].boundary + 7]


def test_F14_only_a_transaction_larger_than_a_chunk_is_ever_appended_in_parts() -> None:
    """Small ones share appends while more are at hand, and each append still ends where a transaction does."""
    objects, appends = MemoryStore(), list[Any]()
    small, large = transactions(*[{"orders": 8}] * 40), transactions({"orders": 60})
    with collecting(objects, Reports(), chunk_bytes=2_000) as collector:
        feed(collector, small[:1])
        for sink in collector._sinks:
            sink.log = Recorded(sink.log, appends)  # type: ignore[assignment]
        feed(collector, small[1:], more=True)
        collector.flush()
        whole = [ends_whole(records) for records in appends]
        assert len(whole) < 39 * 2  # they share
        assert all(whole)
        appends.clear()
        feed(collector, [Transaction(9_000, 9_050, large[0].changes)])
        collector.flush()
        assert [ends_whole(records) for records in appends].count(False) > 0
    assert len(values(objects)["orders"]) == 380


class Recorded:
    """A log that remembers what was submitted to it."""

    def __init__(self, log: Any, appends: list[Any]) -> None:
        self._log, self._appends = log, appends

    def submit(self, records: list[logstore.Record], *, ack: Ack) -> Any:
        self._appends.append(records)
        return self._log.submit(records, ack=ack)


def ends_whole(records: list[logstore.Record]) -> bool:
    return "source-end" in dict(records[-1].headers)


def test_F15_at_the_limit_the_source_waits_and_memory_does_not_grow() -> None:
    """An outage: the uploads hang, the source's thread stands still at the limit, and goes on when they
    return.
    """
    gated, reports = GatedStore(MemoryStore()), Reports()
    (huge,) = transactions({"orders": 2_000}, value_bytes=1_000)
    limit, waited, most = 200_000, threading.Event(), []
    with collecting(
        gated, reports, max_buffered_bytes=limit, chunk_bytes=50_000, on_wait=waited.set
    ) as collector:
        feed(collector, transactions({"orders": 10}))
        collector.flush()
        moved = [type(huge)(t.position + 1_000, t.boundary + 1_000, t.changes) for t in [huge]]
        with gated.hold("put", suffix=".seg") as gate:
            source = threading.Thread(target=feed, args=(collector, moved))
            source.start()
            assert waited.wait(PATIENCE_S)
            most.append(collector.counts.unstored_bytes)
            gate.open()
        source.join(PATIENCE_S)
        assert not source.is_alive()
        collector.flush()
    assert limit // 2 < most[0] <= limit + 2_000  # the record that found it full
    assert len(values(gated)["orders"]) == 2_010
    assert reports.seen[-1] == huge.boundary + 1_000


def test_F15_past_the_trackers_limit_commits_wait_until_debts_are_paid() -> None:
    objects, reports = MemoryStore(), Reports()
    story = transactions(*[{"orders": 2}] * 50)
    with collecting(objects, reports, max_outstanding=3) as collector:
        feed(collector, story, more=True)
        collector.flush()
    assert values(objects) == expected(story)
    assert reports.seen[-1] == story[-1].boundary


def test_F02_lost_answers_refusals_and_a_store_that_is_down_for_a_while_lose_and_double_nothing() -> None:
    faulty, reports = FaultyStore(MemoryStore(), seed=7), Reports()
    story = transactions(*[{"orders": 3, "items": 2}, {"items": 7}] * 20)
    with collecting(faulty, reports, chunk_bytes=500) as collector:
        feed(collector, story[:1])
        collector.flush()
        faulty.random(put=0.3)
        feed(collector, story[1:20])
        rule = faulty.down()
        feed(collector, story[20:30])
        assert reports.seen[-1] < story[29].boundary
        faulty.remove(rule)
        feed(collector, story[30:])
        faulty.heal()
        collector.flush()
    assert values(faulty) == expected(story)
    assert reports.seen[-1] == story[-1].boundary


def test_every_partition_of_a_topic_gets_a_change_that_is_for_all_of_them() -> None:
    objects, reports = MemoryStore(), Reports()

    def to_all(change: bytes) -> list[Routed]:
        return [Routed("orders", None, change, partition=EVERY_PARTITION)]

    with collecting(objects, reports, routing=to_all) as collector:
        collector.begin(1)
        collector.changes([b"truncate"])
        collector.commit(2)
        collector.flush()
    assert {name: [record.value for record in records] for name, records in stored(objects).items()} == {
        ("orders", 0): [b"truncate"],
        ("orders", 1): [b"truncate"],
    }


@pytest.mark.parametrize("partition", [2, -2, True, "0", 1.0])
def test_a_route_to_a_partition_that_does_not_exist_is_refused_and_lands_nowhere_else(partition: Any) -> None:
    """Also one that Python would take for an index: both partitions are open already."""
    objects = MemoryStore()
    with collecting(objects, Reports(), routing=lambda change: [change]) as collector:
        collector.begin(1)
        collector.changes([("t", None, b"0", (), None, 0), ("t", None, b"1", (), None, 1)])
        with pytest.raises(InvalidRecord, match=r"partition .* of topic 't', which has 0 to 1"):
            collector.changes([("t", None, b"astray", (), None, partition)])
        collector.rewind()
    assert stored(objects).get(("t", 0), []) == stored(objects).get(("t", 1), []) == []


@pytest.mark.parametrize("key", ["text", bytearray(b"k"), 7])
def test_a_route_with_a_key_that_is_not_bytes_is_refused(key: Any) -> None:
    with collecting(MemoryStore(), Reports(), routing=lambda change: [change]) as collector:
        collector.begin(1)
        with pytest.raises(InvalidRecord, match="a key is bytes or None"):
            collector.changes([("t", key, b"v")])
        collector.rewind()


def test_F02_a_transaction_that_an_error_kept_a_part_out_of_is_neither_continued_nor_committed() -> None:
    """The source must not forget a change that was routed and never taken in; once replayed, all of it is stored once."""
    objects, reports, broken = MemoryStore(), Reports(), True

    def routing(change: bytes) -> list[tuple[str, bytes, bytes]]:
        if broken and change == b"b":
            raise LookupError("the schema is not there yet")
        return [("t", b"k", change)]

    with collecting(objects, reports, routing=routing) as collector:
        collector.begin(1)
        with pytest.raises(LookupError):
            collector.changes([b"a", b"b", b"c"])
        with pytest.raises(StraddlingTransaction, match="rewind"):
            collector.changes([b"c"])
        with pytest.raises(StraddlingTransaction, match="rewind"):
            collector.commit(2)
        assert collector.rewind() == 0
        broken = False
        collector.begin(1)
        collector.changes([b"a", b"b", b"c"])
        collector.commit(2)
        collector.flush()
    assert reports.seen == [2]
    assert values(objects) == {"t": [b"a", b"b", b"c"]}


def test_a_source_name_that_would_break_the_header_is_refused() -> None:
    with pytest.raises(ValueError, match="without '/'"):
        with collecting(MemoryStore(), Reports(), source="a/b"):
            pass


def test_F09_a_store_that_refuses_the_first_append_leaves_the_debt_and_rewind_recovers() -> None:
    """The topic cannot be opened while the store is down: the error reaches the source, which replays later."""
    faulty, reports = FaultyStore(MemoryStore(), seed=1), Reports()
    with collecting(faulty, reports) as collector:
        rule = faulty.down()
        with pytest.raises(StoreUnavailable):
            feed(collector, STORY[:1])
        faulty.remove(rule)
        feed(collector, STORY, after=collector.rewind())
        collector.flush()
    assert values(faulty) == expected(STORY)
    assert reports.seen[-1] == STORY[-1].boundary
