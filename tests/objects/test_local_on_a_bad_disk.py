"""C08, C09, L01: `LocalStore` on a disk that fails any call and loses what was not fsynced.

A workload of puts, conditional puts, deletes and reads runs on a simulated disk. First the power is cut before each call of
it, in every way. Then each call fails in turn, in every way that a disk knows, the workload goes on, and the power is cut at
the end. An object is what the last call that returned has made it, or what a call without a certain answer may have made it;
and what was read once stays.
"""

from __future__ import annotations

from itertools import count

import pytest

from logstore.errors import Determinate, Indeterminate, ObjectNotFound, PreconditionFailed, StoreError
from logstore.objects import LocalStore
from logstore.testing import DiskCall, DiskFault, SimulatedDisk
from logstore.testing.disk import Hook
from tests.support.disk_faults import FAULTS, PowerCuts, failing, makes_sense, watched

ROOT = "/srv/data/store"
KEYS = ("log/0", "log/1", "deep/er/0", "top")
SCRIPT = (
    ("create", "log/0"),
    ("create", "log/0"),
    ("create", "log/1"),
    ("put", "top"),
    ("replace", "top"),
    ("replace", "log/0"),
    ("delete", "log/1"),
    ("reopen", ""),
    ("create", "deep/er/0"),
    ("create", "log/1"),
    ("delete", "deep/er/0"),
    ("put", "top"),
    ("delete", "top"),
    ("create", "top"),
)


class User:
    """Calls the store, and knows for each key what may stand there: None is "no object"."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self._clock = count(1_700_000_000_000_000_000, 1000)
        self._values = count()
        self.may_be: dict[str, frozenset[bytes | None]] = {key: frozenset([None]) for key in KEYS}
        self.etags: dict[bytes, str] = {}
        self.reopen("")

    @property
    def promise(self) -> tuple[object, ...]:
        return tuple(self.may_be.items())

    def run(self) -> None:
        for step, key in SCRIPT:
            getattr(self, step)(key)
            self.look(key)
        assert self.disk.misuse == []
        assert self.disk.open_descriptors == []

    def reopen(self, _: str) -> None:
        self.store = LocalStore(ROOT, disk=self.disk, wall_ns=lambda: next(self._clock))

    def put(self, key: str, if_absent: bool = False, if_match: str | None = None) -> None:
        value = b"%d of %s" % (next(self._values), key.encode())
        before = self.may_be[key]
        self.may_be[key] = before | {value}
        try:
            info = self.store.put(key, value, if_absent=if_absent, if_match=if_match)
        except PreconditionFailed:
            self.may_be[key] = before - {None} if if_absent else before
            assert self.may_be[key], "there was no object, and it says that there is one"
        except Determinate:
            self.may_be[key] = before
        except Indeterminate:
            pass
        else:
            self.may_be[key] = frozenset([value])
            self.etags[value] = info.etag

    def create(self, key: str) -> None:
        self.put(key, if_absent=True)

    def replace(self, key: str) -> None:
        try:
            info = self.store.head(key)
        except StoreError:
            return
        if info is not None:
            self.put(key, if_match=info.etag)

    def delete(self, key: str) -> None:
        before = self.may_be[key]
        self.may_be[key] = before | {None}
        try:
            self.store.delete(key)
        except Determinate:
            self.may_be[key] = before
        except Indeterminate:
            pass
        else:
            self.may_be[key] = frozenset([None])

    def look(self, key: str) -> None:
        """Read it. What was read is taken for stored by whoever reads it."""
        if not key:
            return
        try:
            found: bytes | None = self.store.get(key)
        except ObjectNotFound:
            found = None
        except StoreError:
            return
        assert found in self.may_be[key], f"{key} is {found!r} and not one of {self.may_be[key]}"
        self.may_be[key] = frozenset([found])


def reopen(user: User, left: SimulatedDisk) -> None:
    """The next process, on the disk that is left: it finds what was promised, and can go on."""
    store = LocalStore(ROOT, disk=left)
    found = {info.key: info for info in store.list("")}
    for key in KEYS:
        value = store.get(key) if key in found else None
        assert value in user.may_be[key], f"{key} is {value!r} and not one of {user.may_be[key]}"
        if value is not None and value in user.etags:
            assert found[key].etag == user.etags[value], "a writer that waited would take it for another's"
    assert set(found) <= set(KEYS)
    store.put("log/9", b"x", if_absent=True)
    store.put("log/9", b"y", if_match=store.put("log/9", b"x").etag)
    store.delete("log/9")
    assert LocalStore(ROOT, disk=left.after_power_cut()).head("log/9") is None
    assert (left.misuse, left.open_descriptors) == ([], [])


def cut_before_each(user: User, cuts: PowerCuts, then: Hook, where: str = "") -> Hook:
    def hook(call: DiskCall) -> DiskFault | None:
        for how, left in cuts.of(user.disk, user.promise):
            try:
                reopen(user, left)
            except Exception as error:
                raise AssertionError(f"{where}power cut before {call}, {how}: {error!r}") from error
        return then(call)

    return hook


def test_C09_power_is_cut_before_each_call() -> None:
    user, cuts = User(SimulatedDisk()), PowerCuts()
    user.disk.hook = cut_before_each(user, cuts, lambda call: None)
    user.run()
    assert user.disk.calls > 200
    assert cuts.tried > 30


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", FAULTS)
def test_C08_C09_each_call_fails_in_turn(kind: str, times: int) -> None:
    user, cuts = User(SimulatedDisk()), PowerCuts()
    for call in watched(user.disk, user.run):
        if not makes_sense(call, kind):
            continue
        user = User(SimulatedDisk(failing(call.number, FAULTS[kind], times)))
        try:
            user.run()
            for _, left in cuts.of(user.disk, user.promise, variants=3):
                reopen(user, left)
            user.disk.hook = None
            for key in KEYS:
                user.look(key)
        except Exception as error:
            raise AssertionError(f"{kind} at {call}: {error!r}") from error


@pytest.mark.soak
def test_C09_a_call_fails_and_then_the_power() -> None:
    """Both: each call fails in turn, and the power is cut before each call after it."""
    first, cuts = User(SimulatedDisk()), PowerCuts()
    for call in watched(first.disk, first.run):
        for kind in FAULTS:
            if makes_sense(call, kind):
                user = User(SimulatedDisk())
                fail = failing(call.number, FAULTS[kind])
                user.disk.hook = cut_before_each(user, cuts, fail, f"{kind} at {call}, ")
                user.run()
    assert cuts.tried > 100
