"""C09: a whole store, objects and WAL, on one disk that loses what was not fsynced and fails its calls.

The parts are searched completely (`test_wal_on_a_bad_disk`, `test_local_on_a_bad_disk`); here they work together: what was
acked `local` or `durable` is there, at its offset, and the next process can write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

import logstore
from logstore.errors import LogStoreError
from logstore.objects import LocalStore
from logstore.testing import DiskCall, ManualClock, SimulatedDisk
from tests.support.disk_faults import FAULTS, PowerCuts, failing, makes_sense
from tests.support.engine.harness import background, crash, drive, open_store, pairs

T = TypeVar("T")
Acked = dict[int, bytes]


def opened(disk: SimulatedDisk, clock: ManualClock) -> logstore.Store:
    return open_store(LocalStore("/srv/store", disk=disk), clock, wal_dir="/srv/wal", disk=disk)


def persistently(clock: ManualClock, call: Callable[[], T]) -> T:
    """A caller that tries again while the disk fails."""
    for _ in range(6):
        try:
            return drive(clock, background(call))
        except LogStoreError as error:
            last = error
    raise last


def work(disk: SimulatedDisk, acked: Acked) -> None:
    """Two lives of a process. An append whose ack does not come is not repeated."""
    for life in range(2):
        clock = ManualClock()
        store = persistently(clock, lambda clock=clock: opened(disk, clock))  # type: ignore[misc]
        topic = persistently(clock, lambda store=store: store.create_topic("t", exist_ok=True))  # type: ignore[misc]
        log = topic.partition(0)
        for turn in range(4):
            value = b"%d-%d" % (life, turn)
            try:
                appending = background(
                    log.append, value, ack="durable" if turn == 2 else "local", timeout=1e6
                )
                acked[drive(clock, appending).offset] = value
            except LogStoreError:
                continue
        crash(store)
        disk.kill()
        assert disk.misuse == []


def check(disk: SimulatedDisk, acked: Acked) -> None:
    clock = ManualClock()
    store = opened(disk, clock)
    try:
        log = store.create_topic("t", exist_ok=True).partition(0)
        ours = drive(clock, background(log.append, b"the next one's", ack="local")).offset
        found = dict(pairs(log))
        assert found[ours] == b"the next one's"
        assert acked.items() <= found.items(), f"acked: {acked}, found: {found}"
    finally:
        crash(store)
    assert disk.misuse == []


def cut(variants: int) -> int:
    disk, acked, cuts = SimulatedDisk(), Acked(), PowerCuts()
    left: list[tuple[str, SimulatedDisk, Acked]] = []

    def hook(call: DiskCall) -> None:
        now = dict(acked)
        left.extend((f"{call}, {how}", found, now) for how, found in cuts.of(disk, tuple(now), variants))

    disk.hook = hook
    work(disk, acked)
    for where, found, now in left:
        try:
            check(found, now)
        except Exception as error:
            raise AssertionError(f"power cut before {where}: {error!r}") from error
    return len(left)


def test_C09_power_is_cut_while_a_store_works() -> None:
    assert cut(variants=3) > 30


@pytest.mark.soak
def test_C09_power_is_cut_while_a_store_works_in_every_way() -> None:
    assert cut(variants=16) > 40


def fail_each(kinds: list[str], step: int) -> None:
    calls: list[DiskCall] = []
    work(SimulatedDisk(calls.append), Acked())
    for kind in kinds:
        for call in [one for one in calls if makes_sense(one, kind)][::step]:
            disk, acked = SimulatedDisk(failing(call.number, FAULTS[kind])), Acked()
            try:
                work(disk, acked)
                check(disk.after_power_cut(), acked)
            except Exception as error:
                raise AssertionError(f"{kind} at {call}: {error!r}") from error


def test_C09_calls_fail_while_a_store_works() -> None:
    fail_each(["EIO"], step=16)


@pytest.mark.soak
def test_C09_each_call_fails_while_a_store_works() -> None:
    fail_each(list(FAULTS), step=1)
