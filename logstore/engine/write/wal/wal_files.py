"""The numbered files of a WAL: which is being written, what each still holds, and when it may go.

A file whose write or fsync failed is left alone from then on: what the kernel still holds of it is unknown, and the next
fsync would say "fine" of what the last one lost.

Only the file that is being written has a descriptor, and it is closed once, in one place. What cannot be deleted is tried
again at the next write, at the close and when the next process opens; until then it is in nobody's way.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from logstore.format.stored.wal import HEADER_SIZE, pack_header
from logstore.objects.homes.disk import Disk, fsync_folder, let_go, write_all

logger = logging.getLogger(__name__)

FILE_BYTES = 16 << 20
UNSETTLED = 1 << 63
"""Past every offset: what a file holds of a partition is not known to be stored, however far that is."""


@dataclass(slots=True, eq=False)
class WalFile:
    """`holds`: for each partition of which it has something that may be needed, the offset where that ends. `handle`: of the
    file that is being written, else None."""

    path: Path
    handle: int | None = None
    size: int = HEADER_SIZE
    holds: dict[str, int] = field(default_factory=dict)


class WalFiles:
    """Not safe for threads: its `Wal` takes care of that."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._number = 0
        self._current: WalFile | None = None
        self._full: list[WalFile] = []

    def found(self) -> list[Path]:
        """Those that are there, in their order."""
        names = sorted(name for name in self._disk.listdir(self._folder) if name.endswith(".wal"))
        return [self._folder / name for name in names]

    def adopt(self, path: Path, prefixes: set[str]) -> None:
        """It was there before us, and holds something of these partitions."""
        self._full.append(WalFile(path, holds=dict.fromkeys(prefixes, UNSETTLED)))
        self._number = max(self._number, int(path.stem) if path.stem.isdigit() else 0)

    def write(self, frame: bytes, ends: Mapping[str, int]) -> None:
        """Append the frame and fsync; `ends`: where what it has of each partition ends. On an error nothing of it counts."""
        try:
            file = self._file()
            assert file.handle is not None, "the current file is open"
            write_all(self._disk, file.handle, memoryview(frame))
            self._disk.fsync(file.handle)
        except OSError:
            self.retire()
            raise
        file.size += len(frame)
        file.holds.update(ends)

    def _file(self) -> WalFile:
        if self._current is not None and self._current.size < FILE_BYTES:
            return self._current
        self.retire()
        self._number += 1
        file = WalFile(self._folder / f"{self._number:020d}.wal")
        self._current = file  # before it is opened: an open that fails may have made it
        file.handle = self._disk.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        write_all(self._disk, file.handle, memoryview(pack_header()))
        fsync_folder(self._disk, self._folder)
        return file

    def retire(self) -> None:
        """Write no more to the current file. It is closed here and nowhere else, whatever becomes of it."""
        file, self._current = self._current, None
        if file is not None:
            self._full.append(file)
            handle, file.handle = file.handle, None
            if handle is not None:
                let_go(self._disk, handle)

    def of(self, prefix: str) -> list[Path]:
        """The files that hold something of the partition, none of which is written any more."""
        if self._current is not None and prefix in self._current.holds:
            self.retire()
        return [file.path for file in self._full if prefix in file.holds]

    def held(self) -> set[str]:
        """The partitions of which there is something that may be needed."""
        files = (*self._full, *([self._current] if self._current is not None else ()))
        return {prefix for file in files for prefix in file.holds}

    def in_newest(self) -> list[str]:
        """The partitions that have something in the file that was retired last."""
        return list(self._full[-1].holds) if self._full else []

    def settle(self, prefix: str, until: int) -> None:
        """Everything that is here of the partition, up to that offset, is stored, or kept elsewhere."""
        for file in (*self._full, *([self._current] if self._current is not None else ())):
            if file.holds.get(prefix, UNSETTLED + 1) <= until:
                del file.holds[prefix]

    def drop(self, durable: Callable[[str], int]) -> None:
        """Delete files that hold nothing which was acked and is not durable. What cannot be deleted stays listed."""
        self._full = [file for file in self._full if _is_needed(file, durable) or not self.delete(file.path)]

    def delete(self, path: Path) -> bool:
        """Whether it is gone."""
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            logger.debug("%s: not needed any more, and could not be deleted: %s", path, error)
            return False
        return True


def _is_needed(file: WalFile, durable: Callable[[str], int]) -> bool:
    """Looks no further than to the first partition that needs it: a write must not take as long as there are partitions."""
    while file.holds:
        prefix, end = next(iter(file.holds.items()))
        if durable(prefix) < end:
            return True
        del file.holds[prefix]
    return False
