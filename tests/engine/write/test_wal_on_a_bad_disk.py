"""C08, C09, L09: the WAL on a disk that fails any call and loses what was not fsynced.

A workload runs on a simulated disk: appends that wait for a `local` ack, commits to the store, kill -9, a close, take-overs.
First the power is cut before each call of it, in every way. Then each call fails in turn, in every way that a disk knows,
the workload goes on, and the power is cut at the end. Whatever was acked `local` and is not in the store comes back, at its
offset and unchanged; and nothing that was never acked keeps anybody from opening.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.engine.chain.tail import ChainTail
from logstore.engine.memory.pending_batch import Exposure, PendingBatch
from logstore.engine.write.wal import wal_files as wal_module
from logstore.engine.write.wal.wal import Wal, WalPart
from logstore.errors import StoreUnavailable, UnsupportedStore
from logstore.format.batches.record import Record
from logstore.layout.paths import PartitionPaths
from logstore.objects.homes.disk import Folders
from logstore.testing import DiskCall, DiskFault, SimulatedDisk
from logstore.testing.disk import Hook
from tests.support.disk_faults import FAULTS, PowerCuts, failing, makes_sense, watched

FOLDER = Path("/var/wal/store")
PATHS = [PartitionPaths("topic", "00112233aabbccdd", number) for number in range(2)]
SCRIPT = "open a a b flush a b kill open a flush both a close open a b kill open_one a kill open both"


class Partition:
    """What was promised of one. The object store takes all at once and forgets nothing."""

    def __init__(self, paths: PartitionPaths) -> None:
        self.paths = paths
        self.part: WalPart | None = None
        self.epoch = self.durable = self.acked = self.next = 0
        self.batches: list[PendingBatch] = []
        self.values: dict[int, bytes] = {}  # acked

    @property
    def promise(self) -> tuple[object, ...]:
        return self.epoch, self.durable, self.acked, *self.values.items()

    def heir(self) -> Partition:
        """As the next process finds it."""
        heir = Partition(self.paths)
        heir.epoch, heir.durable, heir.acked = self.epoch, self.durable, self.acked
        heir.values = {**self.values}
        return heir

    def open(self, wal: Wal) -> None:
        part = wal.part(self.paths)
        end = self._recovered_end(part)
        self.batches = []
        self.epoch, self.durable, self.acked, self.next = self.epoch + 1, end, end, end
        part.start(self.epoch, end, lambda: self.durable)
        self.part = part

    def _recovered_end(self, part: WalPart) -> int:
        """Check what the WAL brings back."""
        tail = ChainTail(epoch=self.epoch, end_offset=self.durable)
        end = self.durable
        for batch in part.recover(tail, lambda start, stop: False):
            assert batch.base_offset == end
            if batch.base_offset in self.values:
                assert self.values[batch.base_offset] in batch.tobytes(), "another record at an acked offset"
            end = batch.end_offset
        assert end >= self.acked, f"acked up to {self.acked}, and {end} is where it ends"
        return end

    def value_at(self, offset: int) -> bytes:
        return b"value %d of epoch %d in %d" % (offset, self.epoch, self.paths.partition)

    def append(self) -> None:
        batch = PendingBatch(self.next, self.epoch, Exposure.LOCAL, 0)
        batch.add([Record(self.value_at(self.next), timestamp_ms=1)], 1, Exposure.LOCAL)
        self.batches.append(batch)
        self.next += 1

    def unsynced(self) -> tuple[WalPart, list[PendingBatch]]:
        assert self.part is not None
        start = max(self.part.end_offset, self.durable)
        return self.part, [one for one in self.batches if one.base_offset >= start]

    def synced(self, batches: list[PendingBatch]) -> None:
        if batches:
            self.acked = batches[-1].end_offset
        self.values |= {one.base_offset: self.value_at(one.base_offset) for one in batches}

    def flush(self) -> None:
        self.durable = self.acked = self.next
        self.batches = []


class Owner:
    """The process that writes two partitions."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.wal: Wal | None = None
        self.partitions = [Partition(paths) for paths in PATHS]

    @property
    def promise(self) -> tuple[object, ...]:
        return tuple(partition.promise for partition in self.partitions)

    def run(self, script: str = SCRIPT) -> None:
        for step in script.split():
            getattr(self, step)()
        assert self.disk.misuse == []

    def open(self) -> None:
        self._open_some(self.partitions)

    def open_one(self) -> None:
        """The other is not asked for in this life."""
        self._open_some(self.partitions[:1])

    def _open_some(self, partitions: list[Partition]) -> None:
        for _ in range(5):  # a fault stops some of them
            try:
                self._open(partitions)
            except (UnsupportedStore, StoreUnavailable):
                if self.wal is not None:
                    self._let_go()
            else:
                return
        raise AssertionError("it does not open again after the fault is over")

    def _open(self, partitions: list[Partition]) -> None:
        self.wal = Wal(FOLDER, Folders(self.disk, "/var/wal"))
        for partition in partitions:
            partition.open(self.wal)

    def a(self) -> None:
        self._append(self.partitions[:1])

    def b(self) -> None:
        self._append(self.partitions[1:])

    def both(self) -> None:
        self._append(self.partitions)

    def _append(self, partitions: list[Partition]) -> None:
        """Append a record and wait for its local ack, as `LocalSync` does; if the disk fails, it waits for the next."""
        assert self.wal is not None
        for partition in partitions:
            partition.append()
        group = [(partition, *partition.unsynced()) for partition in self.partitions if partition.part]
        waiting = [(part, batches) for _, part, batches in group if batches]
        try:
            assert self.wal.write(waiting) == [part for part, _ in waiting]
        except OSError:
            return
        for partition, _, batches in group:
            partition.synced(batches)

    def flush(self) -> None:
        """Of the first alone: the other keeps the files."""
        self.partitions[0].flush()

    def kill(self) -> None:
        self.disk.kill()
        self.wal = None
        for partition in self.partitions:
            partition.part = None

    def close(self) -> None:
        for partition in self.partitions:
            partition.flush()
        self._let_go()
        assert self.disk.open_descriptors == []

    def _let_go(self) -> None:
        assert self.wal is not None
        for partition in self.partitions:
            if partition.part is not None:
                partition.part.close(partition.durable)
                partition.part = None
        self.wal.close()
        self.wal = None


def reopen(owner: Owner, left: SimulatedDisk) -> None:
    """The next process, on the disk that is left: it finds what was promised, and can go on."""
    heir = Owner(left)
    heir.partitions = [partition.heir() for partition in owner.partitions]
    heir._open(heir.partitions)
    heir.both()
    for partition in heir.partitions:
        assert partition.acked == partition.next, "it gives no acks"
    heir.close()
    assert left.misuse == []


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_module, "FILE_BYTES", 250)


def test_C09_power_is_cut_before_each_call() -> None:
    disk = SimulatedDisk()
    owner, cuts = Owner(disk), PowerCuts()
    disk.hook = _cut_before_each(owner, cuts, lambda call: None)
    owner.run()
    assert disk.calls > 150, "the search is not what it was meant to be"
    assert cuts.tried > 100


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", FAULTS)
def test_C08_C09_each_call_fails_in_turn(kind: str, times: int) -> None:
    disk = SimulatedDisk()
    calls = watched(disk, Owner(disk).run)
    cuts = PowerCuts()
    for call in calls:
        if makes_sense(call, kind):
            _run_with_a_fault(call.number, kind, times, cuts, f"{kind} at {call}")


def _run_with_a_fault(number: int, kind: str, times: int, cuts: PowerCuts, where: str) -> None:
    disk = SimulatedDisk()
    disk.hook = failing(number, FAULTS[kind], times)
    owner = Owner(disk)
    try:
        owner.run()
        disk.hook = None
        for _, left in cuts.of(disk, owner.promise, variants=3):
            reopen(owner, left)
        owner.both()
        assert all(one.acked == one.next for one in owner.partitions), "no ack after the fault is over"
        owner.close()
        assert [path for path in disk.files() if path.endswith(".wal")] == [], "it left files behind"
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}") from error


@pytest.mark.soak
def test_C09_a_call_fails_and_then_the_power() -> None:
    """Both: each call fails in turn, and the power is cut before each call after it."""
    disk = SimulatedDisk()
    calls = watched(disk, Owner(disk).run)
    cuts = PowerCuts()
    for call in calls:
        for kind in FAULTS:
            if makes_sense(call, kind):
                owner = Owner(SimulatedDisk())
                fail = failing(call.number, FAULTS[kind])
                owner.disk.hook = _cut_before_each(owner, cuts, fail, f"{kind} at {call}, ")
                owner.run()
    assert cuts.tried > 1000


def _cut_before_each(owner: Owner, cuts: PowerCuts, then: Hook, where: str = "") -> Hook:
    def hook(call: DiskCall) -> DiskFault | None:
        for how, left in cuts.of(owner.disk, owner.promise):
            try:
                reopen(owner, left)
            except Exception as error:
                raise AssertionError(f"{where}power cut before {call}, {how}: {error!r}") from error
        return then(call)

    return hook
