"""L09, L25 on lanes: WAL files that are damaged, of an older release, or hold what was deleted."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

import logstore
from logstore.errors import CorruptData
from logstore.format.stored import former_wal, wal
from logstore.layout.paths import PartitionPaths, catalog_key
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore
from tests.support.engine.harness import crash, disk_of, open_store, pairs, running
from tests.support.lanes.wal import (
    MODES,
    left_by_a_crash,
    names,
    opened,
    sections,
    values,
    wal_file,
)


def test_L09_a_damaged_section_stops_its_partition_alone(tmp_path: Path) -> None:
    objects, left, acked = left_by_a_crash(tmp_path, 3)
    path = wal_file(left)
    hit = next(one for one in sections(path) if one.prefix.endswith("/1/"))
    data = bytearray(path.read_bytes())
    data[hit.position + hit.size // 2] ^= 0x40
    path.write_bytes(data)
    with running(objects, wal_dir=left) as again:
        logs = opened(again, 3)
        with pytest.raises(CorruptData, match=path.name) as caught:
            logs[1].append(b"x")
        assert caught.value.offset == 0
        assert pairs(logs[1]) == [], "reading goes on"
        for number in (0, 2):
            logs[number].append(b"after")
            assert pairs(logs[number])[:-1] == acked[number]
    assert path.read_bytes() == data, "evidence is not touched"


def test_L09_a_damaged_directory_stops_everybody_and_is_named(tmp_path: Path) -> None:
    """Whose records the frame held is not known."""
    objects, left, _ = left_by_a_crash(tmp_path, 2)
    path = wal_file(left)
    data = bytearray(path.read_bytes())
    data[data.index(wal.FRAME_MAGIC) + 20] ^= 1
    path.write_bytes(data)
    with running(objects, wal_dir=left) as again:
        for log in opened(again, 2):
            with pytest.raises(CorruptData, match=path.name):
                log.append(b"x")


def as_older_releases_kept_it(disk: Path) -> None:
    """The same records as the releases up to 0.1 left them: a folder and a file of format 1 for each partition."""
    path = wal_file(disk)
    data = path.read_bytes()
    for one in sections(path):
        paths = PartitionPaths.of(one.prefix)
        assert paths is not None
        folder = path.parents[1] / paths.topic / paths.incarnation / str(paths.partition)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{1:020d}.wal"
        payload = data[one.position : one.position + one.size]
        length = struct.pack("<I", len(payload))
        frame = former_wal.FRAME_MAGIC + length + struct.pack("<I", crc32c(payload, crc32c(length))) + payload
        before = file.read_bytes() if file.exists() else wal.pack_header(1, one.epoch, 0)
        file.write_bytes(before + frame)
        (folder / "lock").touch()
    path.unlink()


@pytest.mark.parametrize("settings", MODES, ids=names)
def test_L09_N10_the_wal_of_an_older_release_is_read_back(settings: dict[str, Any], tmp_path: Path) -> None:
    objects, left, acked = left_by_a_crash(tmp_path, 3, **settings)
    as_older_releases_kept_it(left)
    assert len(list(left.rglob("*.wal"))) == 3
    with running(objects, wal_dir=left, **settings) as again:
        for log, expected in zip(opened(again, 3), acked, strict=True):
            after = log.append(b"after", ack="local")
            assert pairs(log) == [*expected, (after.offset, b"after")]
        assert len(list(left.rglob("*.wal"))) == 1, "those of the older release are gone"
    assert list(left.rglob("*.wal")) == []


def test_L09_N10_a_torn_and_a_damaged_wal_of_an_older_release(tmp_path: Path) -> None:
    objects, left, acked = left_by_a_crash(tmp_path, 2)
    as_older_releases_kept_it(left)
    torn, flipped = sorted(left.rglob("*.wal"))
    torn.write_bytes(torn.read_bytes()[:-3])
    data = bytearray(flipped.read_bytes())
    data[wal.HEADER_SIZE + 30] ^= 1
    flipped.write_bytes(data)
    with running(objects, wal_dir=left) as again:
        first, second = opened(again, 2)
        after = first.append(b"after")
        assert pairs(first) == [acked[0][0], (after.offset, b"after")]
        assert first.lost_ranges()[0].start == 1, "the torn one may have been acked, and is said to be lost"
        with pytest.raises(CorruptData, match="1/" + flipped.name):
            second.append(b"x")


def test_L25_what_the_wal_has_of_a_deleted_topic_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(MemoryStore(), wal_dir=tmp_path) as store:
        store.create_topic("gone").append(b"x", ack="local")
        store.delete_topic("gone")
        opened(store, 1)[0].append(b"y", ack="local")
    assert list(tmp_path.rglob("*.wal")) == []


@pytest.mark.parametrize("by", ["this process", "another", "another, and there is one of that name again"])
def test_L25_what_the_wal_has_of_a_deleted_topic_that_this_life_never_opened_goes_with_it(
    by: str, tmp_path: Path
) -> None:
    """And what it has of others stays, also of one whose descriptor has got lost, which is no deletion."""
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, wal_dir=tmp_path / "disk")
    for name in ("gone", "lost", "t"):
        store.create_topic(name).append(b"x", ack="local")
    crash(store, lifeline)
    left = disk_of(tmp_path / "disk", tmp_path / "left")
    objects.delete(catalog_key("lost"))
    with running(objects, wal_dir=left) as again:
        if by == "this process":
            again.delete_topic("gone")
        else:
            with running(objects) as other:
                other.delete_topic("gone")
                if by != "another":
                    other.create_topic("gone")
            again.collect_garbage()
        assert left_of(again) == {"lost", "t"}
        assert pairs(again.topic("t").partition(0)) == []
        again.topic("t").append(b"y", ack="local")
        assert values(pairs(again.topic("t").partition(0))) == [b"x", b"y"]
        assert left_of(again) >= {"lost"}
    assert len(list(left.rglob("*.wal"))) == 1


def left_of(store: logstore.Store) -> set[str]:
    """The topics of which its WAL has something that may be needed."""
    assert store._local_sync is not None
    found = (PartitionPaths.of(prefix) for prefix in store._local_sync.wal._files.held())
    return {paths.topic for paths in found if paths is not None}
