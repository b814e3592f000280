"""N06: what partitions have in entries is copied into objects of their own, and the entries are deleted."""

from __future__ import annotations

import pytest

import logstore
from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.write.lanes import lane_checkpoints
from logstore.errors import Fenced, ObjectNotFound, StoreError, UnknownTopic
from logstore.layout.paths import LanePaths
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import FaultyStore, ManualClock
from tests.support.engine.harness import background, crash, open_store, pairs, running
from tests.support.lanes.entries import entries, seen, store_lane, values
from tests.support.patience import PATIENCE_S


@pytest.mark.usefixtures("often")
def test_N06_splits_keep_every_record_readable_and_delete_the_entries(any_home: ObjectStore) -> None:
    expected: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(3)}
    with (
        running(any_home, lanes=1, delete_grace=0.0) as store,
        running(any_home, writer="read_only") as reader,
    ):
        topic = store.create_topic("t", 3)
        for turn in range(40):
            for number in range(3):
                log = topic.partition(number)
                receipt = log.append(b"%d" % turn)
                expected[number].append((receipt.offset, b"%d" % turn))
                if turn % 10 == 9:
                    other = reader.topic("t").partition(number)
                    other.refresh()
                    assert pairs(other) == pairs(log) == expected[number]
        store._lanes.of(topic.partition(0)._internal.paths).checkpoints.write()  # type: ignore[union-attr]
        assert len(entries(any_home)) < 60, "of 120"
        for number in range(3):
            assert seen(any_home, number) == expected[number]
    with running(any_home, lanes=1) as again:
        for number in range(3):
            assert again.topic("t").partition(number).append(b"on").offset == 40
            assert pairs(again.topic("t").partition(number))[:40] == expected[number]


@pytest.mark.usefixtures("often")
def test_N06_the_entries_of_an_ended_lane_are_collected_by_anybody() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        topic = store.create_topic("t", 2)
        for turn in range(3):
            for number in range(2):
                topic.partition(number).append(b"%d" % turn)
    with running(objects, writer="read_only", delete_grace=0.0) as keeper:
        gone = [item.key for item in keeper.collect_garbage()]
        assert len([key for key in gone if key.startswith("lanes/")]) == 6
    assert len(entries(objects)) == 1, "the fence stays"
    for number in range(2):
        assert seen(objects, number) == [(turn, b"%d" % turn) for turn in range(3)]


def test_N06_who_took_the_last_partition_of_a_lane_does_not_forget_that_its_owner_has_split_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner has not met that its partition is elsewhere, splits its lane, and says so. The taker read the lane before,
    and says later what it holds. A reader that stands where entries are gone would take the empty place for the end."""
    objects = MemoryStore()
    owner = open_store(objects, lanes=1, delete_grace=0.0)
    log = owner.create_topic("t").partition(0)
    log.append(b"0")
    with running(objects, writer="read_only") as reader:
        assert values(reader.topic("t").partition(0)) == [b"0"]
        for number in range(1, 6):
            log.append(b"%d" % number)
        lane = LaneLog(objects, LanePaths(store_lane(owner)))
        with running(objects, ManualClock(), lanes=1, take_over=True) as taker:
            assert taker.topic("t").partition(0).append(b"6").offset == 6
            monkeypatch.setattr(lane_checkpoints, "SPLIT_EVERY", 1)
            owner._lanes.of(log._internal.paths).checkpoints.write()  # type: ignore[union-attr]
            split_until = lane.split_until()
            assert split_until > 1
            assert lane.entry_at(1) is None
        found = reader.topic("t").partition(0)
        found.refresh()
        assert values(found) == [b"%d" % number for number in range(7)]
    assert lane.split_until() == split_until
    assert lane.checkpoint().next_seq > split_until + 1, "it is said all the same"  # type: ignore[union-attr]
    crash(owner)


def test_N06_deleting_a_topic_ends_its_claims_and_leaves_the_others() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store, running(objects) as other:
        kept, gone = store.create_topic("kept").partition(0), store.create_topic("gone").partition(0)
        kept.append(b"a")
        gone.append(b"b")
        other.delete_topic("gone")
        with pytest.raises((Fenced, UnknownTopic)):
            gone.append(b"no")
        assert kept.append(b"c").offset == 1
        assert values(kept) == [b"a", b"c"]


def test_N06_delete_before_reaches_into_a_lane() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        for number in range(6):
            log.append(b"%d" % number)
        assert log.delete_before(4) == 4
        assert pairs(log) == [(4, b"4"), (5, b"5")]
        assert log.append(b"6").offset == 6
    assert seen(objects, 0) == [(4, b"4"), (5, b"5"), (6, b"6")]


def test_N06_a_merged_object_of_a_claim_that_has_ended_tells_that_more_of_it_is_in_the_lane() -> None:
    """The claim ends with a part that holds no records, and another chain follows. The split stores its object and dies
    before the manifest: whoever loads the chain without one must look for that part in the lane."""
    faulty = FaultyStore(MemoryStore())
    store = open_store(faulty, lanes=1)
    log = store.create_topic("t").partition(0)
    log.append(b"a")
    log.append(b"shown", ack="buffered")  # behind a part that reserves offsets, and holds nothing
    crash(store)
    with running(faulty, lanes=0) as store:
        offset = store.topic("t").partition(0).append(b"b").offset
        assert offset > 1
    with running(faulty, lanes=0) as keeper:
        internal = keeper.topic("t").partition(0)._internal
        rule = faulty.fail("put", suffix="manifest", times=None)
        with pytest.raises(logstore.LogStoreError):
            internal.maintenance.split(internal._chain.load(), 0)
        faulty.remove(rule)
    assert any("/merged/" in info.key for info in faulty.list("topics/"))
    assert seen(faulty, 0) == [(0, b"a"), (offset, b"b")]


def split_now(store: logstore.Store, log: logstore.PartitionLog) -> None:
    """What its lane holds becomes objects of the partitions, but for the newest entry; the entries are deleted."""
    lane = store._lanes.of(log._internal.paths)
    assert lane is not None
    lane.checkpoints.write()
    lane.checkpoints.write()


@pytest.mark.usefixtures("often")
def test_L25_N06_a_topic_whose_deletion_died_is_collected_when_its_lane_was_split_since() -> None:
    """The chain has ended, and its manifest is as it was. What the chain had in the lane behind that was not worth keeping
    for the one who split the lane. Whoever loads the partition must not wait for a manifest that nobody writes."""
    objects = MemoryStore()
    dying = FaultyStore(objects)
    with running(objects, lanes=1, delete_grace=0.0) as store:
        gone, kept = (store.create_topic(name).partition(0) for name in ("gone", "t"))
        for turn in range(8):
            gone.append(b"%d" % turn)
        split_now(store, gone)
        assert objects.head(gone._internal.paths.manifest) is not None
        gone.append(b"8")
        with running(dying, lanes=1) as deleter:
            dying.fail("put", prefix=gone._internal.paths.manifest, times=None)
            with pytest.raises(StoreError):
                deleter.delete_topic("gone")
            dying.heal()
        for turn in range(8):
            kept.append(b"%d" % turn)
        split_now(store, kept)
        with running(objects, writer="read_only", delete_grace=0.0) as collector:
            background(collector.collect_garbage).result(PATIENCE_S)
        left = [info.key for info in objects.list(gone._internal.paths.prefix) if "/merged/" in info.key]
        assert left == [], "no record is left"
    assert seen(objects) == list(enumerate(b"%d" % turn for turn in range(8)))


@pytest.mark.usefixtures("often")
def test_L20_N06_a_manifest_that_was_restored_from_an_old_copy_is_done_without() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1, delete_grace=0.0) as store:
        log = store.create_topic("t").partition(0)
        expected = [(log.append(b"%d" % turn).offset, b"%d" % turn) for turn in range(8)]
        split_now(store, log)
        manifest = log._internal.paths.manifest
        old = objects.get(manifest)
        expected += [(log.append(b"%d" % turn).offset, b"%d" % turn) for turn in range(8, 20)]
        split_now(store, log)
        assert objects.get(manifest) != old
        objects.put(manifest, old)
        assert background(seen, objects).result(PATIENCE_S) == expected


@pytest.mark.usefixtures("often")
def test_C04_a_split_of_what_another_has_split_and_let_go_of_is_that_others() -> None:
    objects = MemoryStore()
    with (
        running(objects, lanes=1, delete_grace=0.0) as store,
        running(objects, lanes=0, cache_bytes=0) as late,
    ):
        log = store.create_topic("t").partition(0)
        expected = [(log.append(b"%d" % turn).offset, b"%d" % turn) for turn in range(8)]
        internal = late.topic("t").partition(0)._internal
        view = internal._chain.load()
        split_now(store, log)
        before = {info.key for info in objects.list("topics/")}
        assert internal.maintenance.split(view, 0) is None
        assert {info.key for info in objects.list("topics/")} == before
        assert seen(objects) == expected
        log.append(b"8")
        view = internal._chain.load()
        objects.delete(view.segments.ref(len(view.segments) - 1).key.partition("@")[0])
        with pytest.raises(ObjectNotFound):  # nobody has split that: it is lost, and said to be
            internal.maintenance.split(view, 0)
