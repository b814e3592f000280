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
from logstore.engine.write import wal as wal_module
from logstore.engine.write.wal import Wal
from logstore.errors import StoreUnavailable, UnsupportedStore
from logstore.format.batches.record import Record
from logstore.objects.homes.disk import Folders
from logstore.testing import DiskCall, DiskFault, SimulatedDisk
from logstore.testing.disk import Hook
from tests.support.disk_faults import FAULTS, PowerCuts, failing, makes_sense, watched

FOLDER = Path("/var/wal/store/topic/incarnation/0")
SCRIPT = "open a a a flush a a a a kill open a flush a a a close open a a a kill open a"


class Owner:
    """The process that writes, and what it has promised. The object store takes all at once and forgets nothing."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.wal: Wal | None = None
        self.epoch = self.durable = self.acked = self.next = 0
        self.batches: list[PendingBatch] = []
        self.values: dict[int, bytes] = {}  # acked

    @property
    def promise(self) -> tuple[object, ...]:
        return self.epoch, self.durable, self.acked, *self.values.items()

    def run(self, script: str = SCRIPT) -> None:
        for step in script.split():
            getattr(self, step)()
        assert self.disk.misuse == []

    def open(self) -> None:
        for _ in range(5):  # a fault stops some of them
            try:
                self._open()
            except (UnsupportedStore, StoreUnavailable):
                if self.wal is not None:
                    self.wal.close(-1)
                    self.wal = None
            else:
                return
        raise AssertionError("it does not open again after the fault is over")

    def _open(self) -> None:
        self.wal = Wal(FOLDER, Folders(self.disk, "/var/wal"))
        end = self.recovered_end(self.wal)
        self.batches = []
        self.epoch, self.durable, self.acked, self.next = self.epoch + 1, end, end, end
        self.wal.start(self.epoch, end)

    def recovered_end(self, wal: Wal) -> int:
        """Check what the WAL brings back."""
        tail = ChainTail(epoch=self.epoch, end_offset=self.durable)
        end = self.durable
        for batch in wal.recover(tail, lambda start, stop: False):
            assert batch.base_offset == end
            if batch.base_offset in self.values:
                assert self.values[batch.base_offset] in batch.tobytes(), "another record at an acked offset"
            end = batch.end_offset
        assert end >= self.acked, f"acked up to {self.acked}, and {end} is where it ends"
        return end

    def a(self) -> None:
        """Append a record and wait for its local ack, as `LocalSync` does; if the disk fails, it waits for the next."""
        assert self.wal is not None
        batch = PendingBatch(self.next, self.epoch, Exposure.LOCAL, 0)
        value = b"value %d of epoch %d" % (self.next, self.epoch)
        batch.add([Record(value, timestamp_ms=1)], 1, Exposure.LOCAL)
        self.batches.append(batch)
        self.next += 1
        unsynced = [one for one in self.batches if one.base_offset >= max(self.wal.end_offset, self.durable)]
        try:
            self.wal.write(unsynced, self.durable)
        except OSError:
            return
        self.acked = self.wal.end_offset
        for one in unsynced:
            self.values[one.base_offset] = b"value %d of epoch %d" % (one.base_offset, self.epoch)

    def flush(self) -> None:
        self.durable = self.acked = self.next
        self.batches = []

    def kill(self) -> None:
        self.disk.kill()
        self.wal = None

    def close(self) -> None:
        assert self.wal is not None
        self.flush()
        self.wal.close(self.durable)
        assert self.disk.open_descriptors == []
        self.wal = None


def reopen(owner: Owner, left: SimulatedDisk) -> None:
    """The next process, on the disk that is left: it finds what was promised, and can go on."""
    heir = Owner(left)
    heir.epoch, heir.durable, heir.acked, heir.values = (
        owner.epoch,
        owner.durable,
        owner.acked,
        {**owner.values},
    )
    heir._open()
    heir.a()
    assert heir.acked == heir.next, "it gives no acks"
    heir.close()
    assert left.misuse == []


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_module, "FILE_BYTES", 150)


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
        owner.a()
        assert owner.acked == owner.next, "no ack after the fault is over"
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
