"""L09 on lanes: one WAL for all partitions of a process. One fsync acks them all; after kill -9 each finds its own records
there, at their offsets, whatever happened to the others."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.engine.write.wal import local_sync, wal_files
from logstore.engine.write.wal.wal import ORPHAN_SUFFIX
from logstore.errors import Fenced, OutcomeUnknown
from logstore.format.stored import wal
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore
from tests.support.engine.harness import crash, disk_of, open_store, pairs, running
from tests.support.lanes.held_fsync import HeldFsync
from tests.support.lanes.wal import (
    MODES,
    left_by_a_crash,
    names,
    opened,
    sections,
    values,
    wal_file,
)
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize("settings", [{"lanes": 1}, {"lanes": 0}], ids=names)
def test_L09_N01_a_round_of_64_partitions_is_one_fsync(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(MemoryStore(), wal_dir=tmp_path, **settings) as store:
        logs = opened(store, 65)
        for log in logs:
            log.append(b"0", ack="local")
        disk = HeldFsync(monkeypatch)
        first = logs[64].submit(b"1", ack="local")
        disk.wait()
        others = [log.submit(b"1", ack="local") for log in logs[:64]]
        assert not any(future.done() for future in others)
        assert {log.buffered_high_watermark for log in logs} == {1}, "nothing is shown before it is on disk"
        disk.let_go()
        assert {future.result(PATIENCE_S).offset for future in (first, *others)} == {1}
        assert disk.calls == 2, "one for the first, one for the other 64 together"
        monkeypatch.undo()
    assert list(tmp_path.rglob("*.wal")) == [], "after a clean close nothing is left"


def test_L09_a_long_queue_is_written_in_frames_that_have_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame lies in memory a second time: two partitions fill one here, and seven wait together."""
    monkeypatch.setattr(local_sync, "FRAME_BYTES", 300)
    with running(MemoryStore(), wal_dir=tmp_path, compression="none") as store:
        logs = opened(store, 8)
        for log in logs:
            log.append(b"0", ack="local")
        before = wal_file(tmp_path).read_bytes().count(wal.FRAME_MAGIC)
        disk = HeldFsync(monkeypatch)
        waiting = [logs[7].submit(b"1", ack="local")]
        disk.wait()
        waiting += [log.submit(b"1" * 150, ack="local") for log in logs[:7]]
        disk.let_go()
        assert {future.result(PATIENCE_S).offset for future in waiting} == {1}
        assert wal_file(tmp_path).read_bytes().count(wal.FRAME_MAGIC) == before + 1 + 4
        monkeypatch.undo()


@pytest.mark.parametrize("settings", MODES, ids=names)
def test_L09_every_partition_finds_its_own_records_after_kill_9(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    objects, left, acked = left_by_a_crash(tmp_path, 8, **settings)
    assert len({one.prefix for one in sections(wal_file(left))}) == 8, "all of them in one file"
    with running(objects, wal_dir=left, **settings) as again:
        for log, expected in zip(opened(again, 8), acked, strict=True):
            after = log.append(b"after")
            assert pairs(log) == [*expected, (after.offset, b"after")]
    assert list(left.rglob("*.wal")) == []


@pytest.mark.parametrize("settings", MODES, ids=names)
def test_L09_a_partition_that_nobody_opens_keeps_its_records_over_many_lives(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Only the first is used in the lives between, some of which are killed, some closed."""
    objects, disk, acked = left_by_a_crash(tmp_path, 3, **settings)
    for life in range(4):
        lifeline = FaultyStore(objects)
        store = open_store(lifeline, wal_dir=disk, **settings)
        log = opened(store, 3)[0]
        value = b"life %d" % life
        acked[0].append((log.append(value, ack="local").offset, value))
        assert pairs(log) == acked[0]
        if life % 2:
            store.close()
        else:
            crash(store, lifeline)
        disk = disk_of(disk, tmp_path / f"life-{life}")
    with running(objects, wal_dir=disk, **settings) as store:
        for log, expected in zip(opened(store, 3), acked, strict=True):
            log.append(b"after")
            assert pairs(log)[:-1] == expected
    assert list(disk.rglob("*.wal")) == []
    assert list(disk.rglob("*.orphaned")) == []


@pytest.mark.parametrize("settings", MODES, ids=names)
def test_L09_a_partition_that_moved_away_meanwhile_gets_nothing_twice_and_the_others_all(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects, left, acked = left_by_a_crash(tmp_path, 3, **settings)
    with running(objects, take_over=True, lanes=1) as elsewhere:
        theirs = opened(elsewhere, 3)[1].append(b"elsewhere").offset
    assert theirs > acked[1][-1][0], "an offset that was shown is not used again"
    with running(objects, wal_dir=left, **settings) as again:
        logs = opened(again, 3)
        after = logs[1].append(b"after").offset
        assert pairs(logs[1]) == [(theirs, b"elsewhere"), (after, b"after")]
        for number in (0, 2):
            logs[number].append(b"after")
            assert pairs(logs[number])[:-1] == acked[number]
    (aside,) = left.rglob("*.orphaned")
    kept = aside.read_bytes()
    assert all(value in kept for _, value in acked[1])
    assert "offsets 0 to 1 were acked here (local)" in caplog.text
    assert list(left.rglob("*.wal")) == []


def test_L09_what_the_next_life_of_the_lane_passed_over_elsewhere_is_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It went on under the same epoch, on another machine, without this disk; then the lane comes back here."""
    objects, left, acked = left_by_a_crash(tmp_path, 2, lane="orders")
    with running(objects, lane="orders") as elsewhere:
        theirs = opened(elsewhere, 2)[0].append(b"elsewhere").offset
    with running(objects, lane="orders", wal_dir=left) as again:
        first, second = opened(again, 2)
        after = first.append(b"after").offset
        assert pairs(first) == [(theirs, b"elsewhere"), (after, b"after")]
        second.append(b"after")
        assert pairs(second)[:-1] == acked[1]
    (aside,) = left.rglob("*.orphaned")
    assert all(value in aside.read_bytes() for _, value in acked[0])
    assert "offsets 0 to 1" in caplog.text


@pytest.mark.parametrize("theirs", [5, 3], ids=["where one of ours begins", "elsewhere"])
def test_L09_what_was_never_acked_is_not_stored_behind_the_records_of_another_life(
    theirs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durable appends past the reservation wait for their entry as the WAL is written, and the process is killed. The next
    life goes on elsewhere, under the same epoch, and ends where one of them begins, or between two. Then the lane comes
    back to this disk: they were lost with the life that had them, and are in nobody's way."""
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, wal_dir=tmp_path / "disk", compression="none", lane="orders")
    log = opened(store, 1)[0]
    log.append(b"0", ack="local")
    reserved = log._internal.state.tail.reserved_until
    lifeline.down()
    disk = HeldFsync(monkeypatch)
    local = [log.submit(b"1", ack="local")]
    disk.wait()
    local.append(log.submit(b"2", ack="local"))
    for count, size in ((reserved - 3, 8), (5, 50_000), (4, 50_000)):  # each is a batch of its own
        log.submit([bytes(size)] * count, ack="durable")
    disk.let_go()
    assert [future.result(PATIENCE_S).offset for future in local] == [1, 2]
    monkeypatch.undo()
    crash(store, lifeline)
    left = disk_of(tmp_path / "disk", tmp_path / "left")
    with running(objects, lane="orders") as elsewhere:
        assert opened(elsewhere, 1)[0].append([b"elsewhere"] * theirs).offset == reserved
    with running(objects, lane="orders", wal_dir=left) as again:
        log = opened(again, 1)[0]
        assert log.append(b"after").offset == reserved + theirs
        assert values(pairs(log)) == [*[b"elsewhere"] * theirs, b"after"]
    (aside,) = left.rglob("*.orphaned")
    assert aside.name == f"1-from-0-to-2.wal{ORPHAN_SUFFIX}", "what was acked, and nothing else"
    assert list(left.rglob("*.wal")) == []


def test_L09_records_of_a_writer_that_was_fenced_alive_are_kept_aside_when_it_is_reopened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects = MemoryStore()
    store = open_store(objects, wal_dir=tmp_path, compression="none")
    first, second = opened(store, 2)
    first.append(b"only here", ack="local")
    second.append(b"beside it", ack="local")
    with running(objects, take_over=True) as other:
        theirs = opened(other, 2)[0].append(b"theirs").offset
    with pytest.raises(Fenced):
        first.append(b"refused")
    first.refresh()
    fresh = first.reopen()
    mine = fresh.append(b"mine", ack="local").offset
    assert pairs(fresh) == [(theirs, b"theirs"), (mine, b"mine")]
    (aside,) = tmp_path.rglob("*.orphaned")
    assert b"only here" in aside.read_bytes()
    assert "offsets 0 to 0 were acked here (local)" in caplog.text
    assert second.append(b"goes on", ack="local").offset == 1
    with pytest.raises(OutcomeUnknown, match="offsets 0 to 0"):
        store.close()
    assert list(tmp_path.rglob("*.wal")) == []


def test_N04_the_next_life_of_a_lane_with_a_wal_asks_nothing_of_partitions_without_records_there(
    tmp_path: Path,
) -> None:
    """Of 40 partitions one has records in the WAL: it is taken over, the others are adopted with the lane."""
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, lane="orders", wal_dir=tmp_path / "disk")
    logs = opened(store, 40)
    for log in logs:
        log.append(b"durable")
    local = logs[7].append(b"local", ack="local").offset
    crash(store, lifeline)
    left = disk_of(tmp_path / "disk", tmp_path / "left")
    with running(objects, lane="orders", wal_dir=left) as again:
        logs = opened(again, 40)
        logs[0].append(b"after")
        before = sum(stats.requests for stats in again.metrics().values())
        for number in (*range(1, 7), *range(8, 40)):
            logs[number].append(b"after")
        asked = sum(stats.requests for stats in again.metrics().values()) - before
        assert 38 <= asked <= 42, (
            "one for an append, none for the opening of its writer, a checkpoint on the way"
        )
        logs[7].append(b"after")
        assert pairs(logs[7])[1] == (local, b"local")
        assert values(pairs(logs[8])) == [b"durable", b"after"]


@pytest.mark.parametrize("seed", range(12))
def test_L09_histories_of_kills_moves_and_lives(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three partitions in one WAL, with small files. Local and durable appends, flushes, kills, partitions that another
    process takes while this one is down, partitions that a life never opens, a change between lane, name and own chain. At
    the end each acked record is at its offset; or, if it was acked `local` and another process came first, in a file aside.
    """
    monkeypatch.setattr(wal_files, "FILE_BYTES", 400)
    rng = random.Random(seed)
    objects = MemoryStore()
    disk = tmp_path / "disk-0"
    disk.mkdir()
    acked: list[dict[int, bytes]] = [{} for _ in range(3)]
    on_disk_alone: list[dict[int, bytes]] = [{} for _ in range(3)]
    passed_over: list[dict[int, bytes]] = [{} for _ in range(3)]
    for life in range(8):
        lifeline = FaultyStore(objects)
        settings = rng.choice([*MODES, MODES[2]])
        store = open_store(lifeline, wal_dir=disk, compression="none", take_over=True, **settings)
        logs = opened(store, 3)
        used, open_here = rng.sample(range(3), rng.randint(1, 3)), set[int]()
        for turn in range(rng.randint(2, 12)):
            number = rng.choice(used)
            value = b"life %d turn %d" % (life, turn)
            ack = rng.choice(["local", "local", "durable"])
            offset = logs[number].append(value, ack=ack).offset  # type: ignore[arg-type]
            assert offset not in acked[number], "an offset that was acked is given away"
            acked[number][offset] = value
            if number not in open_here:  # what the WAL had of it was stored as it was opened
                open_here.add(number)
                on_disk_alone[number].clear()
            if ack == "durable":
                on_disk_alone[number].clear()
            else:
                on_disk_alone[number][offset] = value
            if rng.random() < 0.1:
                logs[number].flush()
                on_disk_alone[number].clear()
        crash(store, lifeline)
        disk = disk_of(disk, tmp_path / f"disk-{life + 1}")
        if rng.random() < 0.4:
            number = rng.randrange(3)
            elsewhere = {"lane": "orders"} if rng.random() < 0.3 else {"lanes": rng.randint(0, 1)}
            with running(objects, take_over=True, **elsewhere) as other:
                value = b"elsewhere %d" % life
                offset = opened(other, 3)[number].append(value).offset
                assert offset not in acked[number]
                acked[number][offset] = value
                passed_over[number] |= on_disk_alone[number]
                on_disk_alone[number].clear()
    with running(objects, wal_dir=disk, take_over=True) as store:
        for log in opened(store, 3):
            log.open_writer()
    with running(objects, writer="read_only") as reader:
        for number, log in enumerate(opened_for_reading(reader)):
            found = pairs(log)
            assert dict(found) == {
                offset: value for offset, value in acked[number].items() if offset not in passed_over[number]
            }
            assert len(found) == len(dict(found)), "twice"
    aside = b"".join(path.read_bytes() for path in disk.rglob("*.orphaned"))
    for one in passed_over:
        assert all(value in aside for value in one.values())
    assert list(disk.rglob("*.wal")) == []


def opened_for_reading(store: logstore.Store) -> list[logstore.PartitionLog]:
    topic = store.topic("t")
    return [topic.partition(number) for number in range(3)]


_CHILD = """
import sys, logstore
objects, wal, lane = sys.argv[1:]
store = logstore.open(objects, wal_dir=wal, ack="local", flush_interval=3600.0, lane=lane or None)
topic = store.create_topic("t", 8)
turn = 0
while True:
    waiting = [topic.partition(number).submit(b"%d of %d" % (turn, number)) for number in range(8)]
    for number, future in enumerate(waiting):
        print(number, future.result().offset, turn, flush=True)
    turn += 1
"""


@pytest.mark.parametrize("lane", ["", "orders"])
def test_L09_kill_9_of_a_process_that_acks_many_partitions_from_one_wal(lane: str, tmp_path: Path) -> None:
    """A real process and a real signal, while it writes the next frame."""
    objects, disk = tmp_path / "objects", tmp_path / "wal"
    words = [sys.executable, "-c", _CHILD, str(objects), str(disk), lane]
    acked: list[dict[int, bytes]] = [{} for _ in range(8)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if not line.endswith("\n"):
                break  # it was killed as it wrote it
            number, offset, turn = map(int, line.split())
            acked[number][offset] = b"%d of %d" % (turn, number)
            if turn == 20:
                child.kill()
    assert all(len(one) >= 20 for one in acked)
    with logstore.open(objects, wal_dir=disk, lane=lane or None) as again:
        for number, expected in enumerate(acked):
            log = again.topic("t").partition(number)
            log.open_writer()
            found = dict(pairs(log))
            assert {offset: found.get(offset) for offset in expected} == expected
            assert list(found.values()) == [b"%d of %d" % (turn, number) for turn in range(len(found))]
    assert list(disk.rglob("*.wal")) == []
