"""RocksDB through rocksdict: rows under an eight-byte position, one write batch for each append."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.material import KEY_SIZE, Row


class Rocks:
    def __init__(self, database: Any, batch: Any, options: Any, level: str) -> None:
        self.level = level
        self._database = database
        self._batch = batch
        self._options = options
        self._next = 0

    def append(self, rows: Sequence[Row]) -> None:
        batch = self._batch(raw_mode=True)
        for position, (key, value) in enumerate(rows, start=self._next):
            batch.put(position.to_bytes(8, "big"), key + value)
        self._database.write(batch, self._options)
        self._next += len(rows)

    def scan(self) -> Iterator[Row]:
        for row in self._database.values():
            yield row[:KEY_SIZE], row[KEY_SIZE:]


@contextmanager
def opened(folder: Path, *, synced: bool) -> Iterator[Rocks]:
    import rocksdict

    options = rocksdict.WriteOptions()
    options.sync = synced
    with closing(rocksdict.Rdict(str(folder / "rocks"), rocksdict.Options(raw_mode=True))) as database:
        level = "on this disk, fsynced" if synced else "with the kernel, not fsynced"
        yield Rocks(database, rocksdict.WriteBatch, options, level)
