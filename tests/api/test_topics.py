"""L25, L20: topics are created, found, deleted and created again; no old record ever shows; no name leaves the prefix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore.errors import (
    CorruptData,
    Indeterminate,
    InvalidTopicName,
    OffsetOutOfRange,
    StoreUnavailable,
    TopicExists,
    UnknownTopic,
)
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore
from tests.support.engine.damage import cuts, extensions, flips
from tests.support.engine.harness import background, crash, disk_of, open_store, pairs, running
from tests.support.patience import PATIENCE_S

GOOD_NAMES = ["a", "A.b_c-9", "orders", "...", "-", "__consumer_offsets", "x" * 249]
BAD_NAMES = [
    "",
    ".",
    "..",
    "a/b",
    "../x",
    "/etc",
    "a\\b",
    "a b",
    "a\n",
    "a\0b",
    "é",
    "t\u0661",
    "x" * 250,
    "x" * 10_000,
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_L25_a_name_that_kafka_takes_is_taken(objects: ObjectStore, name: str) -> None:
    with running(objects) as store:
        assert store.create_topic(name).append(b"here").offset == 0
        assert store.topics() == [name]
    with open_store(objects, writer="read_only") as store:
        assert pairs(store.topic(name).partition(0)) == [(0, b"here")]


@pytest.mark.parametrize("name", [*BAD_NAMES, None, 7, b"bytes"])
def test_L25_no_other_name_reaches_the_store(name: object) -> None:
    objects = MemoryStore()
    with running(objects) as store:
        before = [info.key for info in objects.list("")]
        for call in (store.create_topic, store.topic, store.delete_topic):
            with pytest.raises(InvalidTopicName) as caught:
                call(name)  # type: ignore[arg-type]
            assert len(str(caught.value)) < 400, "a huge name is not repeated in full"
        assert [info.key for info in objects.list("")] == before


def test_L25_a_topic_that_was_created_again_starts_empty(any_home: ObjectStore) -> None:
    with running(any_home) as store:
        first = store.create_topic("t", partitions=2)
        first.append(b"old", partition=0)
        first.append(b"old too", partition=1)
        store.delete_topic("t")
        with pytest.raises(UnknownTopic, match="create_topic"):
            store.topic("t")
        assert store.topics() == []
        second = store.create_topic("t", partitions=3)
        assert second._internal.descriptor.incarnation != first._internal.descriptor.incarnation
        assert [pairs(second.partition(number)) for number in range(3)] == [[], [], []]
        assert second.append(b"new", partition=0).offset == 0
    with open_store(any_home, writer="read_only") as store:
        assert pairs(store.topic("t").partition(0)) == [(0, b"new")]
        assert store.topic("t").partitions == 3


@pytest.mark.usefixtures("own_chain")
def test_L25_deleting_leaves_nothing_but_what_stops_writers() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        log = store.create_topic("t").partition(0)
        for number in range(5):
            log.append(b"secret-%d" % number)
        store.delete_topic("t")
    left = [objects.get(info.key) for info in objects.list("topics/")]
    assert left
    assert all(b"secret" not in data for data in left)


def test_L25_a_writer_elsewhere_is_stopped_and_never_writes_into_the_new_topic(objects: ObjectStore) -> None:
    elsewhere = open_store(objects)
    log = elsewhere.create_topic("t").partition(0)
    log.append(b"old")
    with running(objects) as store:
        store.delete_topic("t")
        fresh = store.create_topic("t").partition(0)
        for _ in range(2):
            with pytest.raises(UnknownTopic, match="deleted"):
                log.append(b"late")
        with pytest.raises(UnknownTopic):
            log.append(b"late", ack="buffered")
        assert fresh.append(b"new").offset == 0
        assert pairs(fresh) == [(0, b"new")]
        assert pairs(elsewhere.topic("t").partition(0)) == [(0, b"new")], "its next look finds the new one"
    elsewhere.close()


def test_L25_a_writer_that_slept_through_a_takeover_and_the_deletion_is_stopped_too() -> None:
    """Its place in the chain was taken by another writer, whose segments are deleted: it must not become free again."""
    objects = MemoryStore()
    sleeper = open_store(objects)
    log = sleeper.create_topic("t").partition(0)
    log.append(b"zero")
    with running(objects) as store:
        for number in range(3):
            store.topic("t").append(b"other %d" % number)
    with running(objects) as store:
        store.delete_topic("t")
    with pytest.raises((UnknownTopic, logstore.Fenced)):
        log.append(b"acked into a deleted topic?")
    sleeper.close()


def test_L25_a_fence_that_carries_records_loses_them_and_stays(tmp_path: Path) -> None:
    """The other writer brought records back from its WAL: they are part of its fence, and go when the topic goes."""
    objects, wal_dir = MemoryStore(), tmp_path / "wal"
    sleeper = open_store(objects)
    log = sleeper.create_topic("t").partition(0)
    log.append(b"zero")
    crashed = open_store(objects, wal_dir=str(wal_dir))
    crashed.topic("t").append(b"secret", ack="local")
    sleeper_too = crashed.topic("t").partition(0)
    with running(objects, wal_dir=str(disk_of(wal_dir, tmp_path / "copy"))) as store:
        assert (1, b"secret") in pairs(_opened(store))
        store.delete_topic("t")
    assert all(b"secret" not in objects.get(info.key) for info in objects.list(""))
    for asleep in (log, sleeper_too):
        with pytest.raises((UnknownTopic, logstore.Fenced)):
            asleep.append(b"late")
    sleeper.close()
    crash(crashed)


def _opened(store: logstore.Store) -> logstore.PartitionLog:
    log = store.topic("t").partition(0)
    log.open_writer()
    return log


def pairs_of(records: Iterator[logstore.Record]) -> list[tuple[int | None, bytes | None]]:
    return [(record.offset, record.value) for record in records]


@pytest.mark.usefixtures("own_chain")
def test_L25_a_reader_of_a_deleted_topic_is_told(objects: ObjectStore) -> None:
    with running(objects) as store, open_store(objects, writer="read_only", cache_bytes=0) as reader:
        store.create_topic("t").partition(0).append([b"a", b"b"])
        old = reader.topic("t").partition(0)
        assert old.durable_high_watermark == 2
        store.delete_topic("t")
        with pytest.raises((OffsetOutOfRange, UnknownTopic)):
            old.read(0)
        with pytest.raises(UnknownTopic):
            reader.topic("t")


def test_L25_who_waits_at_the_end_of_a_topic_that_another_process_deletes_is_told(
    objects: ObjectStore,
) -> None:
    """Its tails end, a wait at the mark and every read since raise: nothing will ever come."""
    with running(objects) as store, open_store(objects, writer="read_only", follow_interval=0.01) as reader:
        store.create_topic("t").partition(0).append([b"a", b"b"])
        old = reader.topic("t").partition(0)
        tail, waiting = background(lambda: pairs_of(old.tail())), background(old.read, 2, wait=3600)
        store.delete_topic("t")
        assert tail.result(PATIENCE_S) in ([], [(0, b"a"), (1, b"b")])
        with pytest.raises(UnknownTopic):
            waiting.result(PATIENCE_S)
        for refused in (
            lambda: old.read(0),
            lambda: old.read(2),
            lambda: old.records(),
            lambda: old.offset_for_timestamp(0),
        ):
            with pytest.raises(UnknownTopic):
                refused()


@pytest.mark.parametrize("call", ["read", "records", "offset_for_timestamp"])
def test_L25_a_reader_at_the_end_learns_of_a_deletion_with_its_next_look(
    call: str, objects: ObjectStore
) -> None:
    with running(objects) as store, open_store(objects, writer="read_only") as reader:
        store.create_topic("t").partition(0).append([b"a", b"b"])
        old = reader.topic("t").partition(0)
        assert old.read(0).next_offset == 2
        store.delete_topic("t")
        with pytest.raises(UnknownTopic):
            getattr(old, call)(2)


def test_L25_an_upload_under_way_when_the_topic_is_deleted_is_told(objects: ObjectStore) -> None:
    gated = GatedStore(objects)
    with running(gated) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"zero")
        with gated.hold("put", suffix=".seg") as gate:
            future = log.submit(b"one")
            gate.wait_held()
            with running(objects) as other:
                other.delete_topic("t")
        with pytest.raises(UnknownTopic):
            future.result(PATIENCE_S)
        assert store.topics() == []


def test_L25_of_two_who_create_at_once_one_wins_and_both_get_the_same_topic(objects: ObjectStore) -> None:
    first, second = open_store(objects), open_store(objects)
    made = [background(store.create_topic, "t", 4, exist_ok=True) for store in (first, second) * 4]
    assert len({future.result(PATIENCE_S)._internal.descriptor.incarnation for future in made}) == 1
    with pytest.raises(TopicExists, match="4 partitions, not 5"):
        first.create_topic("t", 5, exist_ok=True)
    with pytest.raises(TopicExists, match="exist_ok"):
        second.create_topic("t", 4)
    first.close()
    second.close()


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
def test_W04_a_lost_answer_neither_fails_a_creation_nor_a_deletion(fault: Fault) -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty) as store:
        faulty.fail("put", prefix="catalog/", with_=fault)
        store.create_topic("t").append(b"x")
        faulty.fail("put", prefix="catalog/", with_=fault)
        store.delete_topic("t")
        assert store.topics() == []
        faulty.fail("put", prefix="catalog/", with_=fault)
        assert pairs(store.create_topic("t").partition(0)) == []
        faulty.fail("put", prefix="catalog/", times=None, with_=fault)
        if fault is Fault.LOSE_REQUEST:
            with pytest.raises(Indeterminate):
                store.create_topic("u")
        else:
            store.create_topic("u")


def test_L25_settings_are_kept_and_checked() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        store.create_topic("t", retention_seconds=60.0, retention_bytes=1 << 30, segment_bytes=1 << 20)
        with pytest.raises(TypeError, match="retention_seconds, retention_bytes, segment_bytes"):
            store.create_topic("u", retention="1h")  # type: ignore[call-arg]
        for bad in (-1, True, "7", float("nan")):
            with pytest.raises(ValueError, match="at least"):
                store.create_topic("u", retention_seconds=bad)  # type: ignore[arg-type]
        assert store.topics() == ["t"]
    with open_store(objects, writer="read_only") as store:
        config = store.topic("t").config
        assert (config.retention_seconds, config.retention_bytes, config.segment_bytes) == (
            60.0,
            1 << 30,
            1 << 20,
        )


@pytest.mark.parametrize("setting", ["retention_seconds", "retention_bytes"])
def test_L24_a_retention_without_an_end_is_no_retention(setting: str, objects: ObjectStore) -> None:
    with running(objects) as store:
        topic = store.create_topic("t", **{setting: math.inf})  # type: ignore[arg-type]
        assert getattr(topic.config, setting) is None
        topic.append(b"kept")
        assert topic.partition(0)._internal.maintenance.expire(1 << 50) == 0
        assert pairs(topic.partition(0)) == [(0, b"kept")]


def test_L20_every_damage_of_a_topics_descriptor_is_found_and_the_other_topics_work() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        store.create_topic("good").append(b"fine")
        store.create_topic("bad", partitions=4)
        sound = objects.get("catalog/bad")
        for name, data in [*flips(sound), *cuts(sound), *extensions(sound)]:
            objects.put("catalog/bad", data)
            try:
                found = store.topic("bad")
            except CorruptData as damage:
                reported = damage.key
            else:  # white space between the fields means nothing
                reported = "catalog/bad" if found.partitions == 4 else f"{name}: {found}"
            assert reported == "catalog/bad", name
        objects.put("catalog/bad", b"{")
        assert store.topics() == ["bad", "good"], "it is there, and it does not hide the others"
        assert pairs(store.topic("good").partition(0)) == [(0, b"fine")]


def test_L20_every_damage_of_the_stores_marker_is_found() -> None:
    """Its id names the WAL's folder: a wrong one would hide records that were acked `local`."""
    objects = MemoryStore()
    with running(objects) as store:
        identity = store._runtime.store_id
    sound = objects.get("store")
    for name, data in [*flips(sound), *cuts(sound)]:
        objects.put("store", data)
        try:
            opened = logstore.open(objects, writer="read_only")._runtime.store_id
        except CorruptData as damage:
            opened = f"{damage.key} is damaged"
        assert opened in ("store is damaged", identity), name


def test_L25_a_store_that_cannot_be_reached_says_so_for_topics_too() -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty) as store:
        faulty.down()
        for call in (store.topics, lambda: store.topic("t"), lambda: store.create_topic("t")):
            with pytest.raises(StoreUnavailable):
                call()
        faulty.heal()
        assert store.topics() == []
