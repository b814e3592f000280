"""SQLite in WAL mode, from the standard library: one transaction for each append."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.material import Row


class SqliteWal:
    def __init__(self, database: sqlite3.Connection, level: str) -> None:
        self.level = level
        self._database = database

    def append(self, rows: Sequence[Row]) -> None:
        with self._database:
            self._database.executemany("insert into log (key, value) values (?, ?)", rows)

    def scan(self) -> Iterator[Row]:
        return iter(self._database.execute("select key, value from log order by position"))


@contextmanager
def opened(folder: Path, *, synced: bool) -> Iterator[SqliteWal]:
    with closing(sqlite3.connect(folder / "log.sqlite")) as database:
        database.execute("pragma journal_mode = wal")
        database.execute(f"pragma synchronous = {'full' if synced else 'off'}")
        database.execute("create table log (position integer primary key, key blob, value blob)")
        yield SqliteWal(database, "on this disk, fsynced" if synced else "with the kernel, not fsynced")
