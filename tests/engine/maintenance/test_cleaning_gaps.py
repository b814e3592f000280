"""B13: the gaps that compaction by key leaves. Readers of every kind pass them, and none is taken for a loss."""

from __future__ import annotations

import pytest

import logstore
from logstore import Record
from logstore.format.stored.segment import parse_segment
from logstore.objects import MemoryStore
from logstore.testing import ManualClock
from logstore.upsert import UpsertView
from tests.support.engine.cleaning import append_all, check_same, clean, history, reread
from tests.support.engine.harness import crash
from tests.support.engine.upkeep import merge_all, open_store

pytestmark = pytest.mark.usefixtures("no_checkpoints")


# Gaps


def test_B13_what_is_compacted_away_is_not_lost_and_what_is_lost_stays_so() -> None:
    objects, clock = MemoryStore(), ManualClock()
    store = open_store(objects, clock)
    log = store.create_topic("t", compact=True).partition(0)
    for n in range(3):
        log.append(Record(b"%d" % n, key=b"a"))
    log.append(Record(b"seen, and gone with the crash", key=b"a"), ack="buffered")
    crash(store)
    with open_store(objects, clock) as store:
        log = store.topic("t").partition(0)
        for n in range(3):
            log.append(Record(b"%d" % n, key=b"a"))
        lost = log.lost_ranges()
        assert len(lost) == 1
        assert clean(log, clock).records == 4
        log._internal.maintenance.compact(clock.now_ms(), b"0" * 16)
    with open_store(objects, clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert log.lost_ranges() == lost
        assert log.read(0, 1 << 20).lost == tuple(lost)
        assert len(list(log.records())) == 2


def test_B13_reads_inside_a_gap_go_on_with_the_next_record() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, segment_bytes=3000).partition(0)
        stored = append_all(log, history(3, 80))
        clean(log, clock)
        merge_all(log, clock)
    left = reread(objects, clock)
    check_same(stored, left)
    with open_store(objects, clock, writer="read_only", cache_bytes=0) as store:
        log = store.topic("t").partition(0)
        for offset in range(len(stored)):
            behind = [record for record in left if (record.offset or 0) >= offset]
            assert list(log.records(offset)) == behind
            result = log.read(offset, 1)
            assert offset < result.next_offset <= len(stored)
            stamp = stored[offset].timestamp_ms
            assert stamp is not None
            later = [record.offset for record in left if (record.timestamp_ms or 0) >= stamp]
            assert log.offset_for_timestamp(stamp) == (later[0] if later else None)


def test_B13_columns_of_a_compacted_topic() -> None:
    pytest.importorskip("pyarrow")
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        topic = store.create_topic("t", compact=True, segment_bytes=5000)
        append_all(topic.partition(0), history(5, 60))
        clean(topic.partition(0), clock)
    left = reread(objects, clock)
    with open_store(objects, clock, writer="read_only") as store:
        topic = store.topic("t")
        table = topic.to_arrow()
        assert table.column("offset").to_pylist() == [record.offset for record in left]
        assert table.column("key").to_pylist() == [record.key for record in left]
        assert table.column("value").to_pylist() == [record.value for record in left]
        pairs = [
            [(pair["key"], pair["value"]) for pair in row or ()]
            for row in table.column("headers").to_pylist()
        ]
        assert pairs == [list(record.headers) for record in left]
        for columns in (["offset"], ["timestamp", "offset"], ["partition"]):
            assert topic.to_arrow(columns=columns).num_rows == len(left)
        start, stop = left[3].offset or 0, (left[-3].offset or 0) - 1
        offsets = topic.to_arrow(columns=["offset"], start=start, stop=stop).column("offset").to_pylist()
        assert offsets == [record.offset for record in left if start <= (record.offset or 0) < stop]


def test_B13_merging_keeps_the_gaps_as_they_are() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, segment_bytes=1200).partition(0)
        stored = append_all(log, history(6, 60))
        clean(log, clock)
        left = reread(objects, clock)
        store.alter_topic("t", segment_bytes=1 << 20)
        assert merge_all(log, clock)
        assert reread(objects, clock) == left
        stored += append_all(log, history(8, 20))
        clean(log, clock)
        check_same(stored, reread(objects, clock))


def test_B13_a_damaged_index_of_a_sparse_segment_is_rebuilt() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True).partition(0)
        append_all(log, history(9, 30))
        clean(log, clock)
        left = reread(objects, clock)
        key = log._internal._chain.load().segments.ref(0).key
    data = bytearray(objects.get(key))
    summary, index = parse_segment(bytes(data))
    data[summary.index_position + 3] ^= 1
    rebuilt, rows = parse_segment(bytes(data))
    assert (rebuilt.records, rows.tolist()) == (summary.records, index.tolist())
    objects.put(key, bytes(data))
    assert reread(objects, clock) == left
    data[int(index["position"][0]) + 70] ^= 1
    objects.put(key, bytes(data))
    with pytest.raises(logstore.CorruptData, match="checksum"):
        reread(objects, clock)


def test_B13_an_upsert_view_is_restored_from_what_is_left() -> None:
    """A change tells the old value as well, and the record that told it first may be gone."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True).partition(0)
        view = UpsertView(log, "one")
        for time in range(12):
            view.apply(b"k%d" % (time % 3), b"%d" % time, order=time, time=time)
            view.apply(b"gone", None if time == 7 else b"%d" % time, order=time, time=time)
            view.advance(time + 1)
        told = dict(view.items())
        assert clean(log, clock).records > 8
    with open_store(objects, clock) as store:
        again = UpsertView(store.topic("t").partition(0), "two")
        again.refresh()
        assert (dict(again.items()), len(again), again.frontier) == (told, len(told), 12)
        again.apply(b"k0", b"new", order=1, time=12)
        again.advance(13)
        assert again.get(b"k0") == b"new"
