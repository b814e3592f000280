"""The local WAL: what makes a `local` ack survive kill -9 and a reboot.

One folder for each partition, `‹wal_dir›/‹store id›/‹topic›/‹incarnation›/‹partition›/`, with numbered files.
Everything that waits is written as one frame and fsynced once (group commit); the next frame is written only after
that fsync returned. Files whose records are durable in the object store are deleted. A file whose fsync failed is left
alone from then on: what the kernel still holds of it is unknown, so a new one is begun with all that is not yet durable.

Only one process may use a folder: a second one could replay and delete what the first still acks. An flock says so.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from logstore.engine.chain import ChainTail
from logstore.engine.pending_batch import PendingBatch
from logstore.errors import CorruptData, UnsupportedStore
from logstore.format.batch import PATCH_SIZE, validate
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.segment import EncodedBatch
from logstore.format.wal import HEADER_SIZE, WalHeader, pack_frame, parse_frames

logger = logging.getLogger(__name__)

FILE_BYTES = 16 << 20
ORPHAN_SUFFIX = ".orphaned"


@dataclass(slots=True)
class _File:
    path: Path
    handle: int
    end_offset: int
    size: int


class Wal:
    """Used by `take_over`, then by the partition's `LocalSync` task. `_guard` is held while files are written or closed, so
    that a close never pulls a file handle away from under a write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.end_offset = 0
        self._epoch = 0
        self._number = 0
        self._current: _File | None = None
        self._full: list[_File] = []
        self._guard = threading.Lock()
        self._closed = False
        try:
            _make_folders(folder)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UnsupportedStore(
                f"{folder}: no WAL can be kept here ({error.strerror}): set wal_dir to a folder on a local disk that this "
                "user may write"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UnsupportedStore(
                f"{folder}: another process writes this WAL; stop it, or give each process its own wal_dir"
            ) from error

    # Recovery

    def recover(self, tail: ChainTail, is_lost: Callable[[int, int], bool]) -> list[EncodedBatch]:
        """The batches of the last writer that the store does not have, from the chain's end on, in order.

        If another writer has been there since, its fence has declared their offsets lost (`is_lost(start, end)`): the files
        are kept under another name and the log says so.
        """
        expected = tail.end_offset
        kept: list[EncodedBatch] = []
        torn: Path | None = None
        for path in self._files():
            header, batches, whole = _read_file(path, expected)
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
        """Begin as the writer of `epoch`. Everything that was here is durable now."""
        for path in self._files():
            path.unlink()
        self._epoch, self._number = epoch, 0
        self.end_offset = end_offset

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.wal"))

    def _set_aside(self, path: Path, missing: list[EncodedBatch], tail: ChainTail) -> None:
        kept = path.with_name(f"{path.stem}-from-{missing[0].base_offset}.wal{ORPHAN_SUFFIX}")
        path.rename(kept)
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
            _write_all(file.handle, frame)
            os.fsync(file.handle)
        except OSError:
            self._abandon(durable)
            raise
        file.size += len(frame)
        file.end_offset = self.end_offset = batches[-1].end_offset

    def _file_for(self, base_offset: int) -> _File:
        if self._current is not None and self._current.size < FILE_BYTES:
            return self._current
        if self._current is not None:
            self._full.append(self._current)
            self._current = None
        self._number += 1
        path = self.folder / f"{self._number:020d}.wal"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._current = _File(path, handle, base_offset, HEADER_SIZE)
        _write_all(handle, WalHeader(self._epoch, base_offset).pack())
        _fsync_folder(self.folder)
        return self._current

    def _abandon(self, durable: int) -> None:
        if self._current is not None:
            self._full.append(self._current)
            self._current = None
        self.end_offset = durable

    def _drop_durable(self, durable: int) -> None:
        keep = []
        for file in self._full:
            if file.end_offset <= durable:
                os.close(file.handle)
                file.path.unlink(missing_ok=True)
            else:
                keep.append(file)
        self._full = keep

    def leave_to_parent(self) -> None:
        """After a fork, in the child: its copy of the lock would keep the folder locked for as long as the child lives."""
        if not self._closed:
            self._closed = True
            os.close(self._lock)

    def close(self, durable: int) -> None:
        """Let go of the folder; files whose records are all durable are deleted. A second call does nothing."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            for file in [*self._full, *([self._current] if self._current else [])]:
                os.close(file.handle)
                if file.end_offset <= durable:
                    file.path.unlink(missing_ok=True)
            self._full, self._current = [], None
            os.close(self._lock)


def _read_file(path: Path, expected: int) -> tuple[WalHeader, list[EncodedBatch], bool]:
    """A file's header and batches, and whether it ends with a whole frame. `expected` is the first offset of interest.

    A torn end is normal after a crash (nothing in it was acked); if it was no crash, the next file does not fit on, or
    the offsets that are missing lie below what was reserved, and are reported as lost.
    """
    data = path.read_bytes()
    if len(data) < HEADER_SIZE:
        return WalHeader(0, 0), [], False
    try:
        header = WalHeader.parse(data)
        payloads, good = parse_frames(data)
        batches = [
            EncodedBatch(
                bytes(payload[info.position : info.position + PATCH_SIZE]),
                payload[info.position + PATCH_SIZE : info.position + info.size],
                info.base_offset,
                info.count,
                info.min_timestamp_ms,
                info.max_timestamp_ms,
            )
            for payload in payloads
            for info in validate(payload, max_batch_bytes=len(payload))
        ]
    except UnsupportedVersion as error:
        raise UnsupportedStore(f"{path}: {error.why}. A newer release has written it: use that") from error
    except FormatError as damage:
        raise CorruptData(str(path), expected, str(damage)) from damage
    if good < len(data):
        logger.warning("%s: the last %d bytes are a torn frame and are cut off", path, len(data) - good)
    return header, batches, good == len(data)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _make_folders(folder: Path) -> None:
    """Create the folder and make its entry, and those above it that are new, survive a power cut."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        _fsync_folder(new.parent)


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
