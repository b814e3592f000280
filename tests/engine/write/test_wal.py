"""L09: after kill -9 every record acked `local` is there, at its offset."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from logstore.engine.write.wal import wal_files as wal_module
from logstore.errors import AppendTimeout, CorruptData, StoreUnavailable, UnsupportedStore
from logstore.format.stored.wal import HEADER_SIZE
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import DiskFault, FaultyStore, GatedStore, ManualClock, SimulatedDisk
from tests.support.descriptor_guard import DescriptorGuard
from tests.support.engine.harness import (
    at,
    background,
    copy_of,
    crash,
    disk_of,
    drive,
    numbered,
    open_store,
    pairs,
    partition,
    running,
    until,
)
from tests.support.lanes.held_fsync import HeldFsync
from tests.support.patience import PATIENCE_S


def wal_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.wal"))


def killed(disk: Path, count: int) -> MemoryStore:
    """The store, and in `disk` the WAL, that a process leaves which acked `count` records locally."""
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, wal_dir=str(disk))
    partition(store).append(numbered(0, count), ack="local")
    crash(store, lifeline)
    return objects


def test_L09_every_locally_acked_record_is_there_after_a_crash(any_home: ObjectStore, tmp_path: Path) -> None:
    lifeline = FaultyStore(any_home)
    store = open_store(lifeline, wal_dir=str(tmp_path / "disk"))
    log = partition(store)
    log.append(b"v0", ack="durable")
    log.append(b"v1", ack="buffered")
    receipts = [log.append(value, ack="local") for value in numbered(2, 4)]
    unsynced = log.append(b"gone", ack="buffered")
    crash(store, lifeline)
    disk = disk_of(tmp_path / "disk", tmp_path / "copy")
    with running(any_home, wal_dir=str(disk)) as again:
        log = partition(again)
        after = log.append(b"after", ack="local")
        assert after.offset > unsynced.offset, "an offset that was shown must not be used again"
        assert [receipt.offset for receipt in receipts] == [2, 3, 4, 5]
        assert pairs(log) == [*at(0, numbered(0, 6)), (after.offset, b"after")]
        assert pairs(log, visibility="durable") == at(0, numbered(0, 6)), (
            "what the WAL kept is stored again at once"
        )
        assert [tuple(lost) for lost in log.lost_ranges()] == [(6, after.offset)]


def test_L09_a_second_crash_during_recovery_doubles_nothing(tmp_path: Path) -> None:
    """The fence that carries the WAL's records is committed, but the process died before it deleted the WAL."""
    objects = killed(tmp_path / "disk", 3)
    for life in range(3):
        disk = disk_of(tmp_path / "disk", tmp_path / f"copy-{life}")
        with running(objects, wal_dir=str(disk)) as again:
            log = partition(again)
            log.open_writer()
            assert pairs(log) == at(0, numbered(0, 3))


def three_frames(disk: Path) -> tuple[MemoryStore, list[int]]:
    """A crash after three local acks: the store as it was left, and where in the WAL each frame ends."""
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, wal_dir=str(disk), compression="none")
    log = partition(store)
    ends = []
    for value in numbered(0, 3):
        log.append(value, ack="local")
        ends.append(wal_files(disk)[0].stat().st_size)
    crash(store, lifeline)
    return objects, ends


def test_L09_a_torn_last_frame_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    objects, ends = three_frames(tmp_path / "disk")
    for cut in range(ends[0], ends[2] + 1):
        disk = disk_of(tmp_path / "disk", tmp_path / f"cut-{cut}")
        os.truncate(wal_files(disk)[0], cut)
        whole = sum(end <= cut for end in ends)
        with running(copy_of(objects), wal_dir=str(disk)) as again:
            log = partition(again)
            log.open_writer()
            assert pairs(log) == at(0, numbered(0, whole)), f"cut at byte {cut}"


def test_L09_junk_behind_the_last_frame_is_no_record(tmp_path: Path) -> None:
    objects = killed(tmp_path / "disk", 2)
    disk = disk_of(tmp_path / "disk", tmp_path / "copy")
    with wal_files(disk)[0].open("ab") as file:
        file.write(b"\0" * 300)
    with running(objects, wal_dir=str(disk)) as again:
        log = partition(again)
        log.open_writer()
        assert pairs(log) == at(0, numbered(0, 2))


def test_L09_a_damaged_frame_before_the_end_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    objects, ends = three_frames(tmp_path / "disk")
    for position in range(ends[0], ends[1]):
        disk = disk_of(tmp_path / "disk", tmp_path / f"flip-{position}")
        file = wal_files(disk)[0]
        data = bytearray(file.read_bytes())
        data[position] ^= 0x40
        file.write_bytes(data)
        with running(copy_of(objects), wal_dir=str(disk)) as again:
            log = partition(again)
            with pytest.raises(CorruptData, match=file.name):
                log.append(b"x", ack="local")
            assert pairs(log) == [], "reading goes on"
        assert file.read_bytes() == data, "evidence is not touched"


def test_L09_a_local_ack_does_not_wait_for_an_upload(tmp_path: Path) -> None:
    """Every upload thread hangs in a PUT that the store does not answer."""
    gated = GatedStore(MemoryStore())
    with running(gated, wal_dir=str(tmp_path), uploads_max=1) as store:
        log = partition(store)
        log.append(b"v0", ack="local")
        with gated.hold("put", suffix=".seg") as gate:
            flushed = background(log.flush)
            gate.wait_held()
            receipt = background(log.append, b"v1", ack="local").result(PATIENCE_S)
            assert (receipt.offset, receipt.durability, log.durable_high_watermark) == (1, "local", 0)
            assert pairs(log) == at(0, numbered(0, 2))
        flushed.result(PATIENCE_S)


def test_L09_records_that_wait_together_share_one_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(MemoryStore(), wal_dir=str(tmp_path)) as store:
        log = partition(store)
        log.append(b"v0", ack="local")
        disk = HeldFsync(monkeypatch)
        first = log.submit(b"v1", ack="local")
        disk.wait()
        others = [log.submit(value, ack="local") for value in numbered(2, 50)]
        assert not first.done()
        assert log.buffered_high_watermark == 1, "nothing is shown before it is on disk"
        disk.let_go()
        assert [future.result(PATIENCE_S).offset for future in (first, *others)] == list(range(1, 52))
        assert disk.calls == 2, "one for the first, one for all who came meanwhile"


@pytest.mark.parametrize("call", ["fsync", "write"])
def test_L09_a_disk_that_fails_gives_no_ack_until_it_works(
    call: str, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, clock, wal_dir=str(tmp_path / "disk"))
    log = partition(store)
    log.append(b"v0", ack="local")
    real = getattr(os, call)
    failures: list[int] = []

    def failing(*args: object) -> object:
        if len(failures) < 3:
            failures.append(1)
            raise OSError(errno.EIO, "injected")
        return real(*args)

    monkeypatch.setattr(os, call, failing)
    waiting = log.submit(b"v1", ack="local")
    until(lambda: len(failures) == 1)
    assert not waiting.done()
    assert log.buffered_high_watermark == 1
    drive(clock, waiting)
    monkeypatch.undo()
    log.append(b"v2", ack="local")
    crash(store, lifeline)
    disk = disk_of(tmp_path / "disk", tmp_path / "copy")
    with running(objects, wal_dir=str(disk)) as again:
        log = partition(again)
        log.open_writer()
        assert pairs(log) == at(0, numbered(0, 3))


def test_L09_a_file_that_cannot_be_begun_is_tried_again(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current file is full and the next cannot be opened: the full one must still be closed once, and kept."""
    monkeypatch.setattr(wal_module, "FILE_BYTES", 200)
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, clock, wal_dir=str(tmp_path / "disk"))
    log = partition(store)
    for value in numbered(0, 3):
        log.append(value, ack="local")
    real, failures = os.open, list[Any]()

    def failing(path: object, *args: int) -> int:
        if str(path).endswith(".wal") and len(failures) < 2:
            failures.append(path)
            raise OSError(errno.EMFILE, "injected")
        return real(path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", failing)
    for value in numbered(3, 6):
        drive(clock, log.submit(value, ack="local"))
    assert len(failures) == 2
    log.flush()
    drive(clock, log.submit(b"v9", ack="local"))
    crash(store, lifeline)
    disk = disk_of(tmp_path / "disk", tmp_path / "copy")
    with running(objects, wal_dir=str(disk)) as again:
        log = partition(again)
        log.open_writer()
        assert pairs(log) == at(0, numbered(0, 10))


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_C08_a_file_that_cannot_be_deleted_is_closed_once_and_in_nobodys_way(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, descriptors: DescriptorGuard
) -> None:
    """Meanwhile the host program opens files of its own: they get the numbers that the WAL has given back."""
    monkeypatch.setattr(wal_module, "FILE_BYTES", 200)
    with running(MemoryStore(), wal_dir=str(tmp_path / "disk")) as store:
        log = partition(store)
        for value in numbered(0, 6):
            log.append(value, ack="local")
        log.flush()
        real, refused = os.unlink, []

        def failing(path: object) -> None:
            refused.append(path)
            raise OSError(number, os.strerror(number), str(path))

        monkeypatch.setattr(os, "unlink", failing)
        hosts: list[Any] = []
        for value in numbered(6, 6):
            log.append(value, ack="local")
            hosts.append((tmp_path / f"host-{len(hosts)}").open("wb"))
        assert len(set(refused)) >= 2
        for host in hosts:
            host.write(b"the host program's")
            host.close()
        assert descriptors.misuse == []
        monkeypatch.setattr(os, "unlink", real)
        log.flush()
        log.append(b"after", ack="local")
        assert len(wal_files(tmp_path)) <= 2, "they are deleted once that works"
    assert wal_files(tmp_path) == []


@pytest.mark.parametrize("left", [b"", b"LOGWAL", bytes(36), bytes(5000), b"LOGWAL\r\n\1" + bytes(200)])
def test_C09_a_file_that_was_named_and_never_fsynced_blocks_nothing(left: bytes, tmp_path: Path) -> None:
    objects = killed(tmp_path / "disk", 3)
    disk = disk_of(tmp_path / "disk", tmp_path / "copy")
    first = wal_files(disk)[0]
    first.with_name(f"{2:020d}.wal").write_bytes(left)
    with running(objects, wal_dir=str(disk)) as again:
        log = partition(again)
        log.open_writer()
        assert pairs(log) == at(0, numbered(0, 3))
        log.append(b"after", ack="local")


def test_C09_a_header_that_was_wiped_before_acked_frames_is_damage(tmp_path: Path) -> None:
    objects, _ = three_frames(tmp_path / "disk")
    disk = disk_of(tmp_path / "disk", tmp_path / "copy")
    file = wal_files(disk)[0]
    file.write_bytes(bytes(HEADER_SIZE) + file.read_bytes()[HEADER_SIZE:])
    with running(objects, wal_dir=str(disk)) as again, pytest.raises(CorruptData, match=file.name):
        partition(again).append(b"x", ack="local")


def test_C09_a_full_disk_delays_local_acks_and_no_others(tmp_path: Path, clock: ManualClock) -> None:
    disk = SimulatedDisk()
    with running(MemoryStore(), clock, wal_dir="/wal", disk=disk) as store:
        log = partition(store)
        drive(clock, background(log.append, b"v0", ack="local"))
        disk.hook = lambda call: DiskFault(errno.ENOSPC) if call.name == "write" else None
        early = log.submit(b"v1", ack="local")
        until(lambda: log._internal.health()["wal_error"] is not None)
        with pytest.raises(AppendTimeout, match=r"the WAL could not be written \(No space left on device\)"):
            log.append(b"v2", ack="local", timeout=0.0)
        assert log.append(b"v3", ack="durable").offset == 3
        assert early.result(PATIENCE_S).offset == 1, "what is durable needs no WAL"
        waiting = log.submit(b"v4", ack="local")
        for _ in range(20):
            clock.advance(10.0)
            until(lambda: disk.open_descriptors == ["/wal" + lock_of(disk)])
        assert len([path for path in disk.files() if path.endswith(".wal")]) <= 3, "one for each retry"
        log.flush()
        assert waiting.result(PATIENCE_S).offset == 4
        disk.hook = None
        drive(clock, log.submit(b"v5", ack="local"))
        assert log._internal.health()["wal_error"] is None
        assert disk.misuse == []


def lock_of(disk: SimulatedDisk) -> str:
    (lock,) = [path for path in disk.files() if path.endswith("/lock")]
    return lock.removeprefix("/wal")


def test_C09_folders_that_another_process_made_are_fsynced_too(tmp_path: Path) -> None:
    """It died between mkdir and fsync: whoever finds its folders makes sure of them before it acks."""
    disk = SimulatedDisk()
    for folder in ("/srv", "/srv/wal"):
        disk.mkdir(folder)
    objects = MemoryStore()
    store = open_store(objects, wal_dir="/srv/wal", disk=disk)
    paths = partition(store)._internal.paths
    folder = f"/srv/wal/{store._runtime.store_id}"
    for name in ("", f"/{paths.topic}", f"/{paths.topic}/{paths.incarnation}"):
        disk.mkdir(folder + name)
    partition(store).append(b"v0", ack="local")
    left = disk.after_power_cut()
    crash(store)
    with running(objects, wal_dir="/srv/wal", disk=left) as again:
        log = partition(again)
        log.open_writer()
        assert pairs(log) == at(0, numbered(0, 1))


def test_C13_wal_files_and_folders_are_private_to_their_user(tmp_path: Path) -> None:
    with running(MemoryStore(), wal_dir=str(tmp_path / "disk" / "wal")) as store:
        partition(store).append(b"v0", ack="local")
        made = [tmp_path / "disk", *(tmp_path / "disk").rglob("*")]
        assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
        assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o600}
        assert len(made) == 6, "four folders, the lock and a file"


def test_L09_the_wal_keeps_only_what_is_not_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_module, "FILE_BYTES", 500)
    with running(MemoryStore(), wal_dir=str(tmp_path)) as store:
        log = partition(store)
        for _ in range(20):
            for value in numbered(0, 10):
                log.append(value, ack="local")
            assert len(wal_files(tmp_path)) <= 6
            log.flush()
    assert wal_files(tmp_path) == [], "after a clean close nothing is left"


def test_C09_a_disk_that_refuses_the_wal_is_named(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    disk.hook = lambda call: DiskFault(errno.EROFS) if call.changes else None
    objects = MemoryStore()
    store = open_store(objects, wal_dir="/wal", disk=disk)
    with pytest.raises(UnsupportedStore, match=r"no WAL can be kept here \(Read-only file system\)"):
        partition(store).append(b"x", ack="local")
    disk.hook = None
    partition(store).append(b"v0", ack="local")
    crash(store)
    disk.kill()
    disk.hook = lambda call: DiskFault(errno.EIO) if call.name == "pread" else None
    with running(objects, wal_dir="/wal", disk=disk) as store:
        with pytest.raises(StoreUnavailable, match=r"could not be read back \(Input/output error\)"):
            partition(store).append(b"x")
        disk.hook = None
        log = partition(store)
        log.append(b"after")
        assert pairs(log)[0] == (0, b"v0"), "nobody has written over it"


def test_L09_a_folder_is_used_by_one_process_alone(tmp_path: Path) -> None:
    objects = MemoryStore()
    with running(objects, wal_dir=str(tmp_path)) as first, running(objects, wal_dir=str(tmp_path)) as second:
        partition(first).append(b"v0", ack="local")
        with pytest.raises(UnsupportedStore, match="another process"):
            partition(second).append(b"x", ack="local")
        assert partition(first).append(b"v1", ack="durable").offset == 1, (
            "the attempt must not have fenced it"
        )


def test_L09_records_that_another_writer_declared_lost_are_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects = killed(tmp_path / "disk", 3)
    with running(objects) as elsewhere:
        taken = partition(elsewhere).append(b"elsewhere").offset
    disk = disk_of(tmp_path / "disk", tmp_path / "copy")
    with running(objects, wal_dir=str(disk)) as again:
        log = partition(again)
        after = log.append(b"after").offset
        assert pairs(log) == [(taken, b"elsewhere"), (after, b"after")]
    assert len(list(disk.rglob("*.orphaned"))) == 1
    assert "offsets 0 to 2" in caplog.text


def test_L09_a_reader_may_see_the_recovered_records_before_the_writer_knows(tmp_path: Path) -> None:
    """The fence that brings the WAL back stands, its answer is on its way, and a reader looks at the store."""
    objects = killed(tmp_path / "disk", 3)
    disk = disk_of(tmp_path / "disk", tmp_path / "copy")
    answers = GatedStore(objects)
    with running(answers, wal_dir=str(disk)) as again:
        log = partition(again)
        log.refresh()
        with answers.hold("put", suffix=".seg", after=True) as stored:
            opening = background(log.open_writer)
            (seal,) = stored.wait_held()
            assert seal.key.startswith("lanes/")
            log.refresh()
            stored.release()
            (fence,) = stored.wait_held()
            assert fence.key.startswith("topics/")
            log.refresh()
        opening.result(PATIENCE_S)
        assert pairs(log) == at(0, numbered(0, 3))
        assert log.append(b"after").offset > 2


def test_L09_local_acks_survive_crash_after_crash(tmp_path: Path) -> None:
    """Each life adds records at both levels and dies; the next must hold all of them, at their offsets."""
    objects = MemoryStore()
    expected: list[tuple[int, bytes]] = []
    disk = tmp_path / "disk-0"
    for life in range(6):
        lifeline = FaultyStore(objects)
        store = open_store(lifeline, wal_dir=str(disk))
        log = partition(store)
        log.open_writer()
        assert pairs(log) == expected
        for turn in range(5):
            value = b"%d-%d" % (life, turn)
            receipt = log.append(value, ack="durable" if turn == 2 else "local")
            expected.append((receipt.offset, value))
        crash(store, lifeline)
        disk = disk_of(disk, tmp_path / f"disk-{life + 1}")
    offsets = [offset for offset, _ in expected]
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("look", ["open_writer", "collect_garbage"])
def test_L29_a_store_that_was_closed_does_not_lock_its_wal_again(tmp_path: Path, look: str) -> None:
    """A thread is in the middle of its work when the store is closed, and comes to the WAL after that: whoever opens the
    folder next, in this process or in another, is not refused."""
    gated = GatedStore(MemoryStore())
    disk = str(tmp_path / "disk")
    with running(gated) as creator:
        creator.create_topic("t")
    store = open_store(gated, wal_dir=disk)
    log = store.topic("t").partition(0)
    with gated.hold("list") as gate:
        late = background(log.open_writer if look == "open_writer" else store.collect_garbage)
        gate.wait_held()
        store.close(0.0)
        gate.open()
        late.exception(PATIENCE_S)
    with running(gated, wal_dir=disk) as again:
        assert partition(again).append(b"v", ack="local").offset == 0
