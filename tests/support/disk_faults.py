"""What is tried on a disk: every way in which a call can fail, every way in which a power cut can leave it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import TypeVar

from logstore.testing import SHORT_WRITE, DiskCall, DiskFault, SimulatedDisk
from logstore.testing.disk import DATA, NAMES

T = TypeVar("T")

FAULTS = {
    "EIO": DiskFault(errno.EIO),
    "EIO, yet done": DiskFault(errno.EIO, done=True),
    "ENOSPC": DiskFault(errno.ENOSPC),
    "EROFS": DiskFault(errno.EROFS),
    "a short write": SHORT_WRITE,
}


def makes_sense(call: DiskCall, name: str) -> bool:
    """Whether a disk can answer this call so."""
    if name == "a short write":
        return call.name == "write"
    return name == "EIO" or call.changes


def watched(disk: SimulatedDisk, run: Callable[[], object]) -> list[DiskCall]:
    """The calls of a run in which nothing fails."""
    calls: list[DiskCall] = []
    disk.hook = calls.append
    run()
    return calls


def failing(number: int, fault: DiskFault, times: int = 1) -> Callable[[DiskCall], DiskFault | None]:
    """A hook: the call with that number fails, and the next ones of that name, `times` in all."""
    left, name = times, ""

    def hook(call: DiskCall) -> DiskFault | None:
        nonlocal left, name
        if call.number < number or left == 0 or (name and call.name != name):
            return None
        left, name = left - 1, call.name
        return fault

    return hook


class PowerCuts:
    """The disks that power cuts leave, each with what was promised at that moment; the same one is handed out once."""

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()
        self._last: tuple[object, ...] = ()
        self.tried = 0

    def of(
        self, disk: SimulatedDisk, promise: object, variants: int = 16
    ) -> Iterator[tuple[str, SimulatedDisk]]:
        now = (disk, disk.changing_calls, promise)
        if now == self._last:
            return
        self._last = now
        pairs = [(names, data) for names in NAMES for data in DATA]
        if variants < len(pairs):
            pairs = [("lost", "lost"), ("kept", "zeros"), ("odd", "torn")]
        for names, data in pairs:
            left = disk.after_power_cut(names, data)
            # What lies among the temporary files has a name of its own each time, and is nobody's business.
            found = (promise, *(item for item in left.files().items() if "/.logstore/" not in item[0]))
            if found not in self._seen:
                self._seen.add(found)
                self.tried += 1
                yield f"names {names}, data {data}", left
