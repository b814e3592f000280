"""A writer that never rests: it is ahead of every look at the store, and all it has stored is in its memory a moment ago."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

import logstore
from logstore.engine.chain.segment_reader import WHOLE_BYTES
from logstore.engine.chain.segment_table import SegmentRef, Segments
from logstore.engine.maintenance import checkpoint
from logstore.objects import MemoryStore
from logstore.objects.wrappers.wrapped import WrappedStore
from logstore.testing import FaultyStore
from tests.support.engine.harness import open_store, pairs

T = TypeVar("T")


@pytest.mark.parametrize("writer", ["exclusive", "shared"])
def test_L14_following_durable_acks_costs_the_store_no_request(writer: str) -> None:
    """What was stored here a moment ago is read from memory, whoever follows the log: before, each commit cost a GET."""
    store_of = FaultyStore(MemoryStore())
    with open_store(store_of, writer=writer) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"first")
        tail = log.tail(start=1, visibility="durable")
        for number in range(1, 20):
            log.append(b"%d" % number)
            store_of.forget_calls()
            record = next(tail)
            assert (record.offset, record.value) == (number, b"%d" % number)
            assert [call.key for call in store_of.calls if call.key.endswith(".seg")] == []


class AlwaysOneMore(WrappedStore):
    """Before each look at a segment there is another one behind it, up to a hundred."""

    def __init__(self, inner: MemoryStore, log: logstore.PartitionLog) -> None:
        super().__init__(inner)
        self.commits = 0
        self._log = log

    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        if operation == "get" and key.endswith(".seg") and self.commits < 100:
            self.commits += 1
            self._log.append(b"%d" % self.commits)
        return call()


def test_L14_a_follower_of_writers_that_are_as_fast_as_it_reads_gets_records_before_the_end() -> None:
    """At S3's latency a segment comes in the time that it takes to read one: a tail in another process got nothing for eight
    seconds, because the chain's end was looked for first."""
    objects = MemoryStore()
    with open_store(objects, writer="shared") as store:
        log = store.create_topic("t").partition(0)
        log.append(b"0")
        busy = AlwaysOneMore(objects, log)
        with open_store(busy, writer="read_only") as other:
            tail = other.topic("t").partition(0).tail(start=1)
            for number in range(1, 40):
                record = next(tail)
                assert (record.offset, record.value) == (number, b"%d" % number)
                assert busy.commits < number + 20


def test_L08_what_is_kept_of_single_records_stays_within_the_cache() -> None:
    """A small piece is charged for the objects round it too, which take more memory than its bytes."""
    with open_store(MemoryStore(), cache_bytes=100_000) as store:
        log = store.create_topic("t").partition(0)
        for number in range(300):
            log.append(b"%d" % number)
        cache = log._internal._runtime.cache
        assert cache.used <= 100_000
        assert len(cache._pieces) < 100
        assert pairs(log) == [(number, b"%d" % number) for number in range(300)]


def test_L30_a_large_segment_is_not_kept() -> None:
    with open_store(MemoryStore(), compression="none", max_batch_bytes=2 * WHOLE_BYTES) as store:
        log = store.create_topic("t").partition(0)
        log.append(bytes(WHOLE_BYTES))
        assert log._internal._runtime.cache.used == 0


def merged_store(monkeypatch: pytest.MonkeyPatch, store: logstore.Store) -> logstore.PartitionLog:
    monkeypatch.setattr(checkpoint, "EVERY_SEGMENTS", 1 << 30)
    log = store.create_topic("t").partition(0)
    for number in range(20):
        log.append(b"%d" % number)
    return log


def test_L23_a_view_of_the_store_that_is_behind_the_writer_is_taken_in_up_to_where_it_reaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At S3's latency the writer has always committed more by the time the store has answered. Its rows grew for ever, and
    named objects that were deleted by then."""
    with open_store(MemoryStore()) as store:
        log = merged_store(monkeypatch, store)
        assert log._internal.maintenance.compact(0, b"m" * 16) > 10
        view = log._internal._chain.load()
        log.append(b"20")
        log.append(b"21")
        state = log._internal.state
        state.replace_view(view)
        assert len(state.segments) <= 5
        assert (state.tail.next_seq, state.durable) == (view.tail.next_seq + 2, 22)
        assert pairs(log) == [(number, b"%d" % number) for number in range(22)]


def test_L23_an_old_view_does_not_bring_back_what_was_merged_across_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_store(MemoryStore()) as store:
        log = merged_store(monkeypatch, store)
        old = log._internal._chain.load()
        for number in range(20, 40):
            log.append(b"%d" % number)
        assert log._internal.maintenance.compact(0, b"m" * 16) > 30
        state = log._internal.state
        state.replace_view(log._internal._chain.load())
        rows = len(state.segments)
        state.replace_view(old)
        assert len(state.segments) == rows < 10
        assert pairs(log) == [(number, b"%d" % number) for number in range(40)]


@pytest.mark.usefixtures("own_chain")
def test_L22_a_checkpoint_and_a_merge_beside_the_writer_ask_for_nothing_that_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it merges it has stored a moment ago, and where the chain ends it knows best. At S3's latency each request is a
    commit's time, and the partitions of a store take turns at this."""
    store_of = FaultyStore(MemoryStore())
    with open_store(store_of) as store:
        log = merged_store(monkeypatch, store)
        store_of.forget_calls()
        assert log._internal._checkpointer is not None
        log._internal._checkpointer.run()
        assert len(log._internal.state.segments) <= 3
        asked = [call for call in store_of.calls if call.operation in ("get", "head", "list")]
        # The first manifest of all is made from what the store lists: an earlier one may have been lost.
        assert len([call for call in asked if call.operation == "list"]) == 2
        # The footer of the newest that is merged. A partition that was removed has another manifest: no look is needed.
        assert len([call for call in asked if call.key.endswith(".seg")]) == 1
        assert len(store_of.calls) <= 12


def test_L13_a_scan_at_the_end_of_a_busy_log_does_not_meet_half_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit adds to the segments' columns one after the other. Whoever looks ahead in between, without the lock, finds
    one longer than the next; a read then raised what no caller could understand."""
    with open_store(MemoryStore()) as store:
        log = merged_store(monkeypatch, store)
        state, look_ahead, guarded = log._internal.state, Segments.behind, []

        def behind(segments: Segments, ref: SegmentRef, count: int) -> list[SegmentRef]:
            guarded.append(state._lock.locked())
            return look_ahead(segments, ref, count)

        monkeypatch.setattr(Segments, "behind", behind)
        assert pairs(log) == [(number, b"%d" % number) for number in range(20)]
        assert guarded
        assert all(guarded)
