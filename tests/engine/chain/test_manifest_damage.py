"""L20, L21: a manifest that is damaged, missing or old costs requests, never records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain as every

import pytest

import logstore
from logstore.engine.maintenance import checkpoint
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import CorruptData, Determinate
from logstore.format.batches.record import Record
from logstore.format.stored.manifest import Manifest
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.damage import cuts, extensions, flips, shifts
from tests.support.engine.harness import (
    at,
    background,
    crash,
    lone_log,
    numbered,
    open_store,
    pairs,
    partition,
    running,
    stored,
)
from tests.support.patience import PATIENCE_S

COUNT = 12
VALUES = [b"value-%d" % number for number in range(COUNT)]
GRACE_S = 3600.0


def fill(objects: MemoryStore, clock: ManualClock) -> PartitionLog:
    """Twelve segments and a manifest of all of them."""
    with open_store(objects, clock, delete_grace=GRACE_S) as store:
        log = partition(store)
        for value in VALUES:
            log.append(value)
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        return log


def merge_and_collect(objects: MemoryStore, clock: ManualClock) -> None:
    """Most of the records are now in a merged object alone, which only the manifest names."""
    with open_store(objects, clock, delete_grace=GRACE_S) as store:
        log = partition(store)
        assert log._internal.maintenance.compact(clock.now_ms(), bytes(range(16))) >= 10
        clock.advance(GRACE_S + 1)
        assert len(log._internal.maintenance.collect(clock.now_ms())) >= 9


@pytest.fixture(params=["segments", "merged"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[MemoryStore, PartitionLog, logstore.Store]]:
    objects, clock = MemoryStore(), ManualClock()
    log = fill(objects, clock)
    if request.param == "merged":
        merge_and_collect(objects, clock)
    with open_store(objects, clock, writer="read_only") as reader:
        yield objects, log, reader


def opened(log: PartitionLog, reader: logstore.Store) -> PartitionLog:
    reader._runtime.cache.clear()
    return lone_log(reader._runtime, log._internal.paths)


@pytest.mark.usefixtures("own_chain")
def test_L20_no_damage_of_a_manifest_costs_a_record(
    place: tuple[MemoryStore, PartitionLog, logstore.Store],
) -> None:
    objects, log, reader = place
    sound = objects.get(log._internal.paths.manifest)
    kinds = every(
        flips(sound),
        extensions(sound),
        shifts(sound, 11),
        (cut for cut in cuts(sound) if len(cut[1]) % 7 == 0),
    )
    for name, data in kinds:
        objects.put(log._internal.paths.manifest, data)
        assert pairs(opened(log, reader)) == at(0, VALUES), name


@pytest.mark.usefixtures("own_chain")
def test_L20_a_missing_manifest_costs_no_record(
    place: tuple[MemoryStore, PartitionLog, logstore.Store],
) -> None:
    objects, log, reader = place
    objects.delete(log._internal.paths.manifest)
    assert pairs(opened(log, reader)) == at(0, VALUES)


def test_L20_an_old_manifest_costs_no_record() -> None:
    """A copy from a backup: it knows less of the chain, and the chain itself knows the rest."""
    objects, clock = MemoryStore(), ManualClock()
    log = fill(objects, clock)
    old = objects.get(log._internal.paths.manifest)
    with running(objects, clock) as store:
        for number in range(5):
            partition(store).append(b"later-%d" % number)
        partition(store)._internal._checkpointer.write()  # type: ignore[union-attr]
    objects.put(log._internal.paths.manifest, old)
    with running(objects, clock) as store:
        expected = [*VALUES, *(b"later-%d" % number for number in range(5))]
        assert pairs(partition(store)) == at(0, expected)
        assert partition(store).append(b"on").offset == len(expected)


@pytest.mark.usefixtures("own_chain")
def test_L20_a_damaged_manifest_is_replaced_by_the_next_checkpoint() -> None:
    objects, clock = MemoryStore(), ManualClock()
    log = fill(objects, clock)
    objects.put(log._internal.paths.manifest, b"scribble")
    with running(objects, clock) as store:
        again = partition(store)
        again.append(b"one more")
        again._internal._checkpointer.write()  # type: ignore[union-attr]
    manifest = Manifest.parse(objects.get(log._internal.paths.manifest))
    assert (manifest.end_offset, len(manifest.table)) == (COUNT + 1, COUNT + 1)


@pytest.mark.parametrize("by", ["checkpoint", "trim"])
@pytest.mark.parametrize("damage", ["scribbled", "lost"])
@pytest.mark.usefixtures("own_chain")
def test_L24_what_a_damaged_manifest_had_retired_is_collected_all_the_same(damage: str, by: str) -> None:
    """Which segments a merged object replaced, the objects tell; since when, nobody does: the grace period starts over."""
    objects, clock = MemoryStore(), ManualClock()
    paths = fill(objects, clock)._internal.paths
    with open_store(objects, clock, delete_grace=GRACE_S) as store:
        assert partition(store)._internal.maintenance.compact(clock.now_ms(), bytes(range(16))) >= 10
    clock.advance(GRACE_S - 1)
    if damage == "lost":
        objects.delete(paths.manifest)
    else:
        objects.put(paths.manifest, b"scribble")
    with running(objects, clock, delete_grace=GRACE_S) as store:
        log = partition(store)
        log.append(b"on")
        if by == "checkpoint":
            log._internal._checkpointer.write()  # type: ignore[union-attr]
        else:
            log.delete_before(1)
        clock.advance(2)
        assert store.collect_garbage() == []
        clock.advance(GRACE_S - 2)
        gone = store.collect_garbage()
        assert len(gone) >= 10
        assert store.collect_garbage() == []
        low = log.low_watermark
        assert pairs(log) == at(low, [*VALUES, b"on"][low:])
    left = [seq for info in objects.list(paths.prefix) if (seq := paths.seq_of(info.key)) is not None]
    assert left[0] == 0, "the fence"
    assert not Manifest.parse(objects.get(paths.manifest)).retired.segments
    with open_store(objects, clock, writer="read_only") as store:
        assert pairs(partition_of(store), start=low) == at(low, [*VALUES, b"on"][low:])


@pytest.mark.usefixtures("own_chain")
def test_L20_a_damaged_merged_object_is_reported_for_the_records_that_it_holds() -> None:
    objects, clock = MemoryStore(), ManualClock()
    log = fill(objects, clock)
    merge_and_collect(objects, clock)
    (merged,) = [info.key for info in objects.list(log._internal.paths.merged_prefix)]
    data = bytearray(objects.get(merged))
    data[len(data) // 3] ^= 4
    objects.put(merged, bytes(data))
    for manifest in ("sound", "damaged"):
        if manifest == "damaged":
            objects.put(log._internal.paths.manifest, b"scribble")
        with open_store(objects, clock, writer="read_only") as store:
            reader = partition_of(store)
            with pytest.raises(CorruptData) as caught:
                reader.read(3, 0)
            assert caught.value.key == merged
            assert pairs(reader, start=COUNT - 1) == [(COUNT - 1, VALUES[-1])]


def partition_of(store: logstore.Store) -> PartitionLog:
    return store.topic("t").partition(0)


@pytest.mark.usefixtures("own_chain")
def test_L20_a_damaged_manifest_of_a_log_that_retention_has_shortened() -> None:
    """What retention deleted is gone and stays gone; the log begins with what is there, and a new manifest is written."""
    objects, clock = MemoryStore(), ManualClock()
    log = fill(objects, clock)
    with open_store(objects, clock, delete_grace=GRACE_S) as store:
        again = partition(store)
        assert again._internal.maintenance.delete_before(5, clock.now_ms()) == 5
        clock.advance(GRACE_S + 1)
        assert len(again._internal.maintenance.collect(clock.now_ms())) == 5
    objects.put(log._internal.paths.manifest, b"scribble")
    with running(objects, clock) as store:
        again = partition(store)
        assert again.low_watermark == 5
        assert pairs(again) == at(5, VALUES[5:])
        again.append(b"goes on")
        again._internal._checkpointer.write()  # type: ignore[union-attr]
    assert Manifest.parse(objects.get(log._internal.paths.manifest)).low_watermark == 5


@pytest.mark.usefixtures("own_chain")
def test_L20_a_lost_first_segment_is_not_taken_for_retention() -> None:
    """There was no manifest yet, so nobody can have decided to delete it."""
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock) as store:
        log = partition(store)
        log.append([b"a", b"b"])
        log.append(b"c")
    objects.delete(log._internal.paths.segment(1))
    with open_store(objects, clock, writer="read_only") as store:
        reader = partition_of(store)
        assert reader.low_watermark == 0
        with pytest.raises(CorruptData, match="missing") as caught:
            reader.read(0)
        assert caught.value.key == log._internal.paths.segment(1)
        assert pairs(reader, start=2) == [(2, b"c")]


@pytest.mark.parametrize("damage", ["flipped", "missing"])
@pytest.mark.usefixtures("own_chain")
def test_L20_a_damaged_segment_does_not_stop_the_maintenance_of_the_others(damage: str) -> None:
    """Retired objects are still collected, neighbours of the damaged one stay as they are, nothing is lost."""
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock, delete_grace=GRACE_S) as store:
        log = store.create_topic("t", segment_bytes=2000).partition(0)
        values = [b"%d" % number * 200 for number in range(10, 34)]
        for value in values:
            log.append(Record(value))
        victim = log._internal.paths.segment(3)
        data = objects.get(victim)
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        if damage == "missing":
            objects.delete(victim)
        else:
            objects.put(victim, data[:200] + bytes([data[200] ^ 1]) + data[201:])
        store._runtime.cache.clear()
        merged = 0
        for number in range(20):
            merged += log._internal.maintenance.compact(clock.now_ms(), b"%016d" % number)
        assert merged > 0
        clock.advance(GRACE_S + 1)
        assert log._internal.maintenance.collect(clock.now_ms())
        with pytest.raises(CorruptData) as caught:
            log.read(2, 0)
        assert caught.value.key == victim
    objects.put(victim, data)
    with open_store(objects, clock, writer="read_only") as store:
        assert pairs(partition_of(store)) == at(0, values)


@pytest.mark.usefixtures("own_chain")
def test_L20_no_guess_becomes_a_manifest() -> None:
    """A checkpoint taken while two segments are unreadable would keep a wrong border between them for ever."""
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock) as store:
        log = partition(store)
        log.append([b"a", b"b", b"c"])
        log.append([b"d", b"e"])
        log.append(b"f")
    keys = [log._internal.paths.segment(seq) for seq in (1, 2)]
    sound = [objects.get(key) for key in keys]
    for key in keys:
        objects.put(key, b"unreadable for now")
    with running(objects, clock) as store:
        log = partition(store)
        assert log.append(b"g").offset == 6
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        with pytest.raises(CorruptData):
            log.read(4)
    for key, data in zip(keys, sound, strict=True):
        objects.put(key, data)
    with running(objects, clock) as store:
        assert pairs(partition(store)) == at(0, [b"a", b"b", b"c", b"d", b"e", b"f", b"g"])


def test_L20_a_crash_between_merge_and_manifest_shows_no_record_twice() -> None:
    """The merged object stands and nobody names it; then the manifest is lost as well."""
    objects, clock = MemoryStore(), ManualClock()
    log = fill(objects, clock)
    store = open_store(objects, clock, delete_grace=GRACE_S)
    again = partition(store)
    before = objects.get(log._internal.paths.manifest)
    again._internal.maintenance.compact(clock.now_ms(), bytes(range(16)))
    objects.put(log._internal.paths.manifest, before)
    crash(store)
    for lost in (False, True):
        if lost:
            objects.delete(log._internal.paths.manifest)
        with open_store(objects, clock, writer="read_only") as reader:
            assert pairs(partition_of(reader)) == at(0, VALUES)


@pytest.mark.parametrize("damage", ["scribbled", "lost"])
def test_L20_a_checkpoint_in_place_of_a_damaged_manifest_names_what_is_there(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer has stored little, and remembers segments that a peer has merged and deleted; of the merged object only the
    manifest knew. A checkpoint from memory would name what is gone, and let gc delete the records."""
    monkeypatch.setattr(checkpoint, "EVERY_SEGMENTS", 1 << 30)
    objects, clock = MemoryStore(), ManualClock()
    peer = open_store(objects, clock, writer="shared", delete_grace=GRACE_S)
    other = partition(peer)
    for value in VALUES:
        other.append(value)
    other._internal._checkpointer.write()  # type: ignore[union-attr]
    with running(objects, clock, writer="shared", delete_grace=GRACE_S) as store:
        log = partition(store)
        assert pairs(log) == at(0, VALUES)
        other.append(b"on")
        assert other._internal.maintenance.compact(clock.now_ms(), bytes(range(16))) >= 10
        for _ in range(4):
            clock.advance(GRACE_S / 3)
            log.refresh()  # which tells how the chain goes on, not where what is known of it lies by now
        assert len(other._internal.maintenance.collect(clock.now_ms())) >= 10
        peer.close()
        if damage == "lost":
            objects.delete(log._internal.paths.manifest)
        else:
            objects.put(log._internal.paths.manifest, b"scribble")
        log.append(b"and on")
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        store.collect_garbage()
    with open_store(objects, clock, writer="read_only") as store:
        assert pairs(partition_of(store)) == at(0, [*VALUES, b"on", b"and on"])


@pytest.mark.usefixtures("own_chain")
def test_L17_a_log_of_which_everything_was_deleted_uses_no_offset_again() -> None:
    """The newest segment alone says where the chain ends, once the manifest is gone: it stays until there is a newer one."""
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock, delete_grace=GRACE_S) as store:
        log = partition(store)
        for value in VALUES:
            log.append(value)
        newest = log.segments()[-1].key
        assert log.delete_before(COUNT) == COUNT
        clock.advance(GRACE_S + 1)
        assert len(log._internal.maintenance.collect(clock.now_ms())) == COUNT - 1
        assert [item.key for item in log._internal.maintenance.garbage(clock.now_ms())] == []
    sound = objects.get(log._internal.paths.manifest)
    objects.put(log._internal.paths.manifest, b"scribble")
    with running(objects, clock, delete_grace=GRACE_S) as store:
        assert partition(store).append(b"on").offset == COUNT
    objects.put(log._internal.paths.manifest, sound)
    with running(objects, clock, delete_grace=GRACE_S) as store:
        log = partition(store)
        assert pairs(log) == [(COUNT, b"on")]
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        assert [item.key for item in log._internal.maintenance.collect(clock.now_ms())] == [newest]


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.usefixtures("own_chain")
def test_L24_what_is_expired_goes_from_the_beginning_on(rounds: int) -> None:
    """A merged object, and a few segments behind it, go in several rounds. If the manifest is damaged in between, what is
    left begins later; a hole in it would be taken for damage."""
    objects, clock = MemoryStore(), ManualClock()
    log = fill(objects, clock)
    more = [b"more-%d" % number for number in range(5)]
    with running(objects, clock, delete_grace=GRACE_S) as store:
        again = partition(store)
        assert again._internal.maintenance.compact(clock.now_ms(), bytes(range(16))) >= 10
        clock.advance(GRACE_S + 1)
        assert len(again._internal.maintenance.collect(clock.now_ms())) >= 10
        for value in more:
            again.append(value)
        assert again._internal.maintenance.delete_before(COUNT + 3, clock.now_ms()) == COUNT + 3
        clock.advance(GRACE_S + 1)
        for _ in range(rounds):
            assert len(again._internal.maintenance.collect(clock.now_ms(), at_most=1)) == 1
    objects.put(log._internal.paths.manifest, b"scribble")
    with open_store(objects, clock, writer="read_only") as store:
        reader = partition_of(store)
        low = reader.low_watermark
        assert 0 < low <= COUNT + 3
        assert pairs(reader) == at(0, [*VALUES, *more])[low:]


def damage_manifest(objects: MemoryStore, log: PartitionLog, damage: str) -> None:
    if damage == "lost":
        objects.delete(log._internal.paths.manifest)
    else:
        objects.put(log._internal.paths.manifest, b"scribble")


def compacted_and_collected_elsewhere(objects: MemoryStore, clock: ManualClock) -> None:
    """By another process, which gives nobody any time."""
    with open_store(objects, clock, writer="read_only", delete_grace=0.0) as store:
        log = store.topic("t").partition(0)
        assert log._internal.maintenance.compact(clock.now_ms(), bytes(range(16))) >= 10
        assert len(store.collect_garbage()) >= 10


@pytest.mark.usefixtures("own_chain")
def test_C04_a_writer_that_never_saw_the_lost_manifest_names_nothing_that_was_collected() -> None:
    """It opened when there was none, and remembers the segments that others have merged and deleted since. Were they in its
    manifest, the merged object would be nobody's, and go."""
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock) as store:
        log = partition(store)
        for value in numbered(0, 30):
            log.append(value)
        compacted_and_collected_elsewhere(objects, clock)
        objects.delete(log._internal.paths.manifest)
        for value in numbered(30, 5):
            log.append(value)
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        with open_store(objects, clock, writer="read_only", delete_grace=0.0) as other:
            other.collect_garbage()
    assert stored(objects) == at(0, numbered(0, 35))


@pytest.mark.parametrize("began", ["with a manifest", "without one"])
@pytest.mark.parametrize("damage", ["scribbled", "lost"])
@pytest.mark.usefixtures("own_chain")
def test_C04_a_merge_that_sleeps_while_manifests_get_lost_changes_nothing(damage: str, began: str) -> None:
    """Versions begin again at 1 then: the one that it was made for stands once more, and is another manifest."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with running(objects, clock) as store, open_store(gated, clock, writer="read_only") as slow:
        log = partition(store)
        for value in numbered(0, 30):
            log.append(value)
        if began == "with a manifest":
            log._internal._checkpointer.write()  # type: ignore[union-attr]
        sleeper = slow.topic("t").partition(0)
        with gated.hold("put", prefix=log._internal.paths.merged_prefix) as gate:
            merge = background(sleeper._internal.maintenance.compact, clock.now_ms(), b"s" * 16)
            gate.wait_held()
            if began == "with a manifest":
                damage_manifest(objects, log, damage)
            log.append(b"v30")
            log._internal._checkpointer.write()  # type: ignore[union-attr]
            compacted_and_collected_elsewhere(objects, clock)
            damage_manifest(objects, log, damage)
            log.append(b"v31")
            if began == "with a manifest":
                log._internal._checkpointer.write()  # type: ignore[union-attr]
                assert Manifest.parse(objects.get(log._internal.paths.manifest)).version == 1
        assert merge.result(PATIENCE_S) == 0
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        with open_store(objects, clock, writer="read_only", delete_grace=0.0) as other:
            other.collect_garbage()
    assert stored(objects) == at(0, numbered(0, 32))


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize("damage", ["scribbled", "lost"])
@pytest.mark.usefixtures("own_chain")
def test_L20_the_object_of_a_compaction_that_died_hides_nothing_of_a_later_one(
    damage: str, mode: str
) -> None:
    """It lies across that one, because the log's beginning has moved in between. Without a manifest both are found."""
    objects, clock = MemoryStore(), ManualClock()
    faulty = FaultyStore(objects)
    with running(objects, clock, writer=mode, delete_grace=0.0) as store:
        log = partition(store)
        for value in numbered(0, 10):
            log.append(value)
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        with open_store(faulty, clock, writer="read_only") as other:
            faulty.fail("put", suffix="/manifest")
            with pytest.raises(Determinate):
                other.topic("t").partition(0)._internal.maintenance.compact(clock.now_ms(), b"x" * 16)
        assert log.delete_before(5) == 5
        for value in numbered(10, 6):
            log.append(value)
        assert log._internal.maintenance.compact(clock.now_ms(), b"y" * 16) == 10
        assert len(log._internal.maintenance.collect(clock.now_ms())) == 15
        assert len(list(objects.list(log._internal.paths.merged_prefix))) == 2
        damage_manifest(objects, log, damage)
    with open_store(objects, clock, writer="read_only") as reader:
        assert pairs(reader.topic("t").partition(0), start=5) == at(5, numbered(5, 11))


def test_L18_a_damaged_manifest_hides_no_lost_range_at_the_beginning() -> None:
    """Nothing is missing there: the first writer reserved offsets, showed some, and died. That is no retention."""
    objects, clock = MemoryStore(), ManualClock()
    dead = open_store(objects, clock)
    partition(dead).append(b"gone", ack="buffered")
    crash(dead)
    with running(objects, clock) as store:
        log = partition(store)
        first = log.append(b"v0").offset
        assert first > 0
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        damage_manifest(objects, log, "scribbled")
        with open_store(objects, clock, writer="read_only") as reader:
            found = reader.topic("t").partition(0)
            assert found.low_watermark == 0
            assert found.lost_ranges() == log.lost_ranges() == [(0, first)]
