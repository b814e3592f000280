"""B13: compaction by key. What is folded from the log is the same before and after, and no offset changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from logstore import Record
from logstore.engine.maintenance import offset_map, thinner
from logstore.errors import KeyRequired
from logstore.format.batches import thinning
from logstore.format.batches.area import Area
from logstore.format.batches.batch import BatchInfo, record_area, split
from logstore.format.batches.codecs import CODEC_NAMES
from logstore.format.stored.segment import SegmentFlags, parse_segment
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, ManualClock
from tests.support.engine.cleaning import append_all, check_same, clean, fold, history, reread
from tests.support.engine.upkeep import merge_all, open_store

pytestmark = pytest.mark.usefixtures("no_checkpoints", "lane_or_chain")

DAY_S = 24 * 3600.0


def record(value: bytes | None, key: bytes) -> Record:
    return Record(value, key=key, timestamp_ms=1)


# What is kept


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_B13_the_last_value_of_each_key_survives_at_its_offset(codec: str) -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock, compression=codec) as store:
        log = store.create_topic("t", compact=True, segment_bytes=6000).partition(0)
        stored = append_all(log, history(1, 60))
        done = clean(log, clock)
        left = reread(objects, clock)
        check_same(stored, left)
        assert done.records == len(stored) - len(left) > len(stored) // 2
        assert done.bytes_after < done.bytes_before
        assert log.low_watermark == 0
        assert log.durable_high_watermark == len(stored)
        assert clean(log, clock).objects == 0, "there is nothing left to do"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_B13_any_history_folds_to_the_same_table(data: st.DataObject) -> None:
    objects, clock = MemoryStore(), ManualClock()
    key = st.binary(max_size=18)
    some = st.lists(st.tuples(key, st.none() | st.binary(max_size=40)), min_size=1, max_size=5)
    stored: list[Record] = []
    with open_store(objects, clock, compression=data.draw(st.sampled_from(CODEC_NAMES))) as store:
        topic = store.create_topic(
            "t", compact=True, segment_bytes=data.draw(st.sampled_from([300, 2000, 1 << 20]))
        )
        log = topic.partition(0)
        for _ in range(data.draw(st.integers(1, 4))):
            appends = [
                [Record(value, key=name, timestamp_ms=1) for name, value in records]
                for records in data.draw(st.lists(some, min_size=1, max_size=6))
            ]
            stored += append_all(log, appends)
            if data.draw(st.booleans()):
                merge_all(log, clock)
            clean(log, clock)
            clock.advance(data.draw(st.sampled_from([1.0, DAY_S + 1])))
            check_same(stored, reread(objects, clock))


def test_B13_keys_are_told_apart_to_their_last_byte() -> None:
    objects, clock = MemoryStore(), ManualClock()
    keys = [
        b"",
        b"\0",
        b"\0\0",
        b"a" * 7,
        b"a" * 8,
        b"a" * 9,
        b"a" * 8 + b"\0",
        b"b" * 300,
        b"b" * 299 + b"c",
    ]
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True).partition(0)
        stored = append_all(log, [[Record(b"1", key=key, timestamp_ms=1)] for key in (*keys, *keys, b"end")])
        clean(log, clock)
        left = reread(objects, clock)
        assert [record.key for record in left] == [*keys, b"end"]
        check_same(stored, left)


def test_B13_batches_that_lose_records_stay_what_kafka_knows() -> None:
    """Base offset, last offset delta, producer, epoch and sequence as before, and a checksum that holds."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock, writer="shared") as store:
        log = store.create_topic("t", compact=True).partition(0)
        producer = logstore.writers.Producer(log, producer_id=7, epoch=3)
        producer.append(
            [Record(b"old", key=b"a"), Record(b"kept", key=b"b"), Record(b"old", key=b"c")], sequence=0
        )
        producer.append([Record(b"new", key=b"a"), Record(b"new", key=b"c")], sequence=3)
        log.append(Record(b"end", key=b"end"))
        clean(log, clock)
        (segment, *_) = log._internal._chain.load().segments.all()
        summary, index = parse_segment(objects.get(segment.key), strict=True)
        assert SegmentFlags.SPARSE in summary.header.flags
        assert summary.records == 3
        data = objects.get(segment.key)
        first = split(data[int(index["position"][0]) : summary.index_position])[0]
        assert (first.base_offset, first.last_offset, first.count) == (0, 2, 1)
        assert (first.producer_id, first.producer_epoch, first.base_sequence) == (7, 3, 0)
        assert [(r.offset, r.value) for r in reread(objects, clock)] == [
            (1, b"kept"),
            (3, b"new"),
            (4, b"new"),
            (5, b"end"),
        ]


def test_B13_a_producers_last_number_is_known_when_all_its_records_are_gone() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock, writer="shared") as store:
        log = store.create_topic("t", compact=True).partition(0)
        producer = logstore.writers.Producer(log, producer_id=7, epoch=0)
        for sequence in range(4):
            producer.append(Record(b"%d" % sequence, key=b"a"), sequence=sequence)
        for n in range(3):
            log.append(Record(b"%d" % n, key=b"a"))
        assert clean(log, clock).records == 5
    with open_store(objects, clock, writer="shared") as store:
        log = store.topic("t").partition(0)
        again = logstore.writers.Producer(log, producer_id=7, epoch=0)
        assert again.append(Record(b"3", key=b"a"), sequence=3).offset == 3, "it is stored already"
        assert [record.offset for record in log.records()] == [5, 6]


# Tombstones


def test_B13_tombstones_stay_for_their_time() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, tombstone_seconds=3600).partition(0)
        for record in (
            Record(b"1", key=b"a"),
            Record(None, key=b"a"),
            Record(b"1", key=b"b"),
            Record(b"x", key=b"x"),
        ):
            log.append(record)
        clean(log, clock)
        assert [(r.offset, r.value) for r in reread(objects, clock)] == [(1, None), (2, b"1"), (3, b"x")]
        clock.advance(3599)
        clean(log, clock)
        assert [r.offset for r in reread(objects, clock)] == [1, 2, 3]
        clock.advance(2)
        clean(log, clock)
        assert [r.offset for r in reread(objects, clock)] == [2, 3]
        assert log.lost_ranges() == []


def test_B13_a_tombstones_time_begins_when_a_pass_has_ended_and_not_with_its_timestamp() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, tombstone_seconds=3600).partition(0)
        log.append(Record(b"1", key=b"a", timestamp_ms=1))
        log.append(Record(None, key=b"a", timestamp_ms=1))
        log.append(Record(b"x", key=b"x"))
        clock.advance(10 * DAY_S)
        clean(log, clock)
        assert [r.offset for r in reread(objects, clock)] == [1, 2], "a reader in the middle must meet it"


def test_B13_a_lost_manifest_brings_nothing_back() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, tombstone_seconds=0, segment_bytes=600).partition(0)
        stored = append_all(log, history(4, 40))
        for _ in range(2):
            clean(log, clock)
            clock.advance(1)
        manifest = log._internal.paths.manifest
    objects.put(manifest, b"?" + objects.get(manifest)[1:])
    assert fold(reread(objects, clock)) == fold(stored)


# What is left alone


def test_B13_the_newest_segment_and_young_records_are_left_alone() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, compact_after_seconds=60).partition(0)
        for n in range(4):
            log.append(Record(b"%d" % n, key=b"a"))
        assert clean(log, clock).records == 0
        clock.advance(61)
        log.append(Record(b"4", key=b"a"))
        log.append(Record(b"5", key=b"a"))
        assert clean(log, clock).records == 3
        assert [r.offset for r in reread(objects, clock)] == [3, 4, 5]


def test_B13_it_begins_when_enough_is_new_or_a_record_waits_too_long() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, dirty_ratio=0.5).partition(0)
        internal = log._internal

        def in_the_background() -> int:
            internal.maintenance.split(internal._chain.load(), clock.now_ms())
            return internal.maintenance._cleaning.clean(internal._chain.load(), clock.now_ms())[1].passes

        append_all(log, [[Record(b"%d" % n * 100, key=b"%d" % n)] for n in range(20)])
        assert in_the_background() == 1
        append_all(log, [[Record(b"new", key=b"%d" % n)] for n in range(3)])
        assert in_the_background() == 0
        store.alter_topic("t", compact_within_seconds=600)
        assert in_the_background() == 0
        clock.advance(601)
        assert in_the_background() == 1


def test_B13_the_background_compacts_by_itself() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, segment_bytes=2000).partition(0)
        stored = append_all(log, history(7, 80))
        checkpointer = log._internal._checkpointer
        assert checkpointer is not None
        checkpointer._maintain(checkpointer.write())
        left = list(log.records())
        check_same(stored, left)
        assert len(left) < len(stored) // 2


def test_B13_a_batch_that_stays_or_goes_whole_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is learned. One that loses some of its records is looked into again, and so is all that a pass before has
    left, whose keys it does not know."""
    decoded: list[int] = []

    def counting(raw: Any, info: BatchInfo) -> Area:
        decoded.append(info.base_offset)
        return record_area(raw, info)

    monkeypatch.setattr(thinner, "record_area", counting)
    monkeypatch.setattr(thinning, "record_area", counting)
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True).partition(0)

        appends = [[record(b"%d" % turn, b"%d" % n) for n in range(10)] for turn in range(5)]
        appends.append([record(b"6", b"0"), record(b"6", b"only here")])
        stored = append_all(log, [*appends, [record(b"end", b"end")]])
        clean(log, clock)
        check_same(stored, reread(objects, clock))
        assert sorted(decoded) == [0, 10, 20, 30, 40, 40, 50], "of the batch at 40 one record goes"
        decoded.clear()
        stored += append_all(log, [[record(b"7", b"0")], [record(b"end", b"end")]])
        clean(log, clock)
        check_same(stored, reread(objects, clock))
        assert sorted(decoded) == [40, 50, 52, 53]


def test_B13_a_record_without_a_key_is_refused() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        topic = store.create_topic("t", compact=True)
        plain = store.create_topic("plain")
        log = topic.partition(0)
        plain.append(b"fine")
        raw = plain.partition(0).read(0).raw
        for refused in (
            lambda: topic.append(b"no key"),
            lambda: log.append([Record(b"1", key=b"a"), Record(b"2")]),
            lambda: log.append_batches(raw),
            lambda: topic.append_many([Record(b"1", key=b"a"), Record(b"2")]),
        ):
            with pytest.raises(KeyRequired, match="without a key"):
                refused()
        assert log.durable_high_watermark == 0
        store.alter_topic("t", compact=False)
        topic.append(b"no key")
        peer = store.create_topic("fed", compact=True).partition(0).replicated("w")
        with pytest.raises(KeyRequired, match="without a key"):
            peer.compare_and_append([Record(b"1")], 0, 1)


def test_B13_what_was_written_without_a_key_before_stays() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock, lanes=0) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"no key")
        store.alter_topic("t", compact=True)
        for n in range(3):
            log.append(Record(b"%d" % n, key=b"a"))
        clean(log, clock)
        assert [record.value for record in reread(objects, clock)] == [b"no key", b"1", b"2"]


# Bounded memory


def test_B13_what_does_not_fit_the_map_takes_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_map, "KEYS_MAX", 5)
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, segment_bytes=2000).partition(0)
        stored = append_all(log, history(2, 60, keys=40))
        done = clean(log, clock)
        assert done.passes > 3
        left = reread(objects, clock)
        check_same(stored, left)
        assert len({record.key for record in left[:-6]}) == len(left[:-6]), "of each key the last one"


def test_B13_what_lies_in_lanes_is_compacted_once_it_is_split() -> None:
    """Up to the log's last batch, though all of it be one object; also in a topic that is compacted only since its writer
    was opened."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock, writer="exclusive") as store:
        log = store.create_topic("t").partition(0)
        log.open_writer()
        store.alter_topic("t", compact=True)
        stored = append_all(log, history(13, 40))
        internal = log._internal
        in_the_background = internal.maintenance._cleaning
        assert in_the_background.clean(internal._chain.load(), clock.now_ms())[1].records == 0
        assert clean(log, clock).records > 0
        left = reread(objects, clock)
        check_same(stored, left)
        assert left[-1] == stored[-1]
        assert clean(log, clock).objects == 0, "there is nothing left to do"
        stored += append_all(log, [*history(14, 3), [record(b"end", b"end")]])
        clean(log, clock)
        check_same(stored, list(log.records()))
    left = reread(objects, clock)
    check_same(stored, left)
    kept = [record.key for record in left if record.value is not None][:-1]
    assert len(set(kept)) == len(kept)


def test_B13_where_the_log_ends_a_record_stays_though_its_time_is_over() -> None:
    """A tombstone as the last record: who reads there meets it, and when more has come it goes."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, tombstone_seconds=60).partition(0)
        stored = append_all(log, [[record(b"1", b"a")], [record(b"1", b"b")], [record(None, b"a")]])
        for _ in range(3):
            clean(log, clock)
            clock.advance(61)
        assert [record.offset for record in reread(objects, clock)] == [0, 1, 2]
        stored += append_all(log, [[record(b"2", b"b")]])
        for _ in range(3):
            clean(log, clock)
            clock.advance(61)
        left = reread(objects, clock)
        check_same(stored, left)
        assert [record.offset for record in left] == [1, 3]
        stored += append_all(log, [[record(b"3", b"b")]])
        clean(log, clock)
        assert [record.offset for record in reread(objects, clock)] == [3, 4]


def test_B13_a_pass_reads_each_object_a_few_times_and_writes_it_once() -> None:
    objects, clock = FaultyStore(MemoryStore()), ManualClock()
    with open_store(objects, clock, cache_bytes=0) as store:
        log = store.create_topic("t", compact=True, segment_bytes=2000).partition(0)
        append_all(log, history(15, 100))
        log._internal.maintenance.split(log._internal._chain.load(), clock.now_ms())
        rows, before = len(log.segments()), len(objects.calls)
        done = clean(log, clock)
        calls = objects.calls[before:]
        puts = [call.key for call in calls if call.operation == "put"]
        assert sum("/merged/" in key for key in puts) == done.objects
        assert sum("manifest" in key for key in puts) == done.objects + 1
        gets = [call.key for call in calls if call.operation == "get" and call.key.endswith(".seg")]
        assert len(gets) <= 3 * rows + 4 * done.objects
