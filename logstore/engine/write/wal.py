"""The local WAL: what makes a `local` ack survive kill -9 and a reboot.

One folder for each partition, `‹wal_dir›/‹store id›/‹topic›/‹incarnation›/‹partition›/`, with numbered files.
Everything that waits is written as one frame and fsynced once (group commit); the next frame is written only after
that fsync returned. Files whose records are durable in the object store are deleted. A file whose write or fsync failed is
left alone from then on: what the kernel still holds of it is unknown, and the next fsync would say "fine" of what the last
one lost. So a new one is begun with all that is not yet durable, and the ack waits for that.

Only the file that is being written has a descriptor, and it is closed once, in one place. What cannot be deleted is tried
again at the next write, at the close and when the next writer opens; until then it is in nobody's way.

Only one process may use a folder: a second one could replay and delete what the first still acks. An flock says so.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from logstore.engine.chain.tail import ChainTail
from logstore.engine.memory.pending_batch import PendingBatch
from logstore.errors import CorruptData, StoreUnavailable, UnsupportedStore
from logstore.format.batches.batch import validate
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.encoded_batch import EncodedBatch, as_stored
from logstore.format.stored.wal import HEADER_SIZE, WalHeader, is_unwritten, pack_frame, parse_frames
from logstore.objects.homes.disk import Folders, fsync_folder, let_go, read_all, write_all

logger = logging.getLogger(__name__)

FILE_BYTES = 16 << 20
ORPHAN_SUFFIX = ".orphaned"


@dataclass(slots=True)
class _File:
    """`end_offset`: where what was fsynced in it ends. `handle`: of the file that is being written, else None."""

    path: Path
    handle: int | None
    end_offset: int
    size: int


class Wal:
    """Used by `take_over`, then by the partition's `LocalSync` task. `_guard` is held while files are written or closed, so
    that a close never pulls a file handle away from under a write."""

    def __init__(self, folder: Path, folders: Folders) -> None:
        self.folder = folder
        self.end_offset = 0
        self._disk = folders.disk
        self._epoch = 0
        self._number = 0
        self._current: _File | None = None
        self._found: list[Path] = []
        self._full: list[_File] = []
        self._guard = threading.Lock()
        self._closed = False
        try:
            self._lock = self._open_lock(folders)
        except OSError as error:
            raise UnsupportedStore(
                f"{folder}: no WAL can be kept here ({error.strerror}): set wal_dir to a folder on a local disk that this "
                "user may write and that has room"
            ) from error
        try:
            self._disk.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            let_go(self._disk, self._lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise UnsupportedStore(
                    f"{folder}: no WAL can be kept here, the folder cannot be locked ({error.strerror}): set wal_dir to a "
                    "folder on a local disk"
                ) from error
            raise UnsupportedStore(
                f"{folder}: another process writes this WAL; stop it, or give each process its own wal_dir"
            ) from error

    def _open_lock(self, folders: Folders) -> int:
        where, path = os.path.abspath(self.folder), self.folder / "lock"
        folders.make(where)
        try:
            return self._disk.open(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            folders.forget()  # somebody removed the folder since it was made
            folders.make(where)
            return self._disk.open(path, os.O_RDWR | os.O_CREAT)

    # Recovery

    def recover(self, tail: ChainTail, is_lost: Callable[[int, int], bool]) -> list[EncodedBatch]:
        """The batches of the last writer that the store does not have, from the chain's end on, in order.

        If another writer has been there since, its fence has declared their offsets lost (`is_lost(start, end)`): the files
        are kept under another name and the log says so.
        """
        try:
            return self._recover(tail, is_lost)
        except OSError as error:
            # What it holds may have been acked, so nobody may write before it was read.
            raise StoreUnavailable(
                f"{error.filename or self.folder}: the WAL could not be read back ({error.strerror}), nothing was appended: "
                "mend the disk, or take the folder away if what was acked `local` there may be lost"
            ) from error

    def _recover(self, tail: ChainTail, is_lost: Callable[[int, int], bool]) -> list[EncodedBatch]:
        expected = tail.end_offset
        kept: list[EncodedBatch] = []
        torn: Path | None = None
        self._found = self._files()
        for path in [*self._found]:
            header, batches, whole = _read_file(path, read_all(self._disk, path), expected)
            missing = [batch for batch in batches if batch.end_offset > expected]
            if header.epoch != tail.epoch:
                missing += [
                    batch
                    for batch in batches
                    if batch.end_offset <= expected and is_lost(batch.base_offset, batch.end_offset)
                ]
                if missing:
                    self._set_aside(path, missing, tail)
                continue
            for batch in missing:
                if batch.base_offset != expected:
                    damaged = torn or path
                    raise CorruptData(
                        str(damaged), expected, f"the WAL goes on at offset {batch.base_offset}"
                    )
                kept.append(batch)
                expected = batch.end_offset
            torn = None if whole else path
        return kept

    def start(self, epoch: int, end_offset: int) -> None:
        """Begin as the writer of `epoch`. Everything that was here is durable now; the epoch says so of what stays."""
        for path in self._found:
            self._full.append(_File(path, None, -1, 0))
            self._number = max(self._number, int(path.stem) if path.stem.isdigit() else 0)
        self._drop_durable(end_offset)
        self._epoch = epoch
        self.end_offset = end_offset

    def _files(self) -> list[Path]:
        names = self._disk.listdir(self.folder)
        return [self.folder / name for name in sorted(names) if name.endswith(".wal")]

    def _set_aside(self, path: Path, missing: list[EncodedBatch], tail: ChainTail) -> None:
        kept = path.with_name(f"{path.stem}-from-{missing[0].base_offset}.wal{ORPHAN_SUFFIX}")
        self._disk.rename(path, kept)
        self._found.remove(path)
        fsync_folder(self._disk, self.folder)
        logger.error(
            "%s: offsets %d to %d were acked here (local) and another writer (epoch %d) took over before they were "
            "stored: they are lost to the log and kept in this file",
            kept,
            min(batch.base_offset for batch in missing),
            max(batch.end_offset for batch in missing) - 1,
            tail.epoch,
        )

    # Writing

    def write(self, batches: list[PendingBatch], durable: int) -> None:
        """Append the batches as one frame and fsync. On any error nothing of it counts: call again with all that is not
        durable by then (`end_offset` says from where)."""
        parts: list[bytes | bytearray | memoryview] = []
        for batch in batches:
            encoded = batch.encoded()
            parts += (encoded.head, encoded.body)
        with self._guard:
            if not self._closed:
                self._write(pack_frame(parts), batches, durable)

    def _write(self, frame: bytes, batches: list[PendingBatch], durable: int) -> None:
        self._drop_durable(durable)
        try:
            file = self._file_for(batches[0].base_offset)
            assert file.handle is not None, "the current file is open"
            write_all(self._disk, file.handle, memoryview(frame))
            self._disk.fsync(file.handle)
        except OSError:
            self._retire()
            self.end_offset = durable
            raise
        file.size += len(frame)
        file.end_offset = self.end_offset = batches[-1].end_offset

    def _file_for(self, base_offset: int) -> _File:
        if self._current is not None and self._current.size < FILE_BYTES:
            return self._current
        self._retire()
        self._number += 1
        file = _File(self.folder / f"{self._number:020d}.wal", None, -1, HEADER_SIZE)
        self._current = file  # before it is opened: an open that fails may have made it
        file.handle = self._disk.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        write_all(self._disk, file.handle, memoryview(WalHeader(self._epoch, base_offset).pack()))
        fsync_folder(self._disk, self.folder)
        return file

    def _retire(self) -> None:
        """Write no more to the current file. It is closed here and nowhere else, whatever becomes of it."""
        file, self._current = self._current, None
        if file is not None:
            self._full.append(file)
            handle, file.handle = file.handle, None
            if handle is not None:
                let_go(self._disk, handle)

    def _drop_durable(self, durable: int) -> None:
        """Delete files that hold nothing which was acked and is not durable. What cannot be deleted stays listed."""
        self._full = [file for file in self._full if file.end_offset > durable or not self._delete(file.path)]

    def _delete(self, path: Path) -> bool:
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            logger.debug("%s: not needed any more, and could not be deleted: %s", path, error)
            return False
        return True

    def after_fork_in_child(self) -> None:
        """After a fork, in the child: its copy of the lock would keep the folder locked for as long as the child lives."""
        if not self._closed:
            self._closed = True
            let_go(self._disk, self._lock)

    def close(self, durable: int) -> None:
        """Let go of the folder; files whose records are all durable are deleted. A second call does nothing."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._retire()
            self._drop_durable(durable)
            let_go(self._disk, self._lock)


def _read_file(path: Path, data: bytes, expected: int) -> tuple[WalHeader, list[EncodedBatch], bool]:
    """A file's header and batches, and whether it ends with a whole frame. `expected` is the first offset of interest.

    A torn end is normal after a crash (nothing in it was acked); if it was no crash, the next file does not fit on, or
    the offsets that are missing lie below what was reserved, and are reported as lost. A file without a header was named
    and never fsynced: a power cut has left it so, and nothing in it was acked.
    """
    if is_unwritten(data):
        logger.warning(
            "%s: %d bytes that were never fsynced, none of them acked, are passed over", path, len(data)
        )
        return WalHeader(0, 0), [], False
    try:
        header = WalHeader.parse(data)
        payloads, good = parse_frames(data)
        batches = [
            as_stored(
                payload[info.position : info.position + info.size],
                info.base_offset,
                info.count,
                info.min_timestamp_ms,
                info.max_timestamp_ms,
            )
            for payload in payloads
            for info in validate(payload, max_batch_bytes=len(payload), control=True)
        ]
    except UnsupportedVersion as error:
        raise UnsupportedStore(f"{path}: {error.why}. A newer release has written it: use that") from error
    except FormatError as damage:
        raise CorruptData(str(path), expected, str(damage)) from damage
    if good < len(data):
        logger.warning("%s: the last %d bytes are a torn frame and are cut off", path, len(data) - good)
    return header, batches, good == len(data)
