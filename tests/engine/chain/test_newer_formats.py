"""What a newer release has written is refused with a typed error that says so, and is left exactly as it is."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c

import logstore
from logstore.config import WriterKind
from logstore.engine.chain import segment_reader
from logstore.errors import LogStoreError, UnsupportedStore
from logstore.format.errors import UnsupportedVersion
from logstore.format.stored import manifest, segment, wal
from logstore.format.stored.document import pack_document, parse_document
from logstore.format.stored.manifest import SegmentTable
from logstore.format.stored.segment import HEADER_SIZE, SegmentHeader, WriterMode, build_segment
from logstore.objects import MemoryStore
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.harness import background, crash, open_store, pairs, partition, running
from tests.support.engine.newer_release import newer, newer_manifest, newer_segment
from tests.support.patience import PATIENCE_S


def test_L20_the_changed_bytes_are_sound_but_for_their_version() -> None:
    """Else the tests below would show that damage is found, not that a version is refused."""
    data = newer_segment(3, 5)
    assert data[:8] == data[-8:] == segment.MAGIC
    with pytest.raises(UnsupportedVersion, match="segment format 9"):
        SegmentHeader.parse(data)
    with pytest.raises(UnsupportedVersion, match="segment format 9"):
        segment.SegmentSummary.parse(data, len(data))


def test_L20_a_newer_segment_is_refused_and_nothing_is_stored() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        log = partition(store)
        log.append(b"zero")
    objects.put(log._internal.paths.segment(2), newer_segment(2, 1))
    before = {info.key: objects.get(info.key) for info in objects.list("")}
    with running(objects) as store:
        log = store.topic("t").partition(0)
        with pytest.raises(UnsupportedStore, match="newer release") as caught:
            log.read(0)
        assert log._internal.paths.segment(2) in str(caught.value)
        with pytest.raises(UnsupportedStore):
            log.append(b"behind it?")
    assert {info.key: objects.get(info.key) for info in objects.list("")} == before


@pytest.mark.parametrize("whole_bytes", [segment_reader.WHOLE_BYTES, 0])
@pytest.mark.usefixtures("own_chain")
def test_L20_a_newer_segment_that_is_first_met_by_a_read_is_no_damage(
    whole_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer release's maintenance may rewrite what a manifest of ours lists. Nobody should restore it from a copy."""
    monkeypatch.setattr(segment_reader, "WHOLE_BYTES", whole_bytes)
    monkeypatch.setattr(segment_reader, "SCAN_WHOLE_BYTES", whole_bytes)
    objects = MemoryStore()
    with running(objects, cache_bytes=0) as store:
        log = partition(store)
        log.append(b"zero")
        objects.put(log._internal.paths.segment(1), newer_segment(1, 0))
        with pytest.raises(UnsupportedStore, match="newer release") as caught:
            log.read(0)
        assert log._internal.paths.segment(1) in str(caught.value)


@pytest.mark.usefixtures("own_chain")
def test_L20_a_writer_that_meets_a_newer_releases_segment_in_its_place_stops() -> None:
    """A rolling upgrade: the newer release took the partition over while this one was writing."""
    objects = MemoryStore()
    store = open_store(objects)
    log = partition(store)
    log.append(b"zero")
    objects.put(log._internal.paths.segment(2), newer_segment(2, 1))
    for _ in range(2):
        with pytest.raises(UnsupportedStore, match="newer release"):
            log.append(b"one", timeout=30)
    assert store.health()["buffered_bytes"] == 0
    store.close()


@pytest.mark.usefixtures("begin_in_own_chains")
def test_L20_W05_writers_that_race_stop_too_at_a_newer_releases_segment() -> None:
    """However often they look, it stays one that they cannot read: trying again would hide that until a timeout."""
    objects = MemoryStore()
    with running(objects, writer="shared") as store:
        log = partition(store)
        log.append(b"zero")
        objects.put(log._internal.paths.segment(1), newer_segment(1, 1))
        for _ in range(2):
            with pytest.raises(UnsupportedStore, match="newer release"):
                log.append(b"one")
        assert store.health()["buffered_bytes"] == 0
    objects = MemoryStore()
    with running(objects) as store:
        log = partition(store)
        writer = log.replicated("a")
        assert writer.compare_and_append([b"zero"], 0, 1).by == "us"
        objects.put(log._internal.paths.segment(1), newer_segment(1, 1))
        for _ in range(2):
            with pytest.raises(UnsupportedStore, match="newer release"):
                writer.compare_and_append([b"one"], 1, 2)
        assert store.health()["buffered_bytes"] == 0


@pytest.mark.usefixtures("own_chain")
def test_L20_a_newer_manifest_is_refused_and_never_overwritten() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock) as store:
        log = partition(store)
        log.append(b"zero")
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        log.append(b"one")
        data = newer_manifest(objects.get(log._internal.paths.manifest))
        with pytest.raises(UnsupportedVersion):
            manifest.Manifest.parse(data)
        objects.put(log._internal.paths.manifest, data)
        with pytest.raises(UnsupportedStore, match="left alone"):
            log._internal._checkpointer.write()  # type: ignore[union-attr]
        log.append(b"two")
        assert [value for _, value in pairs(log)] == [b"zero", b"one", b"two"]
    assert objects.get(log._internal.paths.manifest) == data
    with open_store(objects, writer="read_only") as store:
        with pytest.raises(UnsupportedStore, match="newer release"):
            store.topic("t").partition(0).read(0)


def test_L20_a_newer_manifest_that_comes_while_maintenance_works_is_never_overwritten() -> None:
    """There was none when it looked at the chain; a newer release writes the first one before it does."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated) as store:
        log = partition(store)
        for value in (b"zero", b"one"):
            log.append(value)
        theirs = newer_manifest(
            manifest.Manifest(1, 3, 1, WriterMode.EXCLUSIVE, 0, 2, 2, -1, SegmentTable()).pack()
        )
        with gated.hold("head", suffix="manifest") as looks:
            trimmed = background(log.delete_before, 1)
            looks.wait_held()
            objects.put(log._internal.paths.manifest, theirs)
        with pytest.raises(UnsupportedStore, match="left alone"):
            trimmed.result(PATIENCE_S)
        assert objects.get(log._internal.paths.manifest) == theirs


def test_L20_a_newer_wal_is_refused_and_left_alone(tmp_path: Path) -> None:
    objects, wal_dir = MemoryStore(), tmp_path / "wal"
    store = open_store(objects, wal_dir=str(wal_dir))
    partition(store).append(b"acked", ack="local")
    crash(store)
    (path,) = wal_dir.rglob("*.wal")
    data = path.read_bytes()
    front = newer(data, wal.HEADER_SIZE - 4)
    changed = front + struct.pack("<I", crc32c(front)) + data[wal.HEADER_SIZE :]
    copy = tmp_path / "copy" / path.relative_to(wal_dir)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(changed)
    with running(objects, wal_dir=str(tmp_path / "copy")) as store:
        with pytest.raises(UnsupportedStore, match="newer release"):
            partition(store).append(b"x")
    assert copy.read_bytes() == changed


@pytest.mark.parametrize("writer", ["exclusive", "read_only"])
def test_L20_a_newer_store_is_refused(writer: WriterKind) -> None:
    objects = MemoryStore()
    open_store(objects).close()
    objects.put("store", pack_document(parse_document(objects.get("store")) | {"format": 2}))
    with pytest.raises(UnsupportedStore, match="use a newer release"):
        logstore.open(objects, writer=writer)
    assert parse_document(objects.get("store"))["format"] == 2


def test_L20_a_newer_topic_is_refused_and_the_others_work() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        store.create_topic("old").append(b"fine")
        store.create_topic("new")
        content = parse_document(objects.get("catalog/new"))
        objects.put("catalog/new", pack_document(content | {"format": 3, "cells": 3}))
        for call in (
            lambda: store.topic("new"),
            lambda: store.create_topic("new", exist_ok=True),
            lambda: store.delete_topic("new"),
        ):
            with pytest.raises(UnsupportedStore, match="use a newer"):
                call()
        assert [record.value for record in store.topic("old").partition(0).records()] == [b"fine"]
        assert store.topics() == ["new", "old"], "it is there, though it cannot be used"


def test_L20_an_unknown_writer_mode_is_a_newer_format() -> None:
    data = bytearray(build_segment(SegmentHeader(0, 1, 0, 0, bytes(16), 0, 0), [])[0])
    data[12] = 200
    data[HEADER_SIZE - 4 : HEADER_SIZE] = struct.pack("<I", crc32c(bytes(data[: HEADER_SIZE - 4])))
    with pytest.raises(UnsupportedVersion, match="writer mode 200"):
        SegmentHeader.parse(data)
    assert not issubclass(UnsupportedVersion, LogStoreError), "callers never see it: the engine translates it"
