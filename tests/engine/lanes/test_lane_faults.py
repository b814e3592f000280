"""A lane beside others that slept, answered late or lied: what was acked is stored once, and the rest is said."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import logstore
from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.write.lanes import entry_maker, lane_checkpoints, lane_queue
from logstore.engine.write.lanes.lane import Lane
from logstore.errors import CorruptData, Fenced, UnsupportedStore
from logstore.format.stored.entry import ClaimKey, Entry, EntryHeader, EntryKind, build_entry
from logstore.format.stored.lane_checkpoint import LaneCheckpoint
from logstore.layout.paths import LanePaths
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background, crash, open_store, pairs, parts_in_lanes, running, until
from tests.support.lanes.entries import seen, store_lane
from tests.support.patience import PATIENCE_S


def lane_of(store: logstore.Store) -> Lane:
    lane = store._lanes.of(store.topic("t").partition(0)._internal.paths)
    assert lane is not None
    return lane


def log_of(objects: ObjectStore, store: logstore.Store) -> LaneLog:
    return LaneLog(objects, LanePaths(lane_of(store).name))


def fence(log: LaneLog, seq: int) -> None:
    header = EntryHeader(EntryKind.FENCE, seq, b"f" * 16, bytes(16), 0)
    log.commit(header, build_entry(header, [])[0])


def test_N04_a_fence_in_its_lane_stops_all_writers_of_a_process() -> None:
    objects = MemoryStore()
    store = open_store(objects, lanes=1)
    topic = store.create_topic("t", 2)
    for number in range(2):
        topic.partition(number).append(b"a")
    fence(log_of(objects, store), 2)
    for number in range(2):
        with pytest.raises(Fenced, match="fenced the lane"):
            topic.partition(number).append(b"no")
    with running(objects, lanes=1) as again:
        assert again.topic("t").partition(1).append(b"b").offset == 1
    assert seen(objects, 1) == [(0, b"a"), (1, b"b")]
    crash(store)


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.REFUSE, Fault.LOSE_ANSWER])
def test_N02_an_upload_that_fails_is_tried_again_with_the_same_bytes(fault: Fault) -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(faulty, lanes=1, probe_interval=0.001) as store:
        topic = store.create_topic("t", 2)
        for number in range(2):
            topic.partition(number).append(b"a")
        faulty.fail("put", prefix="lanes/", times=3, with_=fault)
        waiting = [topic.partition(number).submit(b"b") for number in range(2)]
        assert [future.result(PATIENCE_S).offset for future in waiting] == [1, 1]
    for number in range(2):
        assert seen(objects, number) == [(0, b"a"), (1, b"b")]


def test_N03_a_seal_that_cannot_be_read_at_once_still_stops_its_partition() -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    store = open_store(faulty, lanes=1, probe_interval=0.001)
    topic = store.create_topic("t", 2)
    for number in range(2):
        topic.partition(number).append(b"a")
    with running(objects, lanes=1) as other:
        assert other.topic("t").partition(0).append(b"taken").offset == 1
        faulty.fail("get", prefix="lanes/", times=6)
        assert topic.partition(1).append(b"b").offset == 1
        with pytest.raises(Fenced):
            topic.partition(0).append(b"no")
    assert seen(objects, 0) == [(0, b"a"), (1, b"taken")]
    assert seen(objects, 1) == [(0, b"a"), (1, b"b")]
    crash(store)


def test_N02_a_seal_from_the_past_does_not_hide_an_upload_that_stood() -> None:
    """Its entry was stored, split and deleted while the answer was on its way, and a late seal stands in its place."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1)
    log = store.create_topic("t").partition(0)
    log.append(b"a")
    with gated.hold("put", prefix="lanes/", after=True) as gate:
        waiting = log.submit(b"b")
        (call,) = gate.wait_held()
        stored = log_of(objects, store)
        state = LaneState()
        for entry in stored.entries_from(0):
            state.take(entry)
        view = log._internal._chain.load()
        log._internal.maintenance.split(view, 0)
        state.note_split(2, 0)
        objects.put(stored.paths.checkpoint, state.checkpoint(b"n" * 8).pack())
        objects.delete(call.key)
        stale = EntryHeader(EntryKind.SEAL, 1, b"s" * 16, bytes(16), 0)
        objects.put(call.key, build_entry(stale, [], [ClaimKey(log._internal.paths.prefix, 1)])[0])
        gate.release_lost()
        assert waiting.result(PATIENCE_S).offset == 1
    assert seen(objects) == [(0, b"a"), (1, b"b")]
    crash(store)


def test_N02_an_entry_that_is_being_made_while_a_seal_is_met_goes_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names an entry that will never stand. Acked all the same, it would be void and its records gone."""
    monkeypatch.setattr(lane_queue, "ENTRY_BYTES", 1)
    making, go_on = threading.Event(), threading.Event()

    def slowly(header: EntryHeader, *rest: Any) -> Any:
        if header.seq == 3 and not making.is_set():
            making.set()
            assert go_on.wait(PATIENCE_S)
        return build_entry(header, *rest)

    monkeypatch.setattr(entry_maker, "build_entry", slowly)
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1)
    topic = store.create_topic("t", 2)
    mine, moved = topic.partition(0), topic.partition(1)
    mine.append(b"0")
    moved.append(b"m")
    with (
        gated.hold("put", prefix="lanes/", suffix=f"{2:020d}.seg") as gate,
        running(objects, lanes=1) as other,
    ):
        first = mine.submit(b"1")
        gate.wait_held()
        second = mine.submit(b"2")
        assert making.wait(PATIENCE_S)
        other.topic("t").partition(1).append(b"taken")
        gate.open()
        until(lambda: moved._internal.stopped is not None)
        go_on.set()
        assert [first.result(PATIENCE_S).offset, second.result(PATIENCE_S).offset] == [1, 2]
    assert seen(objects, 0) == [(0, b"0"), (1, b"1"), (2, b"2")]
    crash(store)


def test_N02_an_entry_that_is_being_made_while_a_look_fails_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has carried a put out, refuses it, and does not say what is there. That is tried again by a sender, which
    must not be the one that makes the next entry: nobody would send it."""
    monkeypatch.setattr(lane_queue, "ENTRY_BYTES", 1)
    making, go_on = threading.Event(), threading.Event()

    def slowly(header: EntryHeader, *rest: Any) -> Any:
        if header.seq == 2:
            making.set()
            assert go_on.wait(PATIENCE_S)
        return build_entry(header, *rest)

    monkeypatch.setattr(entry_maker, "build_entry", slowly)
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    gated = GatedStore(faulty)
    with running(gated, lanes=1, uploads_max=2, probe_interval=0.001) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"0")
        lane = lane_of(store)
        with gated.hold("put", prefix="lanes/", suffix=f"{1:020d}.seg") as gate:
            first = log.submit(b"1")
            (call,) = gate.wait_held()
            second = log.submit(b"2")
            assert making.wait(PATIENCE_S)
            objects.put(call.key, lane._flight.uploads[0].data)
            faulty.fail("get", prefix="lanes/", times=None)
            gate.open()
            until(lambda: lane._flight.uploads[0].failures > 0)
            go_on.set()
            faulty.heal()
            assert [first.result(PATIENCE_S).offset, second.result(PATIENCE_S).offset] == [1, 2]
    assert seen(objects, 0) == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_N07_a_place_of_the_lane_that_holds_something_else_stops_its_writers() -> None:
    objects = MemoryStore()
    store = open_store(objects, lanes=1)
    topic = store.create_topic("t", 2)
    topic.partition(0).append(b"a")
    topic.partition(1).append(b"a")
    objects.put(
        LanePaths(lane_of(store).name).entry(2), b"no entry at all, but long enough to hold a header" * 9
    )
    with pytest.raises(CorruptData):
        topic.partition(0).append(b"no")
    crash(store)


def test_N07_another_process_that_puts_records_into_the_lane_stops_its_writers() -> None:
    objects = MemoryStore()
    store = open_store(objects, lanes=1)
    log = store.create_topic("t").partition(0)
    log.append(b"a")
    stored = log_of(objects, store)
    first = stored.entry_at(0)
    assert first is not None
    header = EntryHeader(EntryKind.DATA, 1, b"x" * 16, first.header.id, 0)
    stored.commit(header, build_entry(header, [])[0])
    with pytest.raises(CorruptData, match="another process puts records into this lane"):
        log.append(b"no")
    crash(store)


def test_N01_a_lane_of_a_newer_release_is_named() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        store.create_topic("t").partition(0).append(b"a")
        name = lane_of(store).name
    key = LanePaths(name).checkpoint
    packed = bytearray(LaneCheckpoint(version=1).pack())
    packed[8] = 9
    from crc32c import crc32c

    from logstore.format.stored.lane_checkpoint import FRONT_SIZE

    packed[FRONT_SIZE - 4 : FRONT_SIZE] = crc32c(bytes(packed[: FRONT_SIZE - 4])).to_bytes(4, "little")
    objects.put(key, bytes(packed))
    with pytest.raises(UnsupportedStore, match="newer release"):
        seen(objects)
    objects.put(key, b"damaged")
    assert seen(objects) == [(0, b"a")], "one that is damaged can be done without"


def test_N01_an_entry_with_no_bytes_is_nobodys() -> None:
    """A server that was killed in a put left it."""
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        store.create_topic("t").partition(0).append(b"a")
        lane = lane_of(store)
        objects.put(LanePaths(lane.name).entry(1), b"")
        assert seen(objects) == [(0, b"a")]
        objects.delete(LanePaths(lane.name).entry(1))


@pytest.mark.usefixtures("often")
def test_N06_a_checkpoint_that_cannot_be_written_is_written_later(caplog: pytest.LogCaptureFixture) -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(faulty, lanes=1, probe_interval=0.001) as store:
        log = store.create_topic("t").partition(0)
        rule = faulty.fail("put", suffix="checkpoint", times=None)
        for number in range(5):
            log.append(b"%d" % number)
        until(lambda: rule.hits > 0)
        faulty.heal()
        for number in range(5, 20):
            log.append(b"%d" % number)
        until(lambda: objects.head(LanePaths(lane_of(store).name).checkpoint) is not None)
    assert seen(objects) == [(number, b"%d" % number) for number in range(20)]


def test_N06_a_checkpoint_that_another_has_swapped_is_taken_in() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        for number in range(3):
            log.append(b"%d" % number)
        lane = lane_of(store)
        lane.checkpoints.write()
        stored = log_of(objects, store)
        foreign = stored.checkpoint()
        assert foreign is not None
        objects.put(
            stored.paths.checkpoint, foreign.pack() and LaneState(foreign).checkpoint(b"o" * 8).pack()
        )
        lane.checkpoints.write()
        lane.checkpoints.write()
        found = stored.checkpoint()
        assert found is not None
        assert found.version > foreign.version + 1
    assert seen(objects) == [(number, b"%d" % number) for number in range(3)]


def test_N04_a_close_that_cannot_fence_its_lane_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    store = open_store(faulty, lanes=1, probe_interval=0.001, close_timeout=1.0)
    store.create_topic("t").partition(0).append(b"a")
    faulty.fail("put", prefix="lanes/", times=None)
    with caplog.at_level(logging.INFO):
        store.close()
    assert "left without a fence" in caplog.text
    with running(objects, lanes=1) as again:
        assert again.topic("t").partition(0).append(b"b").offset == 1


@pytest.mark.parametrize("kind", [EntryKind.SEAL, EntryKind.TRANSFER])
def test_N04_a_close_takes_a_seal_in_and_fences_behind_it(
    kind: EntryKind, request: pytest.FixtureRequest
) -> None:
    """Or a transfer, of a topic that begins in a lane."""
    if kind is EntryKind.SEAL:
        request.getfixturevalue("begin_in_own_chains")
    objects = MemoryStore()
    store = open_store(objects, lanes=1)
    topic = store.create_topic("t", 2)
    for number in range(2):
        topic.partition(number).append(b"a")
    with running(objects, lanes=1) as other:
        other.topic("t").partition(0).append(b"taken")
        stored = log_of(objects, store)
        store.close()
        kinds = [entry.header.kind for entry in stored.entries_from(0) if isinstance(entry, Entry)]
        assert kinds[-2:] == [kind, EntryKind.FENCE]


def test_N01_a_linger_is_the_least_time_between_two_uploads() -> None:
    """And closing does not wait for it."""
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    store = open_store(faulty, lanes=1, durable_linger=3600.0)
    log = store.create_topic("t").partition(0)
    log.append(b"a")
    lane = f"lanes/{store_lane(store)}/"
    before = faulty.count("put", prefix=lane)
    waiting = [log.submit(b"%d" % number) for number in range(5)]
    assert faulty.count("put", prefix=lane) == before
    background(store.close).result(PATIENCE_S)
    assert [future.result(0).offset for future in waiting] == [1, 2, 3, 4, 5]
    assert faulty.count("put", prefix=lane) == before + 2, "all in one, and the fence"


def test_N02_memory_pressure_flushes_what_is_not_due() -> None:
    objects = MemoryStore()
    with running(
        objects, lanes=1, ack="buffered", max_buffered_bytes=64 << 10, max_batch_bytes=16 << 10
    ) as store:
        topic = store.create_topic("t", 3)
        for number in range(60):
            topic.partition(number % 3).append(b"x" * 8000)
    for number in range(3):
        assert len(seen(objects, number)) == 20


def test_L23_a_part_that_is_split_before_its_writer_knows_of_it_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entry is in the store and its answer on the way, while a split merges all that the lane holds of the partition."""
    monkeypatch.setattr(lane_checkpoints, "SPLIT_EVERY", 6)
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        expected = [(turn, b"%d" % turn) for turn in range(10)]
        for _, value in expected[:8]:
            log.append(value)
        lane = lane_of(store)
        with gated.hold(
            "put", prefix="lanes/", suffix=f"{lane._book.known.next_seq:020d}.seg", after=True
        ) as gate:
            late = background(log.append, expected[8][1])
            gate.wait_held(PATIENCE_S)
            lane.checkpoints.write()
            assert lane._book.known.split_until, "it has split"
            gate.release()
            assert late.result(PATIENCE_S).offset == 8
        assert pairs(log) == expected[:9]
        assert log.append(expected[9][1]).offset == 9
        assert pairs(log) == expected
    assert seen(objects) == expected


def test_N04_a_close_that_meets_an_upload_of_its_own_lane_fences_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Past the deadline an upload may begin after the close has looked, and take the place that it has chosen."""
    objects = MemoryStore()
    with running(objects) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"a")
        lane = lane_of(store)
        create = lane._ours_or_others
        places: list[int] = []

        def beside(header: EntryHeader, *rest: Any) -> Any:
            if not places:
                log.append(b"b")
            places.append(header.seq)
            return create(header, *rest)

        monkeypatch.setattr(lane, "_ours_or_others", beside)
        lane.close(store._runtime.clock.monotonic() + PATIENCE_S)
        assert places == [1, 2]
    assert seen(objects) == [(0, b"a"), (1, b"b")]


def test_L17_a_log_in_a_lane_of_which_everything_was_deleted_uses_no_offset_again() -> None:
    """The objects are gone, and so is the manifest: the lane says how far it had come."""
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock, delete_grace=10.0) as store:
        log = store.create_topic("t").partition(0)
        for turn in range(12):
            log.append(b"%d" % turn)
        assert log.delete_before(12) == 12
        clock.advance(11.0)
        log._internal.maintenance.collect(clock.now_ms())
        assert pairs(log) == []
    objects.put(log._internal.paths.manifest, b"scribble")
    with running(objects, clock, delete_grace=10.0) as store:
        assert store.topic("t").partition(0).append(b"on").offset == 12


def test_L24_retention_in_a_lane_moves_the_low_watermark_then_deletes_after_the_grace_period() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock, delete_grace=10.0) as store:
        log = store.create_topic("t", retention_seconds=60).partition(0)
        for turn in range(5):
            log.append(b"%d" % turn)
        clock.advance(100)
        young = [(turn, b"%d" % turn) for turn in range(5, 8)]
        for _, value in young:
            log.append(value)
        assert log._internal.maintenance.expire(clock.now_ms()) == 5
    with running(objects, clock, delete_grace=10.0) as store:
        log = store.topic("t").partition(0)
        assert (log.low_watermark, pairs(log)) == (5, young)
        entries = [key.partition("@")[0] for key, _ in parts_in_lanes(objects)]
        assert len(entries) == 8
        clock.advance(11.0)
        store.collect_garbage()
        clock.advance(11.0)
        store.collect_garbage()
        assert (log.low_watermark, pairs(log)) == (5, young)
        assert not [header for _, header in parts_in_lanes(objects) if header.base_offset < 5], (
            "the bytes, too"
        )
    assert seen(objects) == young


def test_N02_L08_while_the_store_refuses_an_upload_no_other_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would hold its records a second time, as bytes of an entry, for as long as the store is down."""
    monkeypatch.setattr(lane_queue, "ENTRY_BYTES", 1)
    objects, clock = MemoryStore(), ManualClock()
    faulty = FaultyStore(objects)
    with running(faulty, clock, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"0")
        faulty.fail("put", prefix="lanes/", times=None)
        waiting = [log.submit(b"1")]
        lane = lane_of(store)
        until(lambda: [upload.failures for upload in lane._flight.uploads] == [1])
        waiting += [log.submit(b"%d" % number) for number in range(2, 6)]
        with lane._lock:
            assert (len(lane._flight.uploads), lane._queue.may_begin()) == (1, False)
        faulty.heal()
        until(lambda: clock.advance(1.0) or all(future.done() for future in waiting))
        ends = [header.end_offset for _, header in parts_in_lanes(objects)]
    assert ends == [1, 2, 6], "what came meanwhile is one entry behind it"
    assert seen(objects) == [(number, b"%d" % number) for number in range(6)]
