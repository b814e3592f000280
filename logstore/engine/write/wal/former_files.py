"""The WAL that a release up to 0.1 has left of a partition: a folder of its own, with a lock and files of format 1.

They are read when the partition is opened, and deleted once what they hold is stored again; nothing is written there.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from logstore.engine.write.wal.recovery import (
    FromFile,
    Written,
    batches_in,
    damaged,
    newer,
    tell_torn,
    tell_unwritten,
)
from logstore.engine.write.wal.wal_files import WalFiles
from logstore.errors import UnsupportedStore
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.former_wal import is_unwritten, parse_epoch, parse_payloads
from logstore.objects.homes.disk import Disk, let_go, read_all


class FormerFiles:
    """`_lock`: a process of such a release that still runs holds it, and acks what it writes."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._disk = disk
        self._files = WalFiles(folder, disk)
        self._lock: int | None = None
        try:
            self._found = self._files.found()
        except (FileNotFoundError, NotADirectoryError):
            self._found = []
        if self._found:
            self._lock = disk.open(folder / "lock", os.O_RDWR | os.O_CREAT)
            try:
                disk.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self.close()
                raise UnsupportedStore(
                    f"{folder}: another process, of an older release, writes this WAL ({error.strerror}): stop it, or give "
                    "each process its own wal_dir"
                ) from error

    def read(self, expected: int) -> list[FromFile]:
        """All that is in them; `expected`: the first offset of interest, for the words."""
        return [_read(path, read_all(self._disk, path), expected) for path in self._found]

    def drop(self) -> None:
        """What they hold is stored, or kept elsewhere."""
        self._found = [path for path in self._found if not self._files.delete(path)]
        self.close()

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            let_go(self._disk, lock)


def _read(path: Path, data: bytes, expected: int) -> FromFile:
    if is_unwritten(data):
        tell_unwritten(path, data)
        return FromFile(path, [], False)
    try:
        epoch = parse_epoch(data)
        payloads, good = parse_payloads(data)
        written = [Written(epoch, batch) for payload in payloads for batch in batches_in(payload)]
    except UnsupportedVersion as error:
        raise newer(path, error) from error
    except FormatError as damage:
        raise damaged(path, expected, damage) from damage
    tell_torn(path, data, good)
    return FromFile(path, written, good == len(data))
