"""L09, L20: damage to a WAL is named; or it looks like a torn end, and what is missing is said to be lost.

There is never a wrong record, and never one that is missing without a word.

Three records are acked `local`, each in a frame of its own, and the process dies before any of them is durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore.errors import CorruptData
from logstore.format.stored.wal import FRAME_MAGIC, HEADER_SIZE, parse_frames
from logstore.objects import MemoryStore
from tests.support.engine.damage import Damaged, cuts, extensions, flips, shifts, swaps
from tests.support.engine.harness import copy_of, crash, open_store, pairs, partition

VALUES = [b"first", b"second", b"third"]


class Left:
    """What the dead process left behind: objects, and one WAL file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies = 0
        self.objects = MemoryStore()
        wal_dir = folder / "wal"
        store = open_store(self.objects, wal_dir=str(wal_dir))
        log = partition(store)
        for number, value in enumerate(VALUES):
            assert log.append(value, ack="local").offset == number
        assert log.durable_high_watermark == 0
        (path,) = wal_dir.rglob("*.wal")
        self.name = path.relative_to(wal_dir)
        self.data = path.read_bytes()
        crash(store)
        sections, end = parse_frames(self.data)
        assert (len(sections), end) == (3, len(self.data))
        self.last_frame = self.data.rindex(FRAME_MAGIC)

    def reopen(self, data: bytes) -> tuple[logstore.Store, Path]:
        """A new process on a copy of all that, with this in the WAL file."""
        self._copies += 1
        wal_dir = self._folder / f"copy-{self._copies}"
        path = wal_dir / self.name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        return open_store(copy_of(self.objects), wal_dir=str(wal_dir)), path


@pytest.fixture
def left(tmp_path: Path) -> Left:
    return Left(tmp_path)


def recover(left: Left, name: str, data: bytes) -> list[bytes] | CorruptData:
    """The acked records that came back, after every promise about the others was checked; or the error."""
    store, path = left.reopen(data)
    log = store.topic("t").partition(0)
    try:
        ours = log.append(b"the next writer's")
    except CorruptData as damage:
        assert path.read_bytes() == data, f"{name}: it was reported, and still the file was touched"
        assert pairs(log) == [], f"{name}: reading needs no WAL"
        store.close()
        return damage
    found = dict(pairs(log))
    lost = {offset for one in log.lost_ranges() for offset in range(one.start, min(one.end, 3))}
    store.close()
    assert found.pop(ours.offset) == b"the next writer's"
    assert ours.offset >= 3, f"{name}: an acked offset was given away"
    for offset, value in enumerate(VALUES):
        assert found.get(offset, value) == value, f"{name}: a wrong record at {offset}"
        assert (offset in found) != (offset in lost), f"{name}: offset {offset} is missing and nobody says so"
    assert list(found) == list(range(len(found))), f"{name}: a hole"
    return list(found.values())


def test_L09_what_was_acked_local_comes_back_at_its_offset(left: Left) -> None:
    assert recover(left, "sound", left.data) == VALUES


def test_L20_every_flipped_byte_of_a_wal(left: Left) -> None:
    for position, (name, data) in enumerate(flips(left.data)):
        found = recover(left, name, data)
        if position < left.last_frame:
            assert isinstance(found, CorruptData), f"{name}: a damaged frame before the end went unnoticed"
            assert found.key.endswith(str(left.name)), name
            assert found.offset == 0, name
        else:
            assert found == VALUES[:2], f"{name}: the last frame looks torn and is cut off"


def test_L09_a_torn_last_frame_is_cut_off_at_every_length(left: Left) -> None:
    for name, data in cuts(left.data):
        found = recover(left, name, data)
        assert isinstance(found, list), f"{name}: {found}"
        if len(data) >= left.last_frame:
            assert found == VALUES[:2], name


def test_L20_added_moved_and_exchanged_bytes_of_a_wal(left: Left) -> None:
    def kinds() -> Iterator[Damaged]:
        yield from shifts(left.data, 5)
        yield from swaps(left.data, 16)

    for name, data in extensions(left.data):
        found = recover(left, name, data)
        if name == "a byte in front":
            assert isinstance(found, CorruptData)
        elif name in ("one byte more", "zeros behind it"):
            assert found == VALUES, name
    for name, data in kinds():
        recover(left, name, data)


def test_L20_a_frame_that_is_there_twice_is_named(left: Left) -> None:
    doubled = left.data + left.data[left.last_frame :]
    found = recover(left, "the last frame twice", doubled)
    assert isinstance(found, CorruptData)
    assert "goes on at offset 2" in str(found)


def test_L20_a_missing_file_before_another_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from logstore.engine.write.wal import wal_files as wal

    monkeypatch.setattr(wal, "FILE_BYTES", HEADER_SIZE + 1)  # a file for each frame
    objects, wal_dir = MemoryStore(), tmp_path / "wal"
    store = open_store(objects, wal_dir=str(wal_dir))
    for value in VALUES:
        partition(store).append(value, ack="local")
    first, second, third = sorted(wal_dir.rglob("*.wal"))
    crash(store)
    copy = tmp_path / "copy"
    for path in (first, third):
        target = copy / path.relative_to(wal_dir)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    with open_store(objects, wal_dir=str(copy)) as again:
        with pytest.raises(CorruptData, match="goes on at offset 2") as caught:
            partition(again).append(b"x")
        assert caught.value.offset == 1
    (copy / second.relative_to(wal_dir)).write_bytes(second.read_bytes())
    with open_store(objects, wal_dir=str(copy)) as again:
        log = partition(again)
        log.append(b"x")
        assert [value for _, value in pairs(log)][:3] == VALUES


def test_L09_orphaned_files_of_several_takeovers_are_all_kept(tmp_path: Path) -> None:
    """Twice another process takes over before the WAL is durable: both files stay, under names of their own."""
    objects = MemoryStore()
    for turn in range(2):
        wal_dir = tmp_path / f"wal-{turn}"
        if turn:
            _copy(tmp_path / f"wal-{turn - 1}", wal_dir)
        store = open_store(objects, wal_dir=str(wal_dir))
        partition(store).append(b"only here %d" % turn, ack="local")
        crash(store)
        with open_store(objects) as other:
            partition(other).append(b"other %d" % turn)
    last = tmp_path / "wal-last"
    _copy(tmp_path / "wal-1", last)
    with open_store(objects, wal_dir=str(last)) as store:
        partition(store).append(b"goes on")
    kept = sorted(last.rglob("*.orphaned"))
    assert len(kept) == 2
    contents = [path.read_bytes() for path in kept]
    assert all(any(b"only here %d" % turn in content for content in contents) for turn in range(2))


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
