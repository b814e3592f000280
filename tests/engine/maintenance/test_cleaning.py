"""B13: compaction by key. What is folded from the log is the same before and after, and no offset changes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from logstore import Record
from logstore.engine.maintenance import offset_map, thinner
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import KeyRequired
from logstore.format.batches.batch import split
from logstore.format.batches.codecs import CODEC_NAMES
from logstore.format.batches.thinning import locate
from logstore.format.stored.segment import SegmentFlags, parse_segment
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, ManualClock
from logstore.upsert import UpsertView
from tests.support.engine.dying import DiesAt, OvertakenAt
from tests.support.engine.harness import crash
from tests.support.engine.upkeep import GRACE_S, merge_all, open_store

pytestmark = pytest.mark.usefixtures("no_checkpoints")

DAY_S = 24 * 3600.0


def fold(records: Iterable[Record]) -> dict[bytes, bytes]:
    table: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


def history(seed: int, appends: int, keys: int = 12, tombstones: float = 0.2) -> list[list[Record]]:
    """Appends of a few records each, some of them with headers."""
    rng = random.Random(seed)
    return [
        [
            Record(
                None if rng.random() < tombstones else b"%d-%d " % (turn, n) * rng.randint(1, 30),
                key=b"key-%d" % rng.randrange(keys),
                headers=(("turn", b"%d" % turn),) if rng.random() < 0.2 else (),
                timestamp_ms=1_000 + turn * 10 + n,
            )
            for n in range(rng.randint(1, 6))
        ]
        for turn in range(appends)
    ]


def append_all(log: PartitionLog, appends: Sequence[Sequence[Record]]) -> list[Record]:
    """Each append is a segment of its own. Returns the records as they are in the log."""
    stored: list[Record] = []
    for records in appends:
        receipt = log.append(records)
        stored += [
            record._replace(offset=offset)
            for offset, record in zip(count(receipt.offset), records, strict=False)
        ]
    return stored


def clean(log: PartitionLog, clock: ManualClock) -> Any:
    return log._internal.maintenance.clean(clock.now_ms())


def reread(objects: Any, clock: ManualClock) -> list[Record]:
    """As a process reads it that has just come."""
    with open_store(objects, clock, writer="read_only") as store:
        return list(store.topic("t").partition(0).records())


def check_same(before: list[Record], after: list[Record]) -> None:
    """The same table, and every record that is left is what it was, where it was."""
    by_offset = {record.offset: record for record in before}
    offsets = [record.offset or 0 for record in after]
    assert offsets == sorted(set(offsets))
    assert all(by_offset[record.offset] == record for record in after)
    assert fold(after) == fold(before)


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

    def counting(batches: Any) -> Any:
        decoded.extend(info.base_offset for _, info in batches)
        return locate(batches)

    monkeypatch.setattr(thinner, "locate", counting)
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True).partition(0)

        def record(value: bytes, key: bytes) -> Record:
            return Record(value, key=key, timestamp_ms=1)

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


# Interrupted, overtaken, read meanwhile


def _prepared() -> tuple[MemoryStore, ManualClock, list[Record]]:
    """A log that was compacted once, whose tombstones are due, and which went on since."""
    made, at_s, stored = _prepared_once()
    objects, clock = MemoryStore(), ManualClock()
    for info in made.list(""):
        objects.put(info.key, made.get(info.key))
    clock.advance(at_s)
    return objects, clock, list(stored)


@cache
def _prepared_once() -> tuple[MemoryStore, float, list[Record]]:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", compact=True, segment_bytes=700, tombstone_seconds=10).partition(0)
        stored = append_all(log, history(11, 9, keys=5))
        clean(log, clock)
        clock.advance(11)
        stored += append_all(log, history(12, 7, keys=5))
    return objects, 11.0, stored


@pytest.mark.parametrize("after", [False, True])
def test_B13_killed_at_every_step(after: bool) -> None:
    for request in count():
        objects, clock, stored = _prepared()
        lifeline = DiesAt(objects)
        with open_store(lifeline, clock, writer="read_only") as store:
            log = store.topic("t").partition(0)
            log._internal.state  # noqa: B018
            lifeline.die_at(request, after=after)
            try:
                clean(log, clock)
            except logstore.LogStoreError:
                assert lifeline.died
            died = lifeline.died
            lifeline.die_at(-1, after=False)
        check_same(stored, reread(objects, clock))
        with open_store(objects, clock) as store:
            log = store.topic("t").partition(0)
            clean(log, clock)
            clock.advance(GRACE_S + 1)
            store.collect_garbage()
            left = reread(objects, clock)
            check_same(stored, left)
            assert log.append(Record(b"more", key=b"more")).offset == len(stored)
        assert sum(record.value is None for record in left) < 6
        if not died:
            assert request > 20
            return


def _meanwhile(act: str, other: PartitionLog, clock: ManualClock, stored: list[Record]) -> None:
    if act == "clean":
        clean(other, clock)
    elif act == "merge":
        merge_all(other, clock)
    elif act == "append":
        stored += append_all(other, history(20, 3))
        checkpointer = other._internal._checkpointer
        assert checkpointer is not None
        checkpointer.write()
    else:
        other.delete_before(5)


@pytest.mark.parametrize(
    "act",
    ["clean", "append", *(pytest.param(rare, marks=pytest.mark.soak) for rare in ("merge", "expire"))],
)
def test_B13_overtaken_at_every_step(act: str) -> None:
    for request in count():
        objects, clock, stored = _prepared()
        overtaken = OvertakenAt(objects)
        with (
            open_store(objects, clock) as other_store,
            open_store(overtaken, clock, writer="read_only") as store,
        ):
            other, log = other_store.topic("t").partition(0), store.topic("t").partition(0)

            overtaken.overtake_at(request, partial(_meanwhile, act, other, clock, stored))
            clean(log, clock)
            if not overtaken.overtaken:
                assert request > 20
                return
            low = 5 if act == "expire" else 0
            expected = [record for record in stored if (record.offset or 0) >= low]
            left = reread(objects, clock)
            if act != "expire":
                check_same(expected, left)
            clock.advance(11)
            clean(other, clock)
            clock.advance(GRACE_S + 1)
            other_store.collect_garbage()
            left = reread(objects, clock)
            assert fold(left) == fold(stored) or act == "expire"
            assert {record.offset for record in left} <= {record.offset for record in expected}


def test_B13_a_reader_in_the_middle_goes_on() -> None:
    """It holds references to segments that are rewritten, and then deleted, while it reads."""
    objects, clock, stored = _prepared()
    with open_store(objects, clock, writer="read_only", cache_bytes=0) as reader:
        log = reader.topic("t").partition(0)
        records: Iterator[Record] = log.records()
        seen = [next(records) for _ in range(4)]
        with open_store(objects, clock) as store:
            clean(store.topic("t").partition(0), clock)
            clock.advance(GRACE_S + 1)
            store.collect_garbage()
        seen += records
        check_same(stored, seen)


@pytest.mark.parametrize("writer", ["shared", "exclusive"])
def test_B13_beside_writers_that_go_on(writer: str) -> None:
    objects, clock = MemoryStore(), ManualClock()
    stored: list[Record] = []
    with (
        open_store(objects, clock, writer=writer) as store,
        open_store(objects, clock, writer="read_only") as other,
    ):
        store.create_topic("t", compact=True, segment_bytes=1500, tombstone_seconds=5)
        log, elsewhere = store.topic("t").partition(0), other.topic("t").partition(0)
        for turn in range(12):
            stored += append_all(log, history(turn, 6, keys=5))
            clean(elsewhere, clock)
            clock.advance(2)
            check_same(stored, list(log.records()))
        clock.advance(GRACE_S + 1)
        store.collect_garbage()
        check_same(stored, list(log.records()))


def test_B13_what_lies_in_lanes_is_compacted_once_it_is_split() -> None:
    """As a topic has it that is compacted only since its writer was opened."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        log.open_writer()
        store.alter_topic("t", compact=True)
        stored = append_all(log, history(13, 40))
        check_same(stored, list(log.records()))
        assert clean(log, clock).records == 0
        internal = log._internal
        internal.maintenance.split(internal._chain.load(), clock.now_ms())
        stored += append_all(log, history(14, 3))
        clean(log, clock)
        check_same(stored, list(log.records()))
    left = reread(objects, clock)
    check_same(stored, left)


def test_B13_a_pass_reads_each_object_a_few_times_and_writes_it_once() -> None:
    objects, clock = FaultyStore(MemoryStore()), ManualClock()
    with open_store(objects, clock, cache_bytes=0) as store:
        log = store.create_topic("t", compact=True, segment_bytes=2000).partition(0)
        append_all(log, history(15, 100))
        rows = len(log.segments())
        objects.calls.clear()
        done = clean(log, clock)
        puts = [call.key for call in objects.calls if call.operation == "put"]
        assert sum("/merged/" in key for key in puts) == done.objects
        assert sum("manifest" in key for key in puts) == done.objects + 1
        gets = [call.key for call in objects.calls if call.operation == "get" and call.key.endswith(".seg")]
        assert len(gets) <= 3 * rows + 4 * done.objects


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
