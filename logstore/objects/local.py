"""Objects as files below one folder, for one machine: durable when a call returns, atomic across processes.

* A put writes a temporary file, fsyncs it, gives it its final name in one step (`link` for create-if-absent,
  `rename` otherwise) and fsyncs the folder, and once per process every folder above it. Nobody ever sees half
  an object. If that last fsync fails, the object is there and a crash may take it: then nothing in its folder
  can be read here before an fsync has succeeded, because who reads what it wrote takes it for stored.
* Replacing and deleting take a file lock (one of 64, by key) that holds across threads and processes, so that
  nothing can change an object between the comparison of `if_match` and the rename. Creating needs no lock:
  `link` decides.
* The etag is inode, size and a version kept in the file's modification time. The version grows with each
  replacement, whatever the clock does, and an edit by hand changes it too.
* `‹root›/.logstore/` holds temporary files and locks and is no part of the key space. Left-overs of a crash
  stay invisible there and are swept after a day.

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
from logstore.objects.keys import check_key, check_prefix
from logstore.objects.local_list import walk
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
    """An `ObjectStore` in the folder `root`, which is made by the first put."""

    def __init__(self, root: str | os.PathLike[str], *, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self._wall_ns = wall_ns
        self._private = os.path.join(self.root, PRIVATE)
        self._lock = threading.Lock()  # guards the three below; never held during I/O
        self._durable_folders: set[str] = set()
        self._doubtful_folders: set[str] = set()
        self._temporary_count = 0

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        path = self._path(key)
        try:
            self._settle(path)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                first, last = resolve(start, end, size)
                data = os.pread(descriptor, last - first, first)
                while len(data) < last - first:  # Linux moves at most 2 GiB in one call
                    more = os.pread(descriptor, last - first - len(data), first + len(data))
                    if not more:
                        raise Determinate(
                            f"{key}: the file shrank while it was read, from {size} bytes; read it again"
                        )
                    data += more
                return data
            finally:
                os.close(descriptor)
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
            for key, status in walk(self.root, prefix, start_after, hidden=PRIVATE):
                yield _info(key, status)
        except OSError as error:
            _fail("list", prefix, error)

    # -- writing ---------------------------------------------------------------------------------------------

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        path = self._path(key)
        try:
            self._make_folder(os.path.dirname(path))
            temporary, status = self._write_temporary(data)
        except OSError as error:
            _fail("put", key, error)
        try:
            if if_absent:
                self._name_it(os.link, temporary, path, key)
            else:
                status = self._replace(temporary, status, path, key, if_match)
        except PreconditionFailed:
            # What is in the way may be a moment old. The caller will build on it, so a crash must not take it.
            try:
                _fsync_folder(os.path.dirname(path))
            except OSError as error:
                _fail("put", key, error)
            raise
        finally:
            # After a rename there is none. One that cannot be removed is swept later and harms nobody.
            with suppress(OSError):
                os.unlink(temporary)
        self._fsync_after("put", key, path)
        return _info(key, status)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._locked("delete", key):
            try:
                os.unlink(path)
            except OSError as error:
                if error.errno not in _ABSENT:
                    _fail("delete", key, error, writing=True)
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
                    status = _stamp(temporary, old_version + 1000)
            except OSError as error:
                _fail("put", key, error)
            self._name_it(os.rename, temporary, path, key)
        return status

    def _name_it(self, name: Callable[[str, str], None], temporary: str, path: str, key: str) -> None:
        """Link or rename: the moment at which the object exists."""
        try:
            try:
                name(temporary, path)
            except FileNotFoundError:
                # Someone removed the folder since we last made sure of it: make it, and try once more.
                with self._lock:
                    self._durable_folders.clear()
                self._make_folder(os.path.dirname(path))
                name(temporary, path)
        except FileExistsError:
            raise PreconditionFailed(f"{key}: there is an object already") from None
        except OSError as error:
            _fail("put", key, error, writing=True)

    def _write_temporary(self, data: Buffer) -> tuple[str, os.stat_result]:
        """A complete, fsynced file beside the key space, stamped with its version."""
        with self._lock:
            self._temporary_count += 1
            number = self._temporary_count
        if number == 1:
            self._sweep()
        folder = os.path.join(self._private, "tmp")
        path = os.path.join(folder, f"{os.getpid()}-{threading.get_ident()}-{number}-{os.urandom(4).hex()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o644)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            descriptor = os.open(path, flags, 0o644)
        try:
            rest = memoryview(data).cast("B")
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            # Whole microseconds: every file system worth the name keeps those. The clock's tick would be too
            # coarse.
            version = self._wall_ns() // 1000 * 1000
            os.utime(descriptor, ns=(version, version))
            os.fsync(descriptor)
            return path, os.fstat(descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what crashed puts left behind, once in a store's life."""
        folder = os.path.join(self._private, "tmp")
        before = self._wall_ns() / 1e9 - ORPHAN_AGE_S
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.stat().st_mtime < before:
                        os.unlink(entry.path)

    def _make_folder(self, folder: str) -> None:
        """Make `folder` and what is missing above it, durably: a folder is safe once the one above is fsynced.

        Each process fsyncs the whole way down once, even where the folders exist: another process may have
        made them a moment ago and not have come to its own fsync yet.
        """
        with self._lock:
            if folder in self._durable_folders:
                return
        top = self.root
        while not os.path.isdir(os.path.dirname(top)):
            top = os.path.dirname(top)
        os.makedirs(folder, exist_ok=True)
        made = [folder]
        while made[-1] != top:
            made.append(os.path.dirname(made[-1]))
        for one in made:
            with self._lock:
                if one in self._durable_folders:
                    break
            try:
                _fsync_folder(os.path.dirname(one))
            except PermissionError:
                # A folder above the root that we may not open is one that we did not change.
                if len(one) > len(self.root):
                    raise
        with self._lock:
            self._durable_folders.update(made)

    def _fsync_after(self, operation: str, key: str, path: str) -> None:
        folder = os.path.dirname(path)
        try:
            _fsync_folder(folder)
        except OSError as error:
            with self._lock:
                self._doubtful_folders.add(folder)
            why = f"done, but the folder could not be fsynced ({error.strerror}), so a crash may undo it"
            raise Indeterminate(f"{operation} {key}: {why}") from error

    def _settle(self, path: str) -> None:
        """Whether what stands at `path` is durable must be certain before anybody looks at it.

        A later fsync of a folder does not succeed for nothing: names go through the file system's journal, and
        one that could not write that takes no more of them.
        """
        if self._doubtful_folders and (folder := os.path.dirname(path)) in self._doubtful_folders:
            with suppress(FileNotFoundError):
                _fsync_folder(folder)
            with self._lock:
                self._doubtful_folders.discard(folder)

    @contextmanager
    def _locked(self, operation: str, key: str) -> Iterator[None]:
        """Holds against every thread and process that replaces or deletes this key."""
        path = os.path.join(self._private, "locks", f"{zlib.crc32(key.encode()) % LOCKS:02d}")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            try:
                descriptor = os.open(path, flags, 0o644)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            _fail(operation, key, error)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                _fail(operation, key, error)
            yield
        finally:
            os.close(descriptor)

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
            status = os.stat(self._path(key))
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        return None if stat.S_ISDIR(status.st_mode) else _info(key, status)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}")


def _version(etag: str) -> int:
    return int(etag.partition("-")[0], 16)


def _stamp(path: str, version: int) -> os.stat_result:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.utime(descriptor, ns=(version, version))
        os.fsync(descriptor)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _fsync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
