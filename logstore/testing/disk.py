"""A disk in memory that forgets and fails: what a power cut leaves, and what a broken disk answers.

It has what Linux promises and nothing more. Data is safe after an fsync of its file, a name after an fsync of its folder,
and the two are independent. An fsync that failed has lost what it was asked to write: the next one says "fine" and does not
bring it back. A close gives the number back whatever it says. Numbers are never used twice, so a descriptor that is closed
twice, or was never opened here, is seen (`misuse`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, NamedTuple

from logstore.objects.homes.disk import Disk, Path

Names = Literal["lost", "kept", "even", "odd"]
Data = Literal["lost", "kept", "zeros", "torn"]
NAMES: tuple[Names, ...] = ("lost", "kept", "even", "odd")
DATA: tuple[Data, ...] = ("lost", "kept", "zeros", "torn")

WRITES = ("open", "write", "fsync", "utime", "mkdir", "link", "rename", "unlink")
"""The calls that a full or a read-only disk refuses (`open` where it creates)."""

_FIRST_DESCRIPTOR = 1_000_000  # no number of the system's: a call past this disk fails


class DiskCall(NamedTuple):
    """A call that is about to be made: the how-manieth, which, and of what. `creates`: an `open` that makes a file."""

    number: int
    name: str
    path: str
    creates: bool = False

    @property
    def changes(self) -> bool:
        """Whether it changes anything on the disk."""
        return self.name in WRITES and (self.name != "open" or self.creates)


@dataclass(frozen=True, slots=True)
class DiskFault:
    """Answer with this errno. `done`: and yet it was carried out (a write: half of it). `SHORT_WRITE` is no error."""

    number: int
    done: bool = False


SHORT_WRITE = DiskFault(0)

Hook = Callable[[DiskCall], DiskFault | None]


@dataclass(slots=True, eq=False)
class _File:
    number: int
    data: bytes = b""
    mtime_ns: int = 0
    safe_data: bytes = b""
    safe_mtime_ns: int = 0
    dropped: list[tuple[int, int]] = field(default_factory=list)  # ranges that a failed fsync has lost
    locked_by: int | None = None

    def fsync(self) -> None:
        self.safe_data = self._without_dropped()
        self.safe_mtime_ns = self.mtime_ns

    def fail_fsync(self) -> None:
        if len(self.data) > len(self.safe_data):
            self.dropped.append((len(self.safe_data), len(self.data)))

    def _without_dropped(self) -> bytes:
        data = self.data
        for start, end in self.dropped:
            data = data[:start] + bytes(end - start) + data[end:]
        return data

    def after_power_cut(self, kept: Data) -> tuple[bytes, int]:
        whole, safe = self._without_dropped(), self.safe_data
        if kept == "lost" or whole == safe:
            return safe, self.safe_mtime_ns
        middle = (len(safe) + len(whole)) // 2
        found = {"kept": whole, "zeros": safe + bytes(len(whole) - len(safe)), "torn": whole[:middle]}[kept]
        return found, self.mtime_ns


@dataclass(slots=True, eq=False)
class _Folder:
    number: int
    entries: dict[str, _File | _Folder] = field(default_factory=dict)
    safe_entries: dict[str, _File | _Folder] = field(default_factory=dict)
    changes: list[tuple[int, str, _File | _Folder | None]] = field(default_factory=list)  # not fsynced

    def change(self, number: int, name: str, node: _File | _Folder | None) -> None:
        _apply(self.entries, name, node)
        self.changes.append((number, name, node))

    def fsync(self) -> None:
        self.safe_entries = dict(self.entries)
        self.changes.clear()

    def after_power_cut(self, kept: Names) -> dict[str, _File | _Folder]:
        found = dict(self.safe_entries)
        for number, name, node in self.changes:
            if kept == "kept" or (kept != "lost" and number % 2 == (kept == "odd")):
                _apply(found, name, node)
        return found


def _apply(entries: dict[str, _File | _Folder], name: str, node: _File | _Folder | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


class SimulatedDisk(Disk):
    """A file system in memory, for `LocalStore(..., disk=)` and `logstore.open(..., disk=)`. Safe for threads.

    `hook` is asked before each call and may answer with a `DiskFault`. `after_power_cut` gives the disk that is found when
    the power is back; this one stays as it is, so one run may be cut at every call.

    >>> import os
    >>> disk = SimulatedDisk()
    >>> descriptor = disk.open("/file", os.O_WRONLY | os.O_CREAT)
    >>> disk.write(descriptor, memoryview(b"data"))
    4
    >>> disk.after_power_cut().listdir("/")
    []
    """

    def __init__(self, hook: Hook | None = None) -> None:
        self.hook = hook
        self.calls = self.changing_calls = 0
        self.misuse: list[str] = []
        self._lock = threading.Condition(threading.RLock())
        self._numbers = count(1)
        self._changes = count()
        self._descriptors = count(_FIRST_DESCRIPTOR)
        self._open: dict[int, _File | _Folder] = {}
        self._names: dict[int, str] = {}
        self._root = _Folder(0)

    # -- what is left ----------------------------------------------------------------------------------------

    def after_power_cut(self, names: Names = "lost", data: Data = "lost") -> SimulatedDisk:
        """The disk as the next process finds it. What was fsynced is there. Of the rest, `names` says which changes of
        folders survive (`even` and `odd`: every other one) and `data` what is in files: what was safe, everything,
        zeros as long as it was, or the first half."""
        with self._lock:
            left = SimulatedDisk()
            copies: dict[int, _File | _Folder] = {}
            left._root = self._survivor(self._root, names, data, copies)
            left._numbers = count(max(copies, default=0) + 1)
            return left

    def _survivor(
        self, folder: _Folder, names: Names, data: Data, copies: dict[int, _File | _Folder]
    ) -> _Folder:
        copy = _Folder(folder.number)
        copies[folder.number] = copy
        for name, node in folder.after_power_cut(names).items():
            if (known := copies.get(node.number)) is not None:
                copy.entries[name] = known
            elif isinstance(node, _Folder):
                copy.entries[name] = self._survivor(node, names, data, copies)
            else:
                content, mtime_ns = node.after_power_cut(data)
                made = _File(node.number, content, mtime_ns, content, mtime_ns)
                copy.entries[name] = copies[node.number] = made
        copy.safe_entries = dict(copy.entries)
        return copy

    def kill(self) -> None:
        """The process that uses it dies, and the machine does not: its descriptors are closed, its locks released, and
        nothing is lost."""
        with self._lock:
            for node in self._open.values():
                if isinstance(node, _File):
                    node.locked_by = None
            self._open.clear()
            self._names.clear()
            self._lock.notify_all()

    def files(self) -> dict[str, bytes]:
        """What a look at it shows: each file's content by its path; and each empty folder, whose path ends in "/". Not
        counted as a call."""
        with self._lock:
            return dict(self._files(self._root, "/"))

    def _files(self, folder: _Folder, base: str) -> Iterator[tuple[str, bytes]]:
        for name, node in sorted(folder.entries.items()):
            if isinstance(node, _File):
                yield base + name, node.data
            elif node.entries:
                yield from self._files(node, f"{base}{name}/")
            else:
                yield f"{base}{name}/", b""

    @property
    def open_descriptors(self) -> list[str]:
        """The paths of what is open."""
        with self._lock:
            return list(self._names.values())

    # -- the calls -------------------------------------------------------------------------------------------

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        name = os.fspath(path)
        with self._call("open", name, creates=bool(flags & os.O_CREAT)):
            folder, last = self._parent(name)
            node = folder.entries.get(last) if last else folder
            if node is None:
                if not flags & os.O_CREAT:
                    raise _error(errno.ENOENT, name)
                node = _File(next(self._numbers))
                folder.change(next(self._changes), last, node)
            elif flags & os.O_EXCL:
                raise _error(errno.EEXIST, name)
            elif isinstance(node, _Folder) != bool(flags & os.O_DIRECTORY) and not (
                isinstance(node, _Folder) and flags & os.O_ACCMODE == os.O_RDONLY
            ):
                raise _error(errno.EISDIR if isinstance(node, _Folder) else errno.ENOTDIR, name)
        with self._lock:
            descriptor = next(self._descriptors)
            self._open[descriptor], self._names[descriptor] = node, name
            return descriptor

    def close(self, descriptor: int) -> None:
        node = self._node(descriptor, "close")
        name = self._names[descriptor]
        with self._lock:
            del self._open[descriptor], self._names[descriptor]
            if isinstance(node, _File) and node.locked_by == descriptor:
                node.locked_by = None
                self._lock.notify_all()
        with self._call("close", name):
            pass

    def write(self, descriptor: int, data: memoryview) -> int:
        node = self._file(descriptor, "write")
        with self._call("write", self._names[descriptor]) as fault:
            taken = data if fault is None else data[: max(1, len(data) // 2)]
            node.data += bytes(taken)
            return len(taken)

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        node = self._file(descriptor, "pread")
        with self._call("pread", self._names[descriptor]):
            return node.data[start : start + size]

    def fsync(self, descriptor: int) -> None:
        node = self._node(descriptor, "fsync")
        try:
            with self._call("fsync", self._names[descriptor]):
                node.fsync()
        except OSError:
            # Names go through a journal, which keeps them for the next fsync; data is lost to it.
            if isinstance(node, _File):
                with self._lock:
                    node.fail_fsync()
            raise

    def fstat(self, descriptor: int) -> os.stat_result:
        node = self._node(descriptor, "fstat")
        with self._call("fstat", self._names[descriptor]):
            return _status(node)

    def utime(self, descriptor: int, ns: int) -> None:
        node = self._file(descriptor, "utime")
        with self._call("utime", self._names[descriptor]):
            node.mtime_ns = ns

    def flock(self, descriptor: int, operation: int) -> None:
        node = self._file(descriptor, "flock")
        with self._call("flock", self._names[descriptor]):
            while node.locked_by is not None:
                if operation & fcntl.LOCK_NB:
                    raise _error(errno.EWOULDBLOCK, self._names[descriptor])
                self._lock.wait()
            node.locked_by = descriptor

    def stat(self, path: Path) -> os.stat_result:
        name = os.fspath(path)
        with self._call("stat", name):
            return _status(self._find(name))

    def listdir(self, folder: Path) -> list[str]:
        name = os.fspath(folder)
        with self._call("listdir", name):
            node = self._find(name)
            if not isinstance(node, _Folder):
                raise _error(errno.ENOTDIR, name)
            return list(node.entries)

    def mkdir(self, folder: Path, mode: int = 0o700) -> None:
        name = os.fspath(folder)
        with self._call("mkdir", name):
            parent, last = self._parent(name)
            if not last or last in parent.entries:
                raise _error(errno.EEXIST, name)
            parent.change(next(self._changes), last, _Folder(next(self._numbers)))

    def link(self, path: Path, new: Path) -> None:
        with self._call("link", os.fspath(new)):
            node = self._find(os.fspath(path))
            folder, last = self._parent(os.fspath(new))
            if last in folder.entries:
                raise _error(errno.EEXIST, os.fspath(new))
            folder.change(next(self._changes), last, node)

    def rename(self, path: Path, new: Path) -> None:
        with self._call("rename", os.fspath(new)):
            node = self._find(os.fspath(path))
            folder, last = self._parent(os.fspath(new))
            if isinstance(folder.entries.get(last), _Folder):
                raise _error(errno.EISDIR, os.fspath(new))
            number = next(self._changes)  # one change, whole or not at all
            folder.change(number, last, node)
            old_folder, old = self._parent(os.fspath(path))
            old_folder.change(number, old, None)

    def unlink(self, path: Path) -> None:
        name = os.fspath(path)
        with self._call("unlink", name):
            if isinstance(self._find(name), _Folder):
                raise _error(errno.EISDIR, name)
            folder, last = self._parent(name)
            folder.change(next(self._changes), last, None)

    # -- inside ----------------------------------------------------------------------------------------------

    @contextmanager
    def _call(self, name: str, path: str, *, creates: bool = False) -> Iterator[DiskFault | None]:
        """Around the work of one call, with the lock: ask the hook, and fail before or after the work if it says so."""
        with self._lock:
            self.calls += 1
            call = DiskCall(self.calls, name, path, creates)
            fault = self.hook(call) if self.hook is not None else None
            self.changing_calls += call.changes
            if fault is SHORT_WRITE and name != "write":
                fault = None
            if fault is not None and fault.number and not fault.done:
                raise _error(fault.number, path)
            yield fault
            if fault is not None and fault.number:
                raise _error(fault.number, path)

    def _node(self, descriptor: int, call: str) -> _File | _Folder:
        with self._lock:
            node = self._open.get(descriptor)
            if node is None:
                known = descriptor >= _FIRST_DESCRIPTOR
                what = "is closed already" if known else "was not opened here"
                self.misuse.append(f"{call}({descriptor}): the descriptor {what}")
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return node

    def _file(self, descriptor: int, call: str) -> _File:
        node = self._node(descriptor, call)
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, self._names[descriptor])
        return node

    def _find(self, path: str) -> _File | _Folder:
        folder, last = self._parent(path)
        node = folder.entries.get(last) if last else folder
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        """The folder that holds the last part of the path, and that part; "" for the root itself."""
        *above, last = [part for part in os.path.abspath(path).split("/") if part] or [""]
        folder = self._root
        for part in above:
            node = folder.entries.get(part)
            if node is None:
                raise _error(errno.ENOENT, path)
            if not isinstance(node, _Folder):
                raise _error(errno.ENOTDIR, path)
            folder = node
        return folder, last


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _status(node: _File | _Folder) -> os.stat_result:
    if isinstance(node, _Folder):
        return os.stat_result((stat.S_IFDIR | 0o700, node.number, 0, 1, 0, 0, 0, 0, 0, 0), {"st_mtime_ns": 0})
    seconds = node.mtime_ns // 10**9
    values = (stat.S_IFREG | 0o600, node.number, 0, 1, 0, 0, len(node.data), 0, seconds, 0)
    return os.stat_result(values, {"st_mtime_ns": node.mtime_ns})
