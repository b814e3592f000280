"""The file system as the local WAL and `LocalStore` see it: one method for each call that they make.

`Disk` passes each one straight to `os`. `logstore.testing.SimulatedDisk` is the other one: it forgets what was not
fsynced, and fails where a test wants it to.

What is made is private: files 0600, folders 0700. (`LocalStore(root, private=False)` leaves it to the umask.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from contextlib import suppress

Path = str | os.PathLike[str]

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
SHARED_FILE, SHARED_FOLDER = 0o666, 0o777

# What a folder answers that is none of ours: it is not open to us, or its file system has no fsync.
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EINVAL)


class Disk:
    """Descriptors are numbers, errors are `OSError`, as from `os`."""

    def open(self, path: Path, flags: int, mode: int = PRIVATE_FILE) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data)

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        return os.pread(descriptor, size, start)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def fstat(self, descriptor: int) -> os.stat_result:
        return os.fstat(descriptor)

    def utime(self, descriptor: int, ns: int) -> None:
        os.utime(descriptor, ns=(ns, ns))

    def flock(self, descriptor: int, operation: int) -> None:
        fcntl.flock(descriptor, operation)

    def stat(self, path: Path) -> os.stat_result:
        return os.stat(path)

    def listdir(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def mkdir(self, folder: Path, mode: int = PRIVATE_FOLDER) -> None:
        os.mkdir(folder, mode)

    def link(self, path: Path, new: Path) -> None:
        os.link(path, new)

    def rename(self, path: Path, new: Path) -> None:
        os.rename(path, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)


def write_all(disk: Disk, descriptor: int, data: memoryview) -> None:
    while data:
        data = data[disk.write(descriptor, data) :]


def read_all(disk: Disk, path: Path) -> bytes:
    descriptor = disk.open(path, os.O_RDONLY)
    try:
        return pread_all(disk, descriptor, disk.fstat(descriptor).st_size, 0)
    finally:
        let_go(disk, descriptor)


def pread_all(disk: Disk, descriptor: int, size: int, start: int) -> bytes:
    """So many bytes, or fewer if the file ends before: Linux moves at most 2 GiB in one call."""
    data = disk.pread(descriptor, size, start)
    while len(data) < size and (more := disk.pread(descriptor, size - len(data), start + len(data))):
        data += more
    return data


def let_go(disk: Disk, descriptor: int) -> None:
    """Close it, once. Whatever `close` says, the number is free and may be another's the next moment; and whether the data
    is safe, the fsync before has said."""
    with suppress(OSError):
        disk.close(descriptor)


def fsync_folder(disk: Disk, folder: Path) -> None:
    """The names in it survive a power cut from now on."""
    descriptor = disk.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.fsync(descriptor)
    finally:
        let_go(disk, descriptor)


class Folders:
    """Makes folders that survive a power cut, and knows which do. Safe for threads.

    A folder is safe once the one above it is fsynced. Each process does that once for the whole way up, also where the
    folders exist: whoever made them may have died before it came to its own fsync. Above `base` a folder that will not be
    fsynced by us is left to its owner.
    """

    def __init__(self, disk: Disk, base: Path, mode: int = PRIVATE_FOLDER) -> None:
        self.disk = disk
        self._base = os.path.abspath(base)
        self._mode = mode
        self._lock = threading.Lock()  # guards `_safe`; never held during I/O
        self._safe: set[str] = set()

    def make(self, folder: str) -> None:
        """Make `folder`, an absolute path, and what is missing above it, durably."""
        with self._lock:
            if folder in self._safe:
                return
        self.make_plainly(folder)
        way = [folder]
        while (above := os.path.dirname(way[-1])) != way[-1]:
            with self._lock:
                if way[-1] in self._safe:
                    break
            try:
                fsync_folder(self.disk, above)
            except OSError as error:
                if error.errno not in _NOT_OURS or len(way[-1]) > len(self._base):
                    raise
            way.append(above)
        with self._lock:
            self._safe.update(way)

    def make_plainly(self, folder: str) -> None:
        """The same for what a power cut may take: nothing is fsynced."""
        missing = []
        while True:
            try:
                self.disk.mkdir(folder, self._mode)
            except FileNotFoundError:
                missing.append(folder)
                folder = os.path.dirname(folder)
                continue
            except OSError:
                # Whatever mkdir says of a folder that is there (it may lie on a read-only disk): it is there.
                if not _is_folder(self.disk, folder):
                    raise
            if not missing:
                return
            folder = missing.pop()

    def forget(self) -> None:
        """Somebody removes folders under us: be sure of none."""
        with self._lock:
            self._safe.clear()


def _is_folder(disk: Disk, folder: str) -> bool:
    try:
        return stat.S_ISDIR(disk.stat(folder).st_mode)
    except OSError:
        return False
