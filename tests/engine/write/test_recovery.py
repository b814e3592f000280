"""Recovery that is itself interrupted: whatever happened to the last attempt, the next one finds every acked record once."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import Fenced, Indeterminate, LogStoreError, StoreUnavailable
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
    at,
    background,
    copy_of,
    crash,
    disk_of,
    drive,
    open_store,
    pairs,
    partition,
    running,
    stored,
)
from tests.support.patience import PATIENCE_S

DURABLE = [b"durable-0", b"durable-1"]
LOCAL = [b"local-2", b"local-3", b"local-4"]
ACKED = DURABLE + LOCAL


class Left:
    """What a process left that died with two durable and three local records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies = 0
        self.objects = MemoryStore()
        self.wal_dir = folder / "wal"
        store = open_store(self.objects, wal_dir=str(self.wal_dir))
        log = partition(store)
        log.append(DURABLE, ack="local")
        log.flush()
        for value in LOCAL:
            log.append(value, ack="local")
        self.reserved_until = log._internal.state.tail.reserved_until
        crash(store)

    def disk(self, source: Path | None = None) -> Path:
        """A copy of a disk that no living process has locked."""
        self._copies += 1
        return disk_of(source or self.wal_dir, self._folder / f"copy-{self._copies}")


@pytest.fixture
def left(tmp_path: Path) -> Left:
    return Left(tmp_path)


def check_all(log: PartitionLog, left: Left) -> None:
    """Every acked record once, at its offset; the next one behind everything that anybody may have seen."""
    next_offset = log.append(b"next").offset
    assert pairs(log) == [*at(0, ACKED), (next_offset, b"next")]
    assert next_offset >= left.reserved_until


def test_L09_L17_what_was_acked_comes_back_and_the_rest_of_the_reservation_is_lost(left: Left) -> None:
    with running(left.objects, wal_dir=str(left.disk())) as store:
        log = partition(store)
        check_all(log, left)
        assert log.lost_ranges() == [(len(ACKED), left.reserved_until)]
    with open_store(left.objects, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert log.lost_ranges() == [(len(ACKED), left.reserved_until)]
        assert [value for _, value in pairs(log)] == [*ACKED, b"next"]
        result = log.read(len(ACKED))
        assert [record.value for record in result.records()] == [b"next"]
        assert result.lost == ((len(ACKED), left.reserved_until),)


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("outcome", ["refused", "carried out", "lost"])
def test_L09_W04_a_recovery_that_dies_at_any_put_is_finished_by_the_next(
    left: Left, step: int, outcome: str
) -> None:
    """Three puts: a seal in the lane of the one that died, a fence that carries the records of the WAL, and an empty segment
    that says where the offsets go on."""
    objects, clock = copy_of(left.objects), ManualClock()
    faulty = FaultyStore(objects)
    gated = GatedStore(faulty)
    disk = left.disk()
    dying = open_store(gated, clock, wal_dir=str(disk))
    log = partition(dying)
    with gated.hold("put", suffix=".seg", after=outcome == "carried out") as gate:
        opening = background(log.open_writer, timeout=5.0)
        for _ in range(step):
            gate.wait_held()
            gate.release()
        gate.wait_held()
        faulty.down()
        gate.fail(StoreUnavailable("down") if outcome == "refused" else Indeterminate("nobody knows"))
        gate.open()
        with pytest.raises(LogStoreError):
            drive(clock, opening)
    crash(dying)
    with open_store(objects, writer="read_only") as reader:
        stored = pairs(reader.topic("t").partition(0))
        landed = step == 2 or (step == 1 and outcome == "carried out")
        assert stored == at(0, ACKED if landed else DURABLE)
    with running(objects, wal_dir=str(left.disk(disk))) as store:
        check_all(partition(store), left)


@pytest.mark.parametrize("born", ["in a lane", "in its own chain"])
def test_L09_N03_who_takes_over_between_the_puts_of_a_recovery_loses_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, born: str
) -> None:
    """The last put is held while another process takes the partition and appends: of the two one is its owner, and what
    anybody was told is there for all."""
    if born == "in its own chain":
        request.getfixturevalue("begin_in_own_chains")
    left = Left(tmp_path)
    gated = GatedStore(left.objects)
    recovering = open_store(gated, wal_dir=str(left.disk()))
    log = partition(recovering)
    with gated.hold("put", suffix=".seg") as gate:
        opening = background(log._internal.open_writer, timeout=5.0, ack="local")
        for _ in range(2):
            gate.wait_held()
            gate.release()
        gate.wait_held()
        with running(left.objects, take_over=True) as other:
            taken = partition(other).append(b"elsewhere").offset
            assert taken >= left.reserved_until
            gate.open()
            opening.result(PATIENCE_S)
            told = [*at(0, ACKED), (taken, b"elsewhere")]
            assert stored(left.objects) == told
            shown = log.append(b"local", ack="local", timeout=5.0).offset
            assert shown > taken, "an offset for two records"
            durable = log.append(b"recovered", timeout=5.0).offset
            with pytest.raises(Fenced):
                partition(other).append(b"again")
            told += [(shown, b"local"), (durable, b"recovered")]
            assert stored(left.objects) == told
    crash(recovering)
    with running(left.objects) as third:
        last = partition(third).append(b"last").offset
    assert stored(left.objects) == [*told, (last, b"last")]


def test_L09_an_outage_during_recovery_keeps_the_wal_for_the_next_attempt(left: Left) -> None:
    clock, faulty = ManualClock(), FaultyStore(copy_of(left.objects))
    with running(faulty, clock, wal_dir=str(left.disk())) as store:
        log = partition(store)
        assert pairs(log) == at(0, DURABLE)
        faulty.down()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                drive(clock, background(log.append, b"too early", timeout=2.0))
        faulty.heal()
        check_all(log, left)


def test_L17_recovery_after_recovery_gives_no_offset_twice(left: Left) -> None:
    """Five crashes in a row, each after a local ack and a buffered one: all local ones survive, no offset is reused."""
    objects, disk = left.objects, left.disk()
    told: dict[int, bytes] = dict(at(0, ACKED))
    seen: set[int] = set(told)
    for turn in range(5):
        store = open_store(objects, wal_dir=str(disk))
        log = partition(store)
        local = log.append(b"local turn %d" % turn, ack="local")
        told[local.offset] = b"local turn %d" % turn
        buffered = log.append(b"buffered turn %d" % turn, ack="buffered")
        assert not {local.offset, buffered.offset} & seen
        seen |= {local.offset, buffered.offset}
        crash(store)
        disk = left.disk(disk)
    with running(objects, wal_dir=str(disk)) as store:
        log = partition(store)
        last = log.append(b"last").offset
        assert last not in seen
        found = dict(pairs(log))
    assert {offset: value for offset, value in found.items() if offset in told} == told


def test_L17_a_clean_close_leaves_no_gap(left: Left) -> None:
    with running(left.objects, wal_dir=str(left.disk())) as store:
        first = partition(store).append(b"x", ack="buffered").offset
    for turn in range(1, 4):
        with running(left.objects) as store:
            assert partition(store).append(b"y", ack="buffered").offset == first + turn
    assert len(lost(left.objects)) == 1, "only what the crash took"


def lost(objects: MemoryStore) -> list[tuple[int, int]]:
    with open_store(objects, writer="read_only") as store:
        return [(found[0], found[1]) for found in store.topic("t").partition(0).lost_ranges()]


def test_L17_with_durable_acks_alone_a_crash_leaves_no_gap() -> None:
    objects = MemoryStore()
    for turn in range(4):
        store = open_store(objects)
        assert partition(store).append(b"%d" % turn).offset == turn
        crash(store)
    assert lost(objects) == []


def test_L09_another_machine_without_the_wal_takes_over_and_the_loss_is_said(left: Left) -> None:
    """The disk is gone for now. When it comes back its records are not slipped in where others have been since."""
    with running(left.objects) as store:
        log = partition(store)
        taken = log.append(b"elsewhere").offset
        assert taken >= left.reserved_until
        assert pairs(log) == [*at(0, DURABLE), (taken, b"elsewhere")]
    disk = left.disk()
    with running(left.objects, wal_dir=str(disk)) as store:
        log = partition(store)
        log.append(b"back")
        assert pairs(log) == [*at(0, DURABLE), (taken, b"elsewhere"), (taken + 1, b"back")]
        assert log.lost_ranges() == [(2, taken)]
    (kept,) = disk.rglob("*.orphaned")
    assert all(value in kept.read_bytes() for value in LOCAL), "not in the log, and not thrown away either"


def test_L09_two_processes_cannot_share_a_wal(left: Left) -> None:
    disk = str(left.disk())
    with running(left.objects, wal_dir=disk) as first:
        partition(first).append(b"x", ack="local")
        with running(left.objects, wal_dir=disk) as second:
            with pytest.raises(logstore.UnsupportedStore, match="another process writes this WAL"):
                partition(second).append(b"y")
        assert partition(first).append(b"z").offset > 0, "the first one was not disturbed"
