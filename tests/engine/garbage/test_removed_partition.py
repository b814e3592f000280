"""L25: a partition that was removed stays empty, whoever wakes up and goes on where the records were."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import suppress
from typing import Any

import pytest

import logstore
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import CorruptData, UnknownTopic
from logstore.format.stored.manifest import Manifest
from logstore.objects import MemoryStore
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.dying import OvertakenAt
from tests.support.engine.harness import background, open_store, pairs, running
from tests.support.patience import PATIENCE_S

GRACE_S = 3600.0


_USES: dict[str, Callable[[PartitionLog], object]] = {
    "append": lambda log: log.append(b"late"),
    "records": pairs,
    "timestamp": lambda log: log.offset_for_timestamp(0),
    "trim": lambda log: log.delete_before(2),
}


@pytest.mark.parametrize("use", _USES)
@pytest.mark.parametrize("writer", ["exclusive", "shared"])
@pytest.mark.usefixtures("own_chain")
def test_L25_a_partition_that_is_removed_while_it_is_opened_and_read_is_unknown_and_not_damaged(
    writer: str, use: str
) -> None:
    """Before each of its requests in turn: what was listed is gone then, or is another object."""
    for request in range(60):
        objects = MemoryStore()
        for _ in range(2):
            with running(objects, writer=writer) as store:
                for _ in range(3):
                    store.create_topic("t", exist_ok=True).append(b"secret")
        overtaken = OvertakenAt(objects)
        with running(objects) as other, running(overtaken, writer=writer) as store:
            log = store.topic("t").partition(0)
            overtaken.overtake_at(request, lambda: other.delete_topic("t"))
            with suppress(UnknownTopic):
                _USES[use](log)
        if not overtaken.overtaken:
            assert request > 5
            return
    raise AssertionError("it made more requests than were thought of")


def secrets(objects: MemoryStore) -> list[str]:
    return [info.key for info in objects.list("") if b"secret" in objects.get(info.key)]


def test_L25_a_shared_writer_that_slept_while_its_peers_went_on_cannot_ack_into_a_deleted_topic() -> None:
    """No fence stands between shared writers: any of their segments may be what a sleeper finds in its place."""
    objects = MemoryStore()
    sleepers = [open_store(objects, writer="shared") for _ in range(3)]
    logs = []
    for sleeper in sleepers:  # each has seen one segment more than the one before, and then sleeps
        log = sleeper.create_topic("t", exist_ok=True).partition(0)
        log.append(b"secret")
        logs.append(log)
    with running(objects) as store:
        store.delete_topic("t")
        for log in logs:
            for _ in range(2):
                with pytest.raises(UnknownTopic, match="deleted"):
                    log.append(b"late secret")
        assert secrets(objects) == []
        assert store.collect_garbage() == []
        assert store.create_topic("t").append(b"new").offset == 0
    for sleeper in sleepers:
        sleeper.close()


def test_L25_a_replicated_writer_that_slept_while_its_peer_went_on_cannot_store_into_a_deleted_topic() -> (
    None
):
    objects = MemoryStore()
    asleep, awake = open_store(objects), open_store(objects)
    sleeper = asleep.create_topic("t").partition(0).replicated("one")
    sleeper.compare_and_append([b"secret"], 0, 1)
    peer = awake.topic("t").partition(0).replicated("two")
    for number in range(1, 4):
        peer.compare_and_append([b"secret"], number, number + 1)
    with running(objects) as store:
        store.delete_topic("t")
    with pytest.raises(UnknownTopic, match="deleted"):
        sleeper.compare_and_append([b"late secret"], 1, 2)
    assert secrets(objects) == []
    asleep.close()
    awake.close()


@pytest.mark.usefixtures("own_chain")
def test_L25_an_exclusive_writer_that_shared_ones_followed_cannot_ack_into_a_deleted_topic() -> None:
    objects = MemoryStore()
    asleep = open_store(objects)
    log = asleep.create_topic("t").partition(0)
    log.append(b"secret")
    with running(objects, writer="shared") as shared:
        for _ in range(3):
            shared.topic("t").append(b"secret")
    with running(objects) as store:
        store.delete_topic("t")
    with pytest.raises((UnknownTopic, logstore.Fenced)):
        log.append(b"late secret")
    assert secrets(objects) == []
    asleep.close()


@pytest.mark.parametrize("on_its_way", [False, True])
def test_W06_a_shared_writer_that_slept_until_its_place_was_collected_is_told_that_the_topic_is_gone(
    on_its_way: bool,
) -> None:
    """Its peers' segments were merged and collected, then the topic was deleted. The header that collection has left in its
    place tells it, also behind a PUT that was on its way."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    asleep = open_store(gated, clock, writer="shared", delete_grace=GRACE_S)
    log = asleep.create_topic("t").partition(0)
    log.append(b"secret")
    with gated.hold("put", suffix=".seg") as gate:
        if on_its_way:
            late = log.submit(b"late secret")
            gate.wait_held()
        with running(objects, clock, writer="shared", delete_grace=GRACE_S) as peer:
            other = peer.topic("t").partition(0)
            for _ in range(8):
                other.append(b"secret")
            assert other._internal.maintenance.compact(clock.now_ms(), bytes(16)) >= 4
            clock.advance(2 * GRACE_S)
            assert log._internal.paths.segment(1) in [
                item.key for item in other._internal.maintenance.collect(clock.now_ms())
            ]
        with running(objects, clock) as store:
            store.delete_topic("t")
    if on_its_way:
        with pytest.raises(UnknownTopic, match="the topic was deleted"):
            late.result(PATIENCE_S)
    with pytest.raises(UnknownTopic):
        log.append(b"later secret")
    assert secrets(objects) == []
    with running(objects, clock) as store:
        assert store.collect_garbage(dry_run=True) == []
    asleep.close()


@pytest.mark.usefixtures("own_chain")
def test_L25_a_merge_that_ends_after_the_deletion_takes_its_object_away_again() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated) as merging, running(objects) as store:
        log = merging.create_topic("t").partition(0)
        for _ in range(8):
            log.append(b"secret")
        with gated.hold("put", suffix=".seg") as gate:
            merge = background(log._internal.maintenance.compact, 0, bytes(16))
            gate.wait_held()
            store.delete_topic("t")
        assert merge.result(PATIENCE_S) == 0
        assert secrets(objects) == []
        assert store.collect_garbage(dry_run=True) == []


@pytest.mark.usefixtures("own_chain")
def test_L25_a_merge_that_died_after_the_deletion_leaves_what_the_next_sweep_takes() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        log = store.create_topic("t").partition(0)
        for _ in range(3):
            log.append(b"secret")
        data = objects.get(log.segments()[0].key)
        store.delete_topic("t")
        stray = log._internal.paths.merged(1, 2, "0" * 32)
        fresh = store.create_topic("t")
        fresh.append(b"the next topic's")
        for topic in ("t", None):
            objects.put(stray, data)
            assert [item.key for item in store.collect_garbage(topic, dry_run=True)] == [stray]
            assert [item.key for item in store.collect_garbage(topic)] == [stray]
            assert secrets(objects) == []
        assert pairs(fresh.partition(0)) == [(0, b"the next topic's")]


@pytest.mark.usefixtures("own_chain")
def test_L25_records_that_no_descriptor_names_are_left_alone_unless_their_chain_says_that_they_are_gone() -> (
    None
):
    """A descriptor that was lost, or restored from an old copy, must not make a sweep delete what it once named."""
    objects = MemoryStore()
    with running(objects) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"secret")
        named = objects.get("catalog/t")
        objects.delete("catalog/t")
        assert store.collect_garbage() == []
        store.create_topic("t").append(b"another")
        assert store.collect_garbage() == []
        objects.put("catalog/t", named)
        assert store.collect_garbage() == []
        assert secrets(objects) == [log._internal.paths.segment(1)]


def test_L20_a_damaged_segment_of_a_deleted_topic_leaves_no_free_place_and_no_record() -> None:
    objects = MemoryStore()
    asleep = open_store(objects, writer="shared")
    log = asleep.create_topic("t").partition(0)
    log.append(b"secret")
    with running(objects, writer="shared") as peer:
        for _ in range(3):
            peer.topic("t").append(b"secret")
    objects.put(log._internal.paths.segment(1), b"scribble over a secret")
    with running(objects) as store:
        store.delete_topic("t")
        assert secrets(objects) == []
        assert store.collect_garbage(dry_run=True) == []
    with pytest.raises((UnknownTopic, CorruptData)):
        log.append(b"late secret")
    assert secrets(objects) == []
    asleep.close()


@pytest.mark.parametrize("change", ["expire", "merge", "checkpoint"])
@pytest.mark.usefixtures("own_chain")
def test_L25_no_manifest_hides_that_a_partition_was_removed(change: str) -> None:
    """Somebody who has seen the chain's end writes one when all else is gone. It covered the end, and was taken for the
    whole of a living partition: no sweep found it, nor what a writer that slept stored behind it."""
    objects = MemoryStore()
    gated, deleting = GatedStore(objects), GatedStore(objects)
    with running(objects) as writing:
        for _ in range(8):
            writing.create_topic("t", exist_ok=True).append(b"secret")
    with running(gated) as other, running(deleting) as store:
        log = other.topic("t").partition(0)
        upkeep = log._internal.maintenance
        with deleting.hold("delete", suffix=".seg") as removal, gated.hold("put", suffix="manifest") as gate:
            deletion = background(store.delete_topic, "t")
            removal.wait_held()  # the end stands, and so do the records
            log.refresh()
            calls: dict[str, Callable[[], Any]] = {
                "expire": lambda: upkeep.delete_before(3, 0),
                "merge": lambda: upkeep.compact(0, bytes(16)),
                "checkpoint": lambda: log._internal._checkpointer.write(),  # type: ignore[union-attr]
            }
            changing = background(calls[change])
            wait([changing, background(gate.wait_held)], return_when=FIRST_COMPLETED)
            removal.open()
            deletion.result(PATIENCE_S)
        with suppress(UnknownTopic):
            changing.result(PATIENCE_S)
        store.collect_garbage()
        tombstone = Manifest.parse(objects.get(log._internal.paths.manifest))
        assert (len(tombstone.table), tombstone.low_watermark) == (0, tombstone.end_offset)
        assert secrets(objects) == []
