"""The local WAL: what makes a `local` ack survive kill -9 and a reboot.

One folder for a store, `‹wal_dir›/‹store id›/@wal/`, with numbered files, for all partitions that this process writes.
Everything that waits is written as one frame and fsynced once (group commit); the next frame is written only after that
fsync returned. Files of which every partition's records are durable in the object store are deleted. After a write or an
fsync that failed a new file is begun, with all that the failed one held and that is not durable yet, and acks wait for that.

A partition reads back what is its own when its writer is opened (`WalPart.recover`). Until then the files that hold
something of it stay, however long that takes.

Only one process may use a folder: a second one could replay and delete what the first still acks. An flock says so.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from logstore.engine.chain.tail import ChainTail
from logstore.engine.memory.pending_batch import PendingBatch
from logstore.engine.write.wal.former_files import FormerFiles
from logstore.engine.write.wal.recovery import (
    FromFile,
    Written,
    batches_in,
    damaged,
    judge,
    sections_of,
)
from logstore.engine.write.wal.wal_files import UNSETTLED, WalFiles
from logstore.errors import Closed, LogStoreError, StoreUnavailable, UnsupportedStore
from logstore.format.errors import FormatError
from logstore.format.stored.encoded_batch import EncodedBatch
from logstore.format.stored.segment import Bytes
from logstore.format.stored.wal import Section, Unpacked, pack_frame, pack_header
from logstore.layout.paths import PartitionPaths
from logstore.objects.homes.disk import Folders, fsync_folder, let_go, read_all, write_all

logger = logging.getLogger(__name__)

FOLDER = "@wal"
"""No topic can have this name. Beside it: folders of topics, with what was kept aside and what older releases left."""
ORPHAN_SUFFIX = ".orphaned"

_Indexed = tuple[dict[str, list[Section]], bool]
"""The sections of a file by partition, and whether it ends with a whole frame."""


class Wal:
    """Safe for threads. `_entering` is held while the folder is locked and read, `_guard` while files are written or
    closed, so that a close never pulls a file away from under a write: whoever waits for one of them waits for the disk."""

    def __init__(self, folder: Path, folders: Folders) -> None:
        self.folder = folder / FOLDER
        self._above = folder
        self._folders = folders
        self.disk = folders.disk
        self._files = WalFiles(self.folder, self.disk)
        self._parts: dict[str, WalPart] = {}  # that are being written
        self._index: dict[Path, _Indexed] | None = None  # of the files that were here before us
        self._lock: int | None = None
        self._entering = threading.Lock()
        self._guard = threading.Lock()
        self._closed = False

    def part(self, paths: PartitionPaths) -> WalPart:
        """What there is of a partition. Raises `UnsupportedStore` if there can be no WAL here, or another process has it;
        `Closed` after `close`."""
        self._enter()
        return WalPart(self, paths, self._above / paths.topic / paths.incarnation / str(paths.partition))

    def _enter(self) -> None:
        with self._entering:
            if self._closed:  # it would be locked for as long as the process lives
                raise Closed(f"{self.folder}: the store is closed")
            if self._lock is None:
                self._lock = self._locked()

    def _locked(self) -> int:
        try:
            lock = self._open_lock()
        except OSError as error:
            raise UnsupportedStore(
                f"{self.folder}: no WAL can be kept here ({error.strerror}): set wal_dir to a folder on a local disk that "
                "this user may write and that has room"
            ) from error
        try:
            self.disk.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            let_go(self.disk, lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise UnsupportedStore(
                    f"{self.folder}: no WAL can be kept here, the folder cannot be locked ({error.strerror}): set wal_dir "
                    "to a folder on a local disk"
                ) from error
            raise UnsupportedStore(
                f"{self.folder}: another process writes this WAL; stop it, or give each process its own wal_dir"
            ) from error
        return lock

    def _open_lock(self) -> int:
        where, path = os.path.abspath(self.folder), self.folder / "lock"
        self._folders.make(where)
        try:
            return self.disk.open(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            self._folders.forget()  # somebody removed the folder since it was made
            self._folders.make(where)
            return self.disk.open(path, os.O_RDWR | os.O_CREAT)

    # Reading back

    def files_of(self, prefix: str, expected: int) -> list[FromFile]:
        """What each file has of the partition; `expected`: the first offset of interest, for the words."""
        index = self._known(expected)
        with self._guard:
            paths = self._files.of(prefix)
        return [self._read(path, index.get(path), prefix, expected) for path in paths]

    def forget_deleted(self, is_deleted: Callable[[str, str], bool]) -> None:
        """Let go of what is here of topics that were deleted, whoever did it: nobody will open them. `is_deleted` is given
        a topic and its incarnation. If the folder cannot be read, or is another's, it is left as it is."""
        with suppress(OSError, LogStoreError):
            self._enter()
            self._known(0)
            with self._guard:
                held = {
                    PartitionPaths.of(prefix): prefix for prefix in self._files.held() - self._parts.keys()
                }
            topics = {(paths.topic, paths.incarnation) for paths in held if paths is not None}
            gone = {topic for topic in topics if is_deleted(*topic)}
            for paths, prefix in held.items():
                if paths is not None and (paths.topic, paths.incarnation) in gone:
                    self._settle(prefix, None)

    def _known(self, expected: int) -> dict[Path, _Indexed]:
        with self._entering:
            self._index = self._read_index(expected) if self._index is None else self._index
            return self._index

    def _read_index(self, expected: int) -> dict[Path, _Indexed]:
        """Of all files that are here, each of which is read once. A damaged frame of which it is not known whose it is
        stops everybody: it may hold the last records of anybody."""
        index = {path: self._indexed(path, expected) for path in self._files.found()}
        with self._guard:
            for path, (sections, _) in index.items():
                self._files.adopt(path, set(sections))
        return index

    def _indexed(self, path: Path, expected: int) -> _Indexed:
        sections: dict[str, list[Section]] = {}
        try:
            found, is_whole = sections_of(path, read_all(self.disk, path))
        except FormatError as damage:
            raise damaged(path, expected, damage) from damage
        for section in found:
            sections.setdefault(section.prefix, []).append(section)
        return sections, is_whole

    def _read(self, path: Path, indexed: _Indexed | None, prefix: str, expected: int) -> FromFile:
        sections, is_whole = indexed or self._indexed(path, expected)
        written: list[Written] = []
        descriptor = self.disk.open(path, os.O_RDONLY)
        try:
            for section in sections.get(prefix, ()):
                data = self.disk.pread(descriptor, section.size, section.position)
                try:
                    if not section.is_sound or len(data) != section.size:
                        raise FormatError("a WAL frame before the end is damaged", section.position)
                    written += (Written(section.epoch, batch) for batch in batches_in(memoryview(data)))
                except FormatError as damage:
                    raise damaged(path, expected, damage) from damage
        finally:
            let_go(self.disk, descriptor)
        return FromFile(path, written, is_whole)

    def keep_aside(self, paths: PartitionPaths, folder: Path, lost: list[Written], tail: ChainTail) -> None:
        """These were acked here, and are lost to the log: a file of their own keeps them, and the log says so. Once: while
        other partitions need the file that they are in, they are found again."""
        base, end = min(one.batch.base_offset for one in lost), max(one.batch.end_offset for one in lost)
        path = folder / f"{lost[0].epoch}-from-{base}-to-{end - 1}.wal{ORPHAN_SUFFIX}"
        sections = [Unpacked(paths.prefix, one.epoch, [one.batch.head, one.batch.body]) for one in lost]
        data = pack_header() + pack_frame(sections)
        if self._is_there(path, len(data)):
            return
        self._folders.make(os.path.abspath(folder))
        self._write_new(path, data)
        logger.error(
            "%s: offsets %d to %d were acked here (local) and another writer (epoch %d) took over before they were "
            "stored: they are lost to the log and kept in this file",
            path,
            base,
            end - 1,
            tail.epoch,
        )

    def _is_there(self, path: Path, size: int) -> bool:
        try:
            return self.disk.stat(path).st_size == size
        except FileNotFoundError:
            return False

    def _write_new(self, path: Path, data: bytes) -> None:
        """Under its name it is there whole, or not at all."""
        begun = path.with_name(path.name + ".new")
        descriptor = self.disk.open(begun, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(self.disk, descriptor, memoryview(data))
            self.disk.fsync(descriptor)
        finally:
            let_go(self.disk, descriptor)
        self.disk.rename(begun, path)
        fsync_folder(self.disk, path.parent)

    # Writing

    def begin(self, part: WalPart) -> None:
        """All that was here of the partition is stored, or kept elsewhere; from now on this part is written."""
        self._settle(part.prefix, part)

    def _settle(self, prefix: str, part: WalPart | None) -> None:
        with self._guard:
            if part is not None:
                self._parts[prefix] = part
            elif prefix in self._parts:
                return  # it was opened meanwhile
            self._files.settle(prefix, UNSETTLED)
            self._files.drop(self._durable)
        for sections, _ in (self._index or {}).values():
            sections.pop(prefix, None)

    def write(self, group: Sequence[tuple[WalPart, list[PendingBatch]]]) -> list[WalPart]:
        """Append the batches of all parts as one frame and fsync. Returns those that have it, all but the ones that were
        closed meanwhile. On any error nothing of it counts: call again with all that is not durable by then
        (`WalPart.end_offset` says from where)."""
        with self._guard:
            group = [(part, batches) for part, batches in group if self._parts.get(part.prefix) is part]
            if self._closed or not group:
                return []
            self._files.drop(self._durable)
            frame = pack_frame(Unpacked(part.prefix, part.epoch, _bytes(batches)) for part, batches in group)
            try:
                self._files.write(frame, {part.prefix: batches[-1].end_offset for part, batches in group})
            except OSError:
                for prefix in self._files.in_newest():
                    if prefix in self._parts:
                        self._parts[prefix].end_offset = 0
                raise
            for part, batches in group:
                part.end_offset = batches[-1].end_offset
            return [part for part, _ in group]

    def _durable(self, prefix: str) -> int:
        part = self._parts.get(prefix)
        return -1 if part is None else part.durable()

    def end(self, part: WalPart, durable: int) -> None:
        """The part is written no more. What it has here past `durable` stays until the partition is opened again."""
        with self._guard:
            if self._parts.get(part.prefix) is part:
                del self._parts[part.prefix]
                self._files.settle(part.prefix, durable)

    # The end

    def after_fork_in_child(self) -> None:
        """After a fork, in the child: its copy of the lock would keep the folder locked for as long as the child lives."""
        self._let_go()

    def close(self) -> None:
        """Let go of the folder; files whose records are all durable are deleted. A second call does nothing."""
        with self._entering, self._guard:
            if not self._closed:
                self._files.retire()
                self._files.drop(self._durable)
                self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        lock, self._lock = self._lock, None
        if lock is not None:
            let_go(self.disk, lock)


class WalPart:
    """A partition's share of the WAL: used by `take_over`, then by `LocalSync`. `end_offset`: up to where the WAL has what
    the writer was given; written with the WAL's guard held."""

    def __init__(self, wal: Wal, paths: PartitionPaths, folder: Path) -> None:
        self.prefix = paths.prefix
        self.epoch = 0
        self.end_offset = 0
        self.durable: Callable[[], int] = lambda: -1
        self._wal = wal
        self._paths = paths
        self._folder = folder
        self._former: FormerFiles | None = None

    def recover(self, tail: ChainTail, is_lost: Callable[[int, int], bool]) -> list[EncodedBatch]:
        """The batches of the last writer that the store does not have, from the chain's end on, in order.

        If another writer has been there since, its fence has declared their offsets lost (`is_lost(start, end)`): they are
        kept in a file of their own and the log says so.
        """
        try:
            found = self._found(tail.end_offset)
            kept, lost = judge(found, tail, is_lost)
            if lost:
                self._wal.keep_aside(self._paths, self._folder, lost, tail)
            return kept
        except OSError as error:
            # What it holds may have been acked, so nobody may write before it was read.
            raise StoreUnavailable(
                f"{error.filename or self._wal.folder}: the WAL could not be read back ({error.strerror}), nothing was "
                "appended: mend the disk, or take the folder away if what was acked `local` there may be lost"
            ) from error

    def _found(self, expected: int) -> list[FromFile]:
        """What older releases left is older."""
        if self._former is None:
            self._former = FormerFiles(self._folder, self._wal.disk)
        return [*self._former.read(expected), *self._wal.files_of(self.prefix, expected)]

    @property
    def is_empty(self) -> bool:
        """Whether the WAL has nothing of the partition."""
        try:
            return not any(file.written for file in self._found(0))
        except (OSError, LogStoreError):
            return False  # whoever opens it is told why

    def start(self, epoch: int, end_offset: int, durable: Callable[[], int]) -> None:
        """Begin as the writer of `epoch`. Everything that was here is durable now; the epoch says so of what stays.
        `durable`: up to where what it writes is stored, from memory."""
        self.epoch, self.end_offset, self.durable = epoch, end_offset, durable
        self._wal.begin(self)
        if self._former is not None:
            self._former.drop()

    def close(self, durable: int) -> None:
        """Write no more. A second call does nothing."""
        self._wal.end(self, durable)
        if self._former is not None:
            self._former.close()
            self._former = None


def _bytes(batches: list[PendingBatch]) -> list[Bytes]:
    parts: list[Bytes] = []
    for batch in batches:
        encoded = batch.encoded()
        parts += (encoded.head, encoded.body)
    return parts
