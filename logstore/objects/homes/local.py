"""Objects as files below one folder, for one machine: durable when a call returns, atomic across processes.

* A put writes a temporary file, fsyncs it, gives it its final name in one step (`link` for create-if-absent,
  `rename` otherwise) and fsyncs the folder, and once per process every folder above it, also where somebody else
  has made them. Nobody ever sees half
  an object. If that last fsync fails, the object is there and a crash may take it: then nothing in its folder
  can be read here before an fsync has succeeded, because who reads what it wrote takes it for stored.
* Replacing and deleting take a file lock (one of 64, by key) that holds across threads and processes, so that
  nothing can change an object between the comparison of `if_match` and the rename. Creating needs no lock:
  `link` decides.
* The etag is inode, size and a version kept in the file's modification time. The version grows with each
  replacement, whatever the clock does, and an edit by hand changes it too.
* `‹root›/.logstore/` holds temporary files and locks and is no part of the key space. Left-overs of a crash
  stay invisible there and are swept after a day.
* Files are 0600 and folders 0700: whoever may read them is asked for by `private=False`, which leaves it to the
  umask.

A folder cannot hold `a` and `a/b` at once: the second is refused with `InvalidKey`. Empty folders stay.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from logstore.errors import (
    Determinate,
    Indeterminate,
    InvalidKey,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
)
from logstore.objects.homes.disk import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    SHARED_FILE,
    SHARED_FOLDER,
    Disk,
    Folders,
    fsync_folder,
    let_go,
    pread_all,
    write_all,
)
from logstore.objects.homes.local_list import walk
from logstore.objects.keys import check_key, check_prefix
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.objects.ranges import resolve

PRIVATE = ".logstore"
LOCKS = 64
ORPHAN_AGE_S = 24 * 3600.0

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP)
_READS = ("get", "head", "list")
# A failed link, rename or unlink with one of these changed nothing. Any other (EIO, or a network file
# system's timeout) may hide a success.
_NOTHING_HAPPENED = (
    *_REFUSED,
    *_ABSENT,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMLINK,
    errno.ENAMETOOLONG,
    errno.ENOTEMPTY,
    errno.EXDEV,
    errno.ELOOP,
)


class LocalStore:
    """An `ObjectStore` in the folder `root`, which is made by the first put.

    `private`: what it makes is for this user alone. `wall_ns` and `disk` are for tests.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        private: bool = True,
        wall_ns: Callable[[], int] = time.time_ns,
        disk: Disk | None = None,
    ) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self._wall_ns = wall_ns
        self._disk = disk or Disk()
        self._folders = Folders(self._disk, self.root, PRIVATE_FOLDER if private else SHARED_FOLDER)
        self._file_mode = PRIVATE_FILE if private else SHARED_FILE
        self._private = os.path.join(self.root, PRIVATE)
        self._lock = threading.Lock()  # guards the two below; never held during I/O
        self._doubtful_folders: set[str] = set()
        self._temporary_count = 0

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    @property
    def url(self) -> str:
        """What opens it again, also in another process."""
        return Path(self.root).as_uri()

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        path = self._path(key)
        try:
            self._settle(path)
            disk = self._disk
            descriptor = disk.open(path, os.O_RDONLY)
            try:
                size = disk.fstat(descriptor).st_size
                first, last = resolve(start, end, size)
                data = pread_all(disk, descriptor, last - first, first)
                if len(data) < last - first:
                    raise Determinate(
                        f"{key}: the file shrank while it was read, from {size} bytes; read it again"
                    )
                return data
            finally:
                let_go(disk, descriptor)
        except OSError as error:
            if error.errno in _ABSENT:
                raise ObjectNotFound(f"{key}: no such object below {self.root}") from None
            _fail("get", key, error)

    def head(self, key: str) -> ObjectInfo | None:
        try:
            self._settle(self._path(key))
            return self._stat(key)
        except OSError as error:
            _fail("head", key, error)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._list(prefix, start_after)

    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        try:
            for key, status in walk(self._disk, self.root, prefix, start_after, hidden=PRIVATE):
                yield _info(key, status)
        except OSError as error:
            _fail("list", prefix, error)

    # -- writing ---------------------------------------------------------------------------------------------

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        path = self._path(key)
        try:
            self._folders.make(os.path.dirname(path))
            temporary, status = self._write_temporary(data)
        except OSError as error:
            _fail("put", key, error)
        try:
            if if_absent:
                self._name_it(self._disk.link, temporary, path, key)
            else:
                status = self._replace(temporary, status, path, key, if_match)
        except PreconditionFailed:
            # What is in the way may be a moment old. The caller will build on it, so a crash must not take it.
            try:
                fsync_folder(self._disk, os.path.dirname(path))
            except OSError as error:
                _fail("put", key, error)
            raise
        finally:
            # After a rename there is none. One that cannot be removed is swept later and harms nobody.
            with suppress(OSError):
                self._disk.unlink(temporary)
        self._fsync_after("put", key, path)
        return _info(key, status)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._locked("delete", key):
            try:
                self._disk.unlink(path)
            except OSError as error:
                if error.errno not in _ABSENT:
                    self._fail_naming("delete", key, path, error)
                try:
                    self._settle(path)
                except OSError as doubt:
                    _fail("delete", key, doubt)
                return
        self._fsync_after("delete", key, path)

    def _replace(
        self, temporary: str, status: os.stat_result, path: str, key: str, if_match: str | None
    ) -> os.stat_result:
        """Rename over what is there, if it is what the caller expects.

        The version grows even if the clock does not.
        """
        with self._locked("put", key):
            try:
                old = self._stat(key)
                if if_match is not None and (old is None or old.etag != if_match):
                    now = "there is none" if old is None else f"its etag is {old.etag}"
                    raise PreconditionFailed(f"{key}: expected etag {if_match}, but {now}")
                if old is not None and status.st_mtime_ns <= (old_version := _version(old.etag)):
                    status = self._stamp(temporary, old_version + 1000)
            except OSError as error:
                _fail("put", key, error)
            self._name_it(self._disk.rename, temporary, path, key)
        return status

    def _name_it(self, name: Callable[[str, str], None], temporary: str, path: str, key: str) -> None:
        """Link or rename: the moment at which the object exists."""
        try:
            try:
                name(temporary, path)
            except FileNotFoundError:
                # Someone removed the folder since we last made sure of it: make it, and try once more.
                self._folders.forget()
                self._folders.make(os.path.dirname(path))
                name(temporary, path)
        except FileExistsError:
            raise PreconditionFailed(f"{key}: there is an object already") from None
        except OSError as error:
            self._fail_naming("put", key, path, error)

    def _write_temporary(self, data: Buffer) -> tuple[str, os.stat_result]:
        """A complete, fsynced file beside the key space, stamped with its version."""
        with self._lock:
            self._temporary_count += 1
            number = self._temporary_count
        if number == 1:
            self._sweep()
        folder = os.path.join(self._private, "tmp")
        path = os.path.join(folder, f"{os.getpid()}-{threading.get_ident()}-{number}-{os.urandom(4).hex()}")
        disk = self._disk
        descriptor = self._open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_all(disk, descriptor, memoryview(data).cast("B"))
            # Whole microseconds: every file system worth the name keeps those. The clock's tick would be too
            # coarse.
            version = self._wall_ns() // 1000 * 1000
            disk.utime(descriptor, version)
            disk.fsync(descriptor)
            return path, disk.fstat(descriptor)
        except BaseException:
            with suppress(OSError):
                disk.unlink(path)
            raise
        finally:
            let_go(disk, descriptor)

    def _open_private(self, path: str, flags: int) -> int:
        """Open a file of our own, below `.logstore`. A power cut may take what lies there."""
        try:
            return self._disk.open(path, flags, self._file_mode)
        except FileNotFoundError:
            self._folders.make_plainly(os.path.dirname(path))
            return self._disk.open(path, flags, self._file_mode)

    def _stamp(self, path: str, version: int) -> os.stat_result:
        disk = self._disk
        descriptor = disk.open(path, os.O_WRONLY)
        try:
            disk.utime(descriptor, version)
            disk.fsync(descriptor)
            return disk.fstat(descriptor)
        finally:
            let_go(disk, descriptor)

    def _sweep(self) -> None:
        """Remove what crashed puts left behind, once in a store's life."""
        folder = os.path.join(self._private, "tmp")
        before = self._wall_ns() / 1e9 - ORPHAN_AGE_S
        with suppress(OSError):
            for name in self._disk.listdir(folder):
                path = os.path.join(folder, name)
                with suppress(OSError):
                    if self._disk.stat(path).st_mtime < before:
                        self._disk.unlink(path)

    def _fsync_after(self, operation: str, key: str, path: str) -> None:
        try:
            fsync_folder(self._disk, os.path.dirname(path))
        except OSError as error:
            self._doubt(path)
            why = f"done, but the folder could not be fsynced ({error.strerror}), so a crash may undo it"
            raise Indeterminate(f"{operation} {key}: {why}") from error

    def _doubt(self, path: str) -> None:
        """A change at `path` has happened, or may have, and was not fsynced."""
        with self._lock:
            self._doubtful_folders.add(os.path.dirname(path))

    def _fail_naming(self, operation: str, key: str, path: str, error: OSError) -> NoReturn:
        """The call failed that gives or takes the name. If it may have happened, nobody looks before an fsync."""
        if error.errno not in _NOTHING_HAPPENED:
            self._doubt(path)
        _fail(operation, key, error, writing=True)

    def _settle(self, path: str) -> None:
        """Whether what is at `path` is durable must be certain before anybody looks at it.

        A later fsync of a folder does not succeed for nothing: names go through the file system's journal, and
        one that could not write that takes no more of them.
        """
        if self._doubtful_folders and (folder := os.path.dirname(path)) in self._doubtful_folders:
            with suppress(FileNotFoundError):
                fsync_folder(self._disk, folder)
            with self._lock:
                self._doubtful_folders.discard(folder)

    @contextmanager
    def _locked(self, operation: str, key: str) -> Iterator[None]:
        """Holds against every thread and process that replaces or deletes this key."""
        path = os.path.join(self._private, "locks", f"{zlib.crc32(key.encode()) % LOCKS:02d}")
        try:
            descriptor = self._open_private(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            _fail(operation, key, error)
        try:
            try:
                self._disk.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                _fail(operation, key, error)
            yield
        finally:
            let_go(self._disk, descriptor)

    # -- names -----------------------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        check_key(key)
        if key == PRIVATE or key.startswith(PRIVATE + "/"):
            raise InvalidKey(
                f"{key!r}: {PRIVATE}/ is where a local store keeps its own files; use another key"
            )
        return os.path.join(self.root, key)

    def _stat(self, key: str) -> ObjectInfo | None:
        try:
            status = self._disk.stat(self._path(key))
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        return None if stat.S_ISDIR(status.st_mode) else _info(key, status)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}")


def _version(etag: str) -> int:
    return int(etag.partition("-")[0], 16)


def _fail(operation: str, key: str, error: OSError, *, writing: bool = False) -> NoReturn:
    """Raise our error for an OSError. `writing`: the call that failed was the one that makes the change."""
    raise _translate(operation, key, error, writing) from error


def _translate(operation: str, key: str, error: OSError, writing: bool) -> StoreError:
    why = f"{operation} {key}: {error.strerror or error}"
    if writing and error.errno not in _NOTHING_HAPPENED:
        return Indeterminate(f"{why}. It may have happened: look before you try again")
    if error.errno in _REFUSED:
        access = "read" if operation in _READS else "write"
        refused = StoreUnavailable(f"{why}. Give this user {access} access to {error.filename!r}")
        refused.retriable = False
        return refused
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Determinate(f"{why}. Nothing was stored: free some space")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ENOTEMPTY):
        return InvalidKey(
            f"{why}. A folder cannot hold this key: a part of it is a file, a folder, or too long a name"
        )
    return Determinate(f"{why}. Nothing was stored")
