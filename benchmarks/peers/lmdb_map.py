"""LMDB: rows under an eight-byte position, one write transaction for each append (MDB_APPEND, its fastest way in)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.material import KEY_SIZE, Row


class LmdbMap:
    def __init__(self, env: Any, level: str) -> None:
        self.level = level
        self._env = env
        self._next = 0

    def append(self, rows: Sequence[Row]) -> None:
        first = self._next
        items = [
            (position.to_bytes(8, "big"), key + value)
            for position, (key, value) in enumerate(rows, start=first)
        ]
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(items, append=True)
        self._next += len(rows)

    def scan(self) -> Iterator[Row]:
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            for _, row in cursor:
                yield row[:KEY_SIZE], row[KEY_SIZE:]


@contextmanager
def opened(folder: Path, *, synced: bool) -> Iterator[LmdbMap]:
    import lmdb

    with closing(lmdb.open(str(folder / "lmdb"), map_size=8 << 30, sync=synced)) as env:
        yield LmdbMap(env, "on this disk, fsynced" if synced else "with the kernel, not fsynced")
