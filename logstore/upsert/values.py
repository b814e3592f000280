"""The value of each live key, in memory, or beyond a limit in a file of this process.

In memory it is a dict. Once the values take more than `max_memory_bytes`, they move to an SQLite file that holds nothing of
worth (the log is the truth: the file has no journal, is never synced, and goes when the view does), and memory keeps what
changed last.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ENTRY_OVERHEAD = 150  # a dict slot and two bytes objects, beyond their contents
_KEYS_IN_QUERY = 500
_ROWS_IN_PAGE = 10_000
_SWEEP_FROM = 1000


class Values:
    """One thread at a time. A key without a value is not in it."""

    def __init__(self, max_memory_bytes: int | None = None, folder: str | Path | None = None) -> None:
        self._hot: dict[bytes, bytes | None] = {}  # all of it; once spilled, what the file does not know yet
        self._limit = max_memory_bytes
        self._hot_bytes = 0  # what those take, about; not counted while there is no limit
        self._folder = folder
        self._file: _SpillFile | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, key: bytes) -> bytes | None:
        if self._file is None or key in self._hot:
            return self._hot.get(key)
        return self._file.get_many([key]).get(key)

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """The values of these keys, not to be changed; those that have none may be left out."""
        if self._file is None:
            return self._hot
        return self._found(keys)

    def working_set(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """The same, to be changed (None: no value any more) and handed to `update`."""
        if self._limit is None:
            return self._hot
        return self._found(keys)

    def _found(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        hot, file = self._hot, self._file
        found: dict[bytes, bytes | None] = {}
        missing = []
        for key in keys:
            if key in hot:
                found[key] = hot[key]
            else:
                missing.append(key)
        return found | file.get_many(missing) if file is not None else found

    def update(self, changed: dict[bytes, bytes | None], grown: int) -> None:
        """Take in a working set that was changed; there are `grown` more live keys than before."""
        self._count += grown
        if changed is self._hot:
            self._sweep()
            return
        for key, value in changed.items():
            self._set(key, value)
        if self._limit is not None and self._hot_bytes > self._limit:
            self._spill()

    def _sweep(self) -> None:
        """Deleted keys stay behind as None; when they are many, they go."""
        if len(self._hot) > 2 * self._count + _SWEEP_FROM:
            self._hot = {key: value for key, value in self._hot.items() if value is not None}

    def _set(self, key: bytes, value: bytes | None) -> None:
        if key in self._hot:
            self._hot_bytes -= _size(key, self._hot.pop(key))
        if value is not None or self._file is not None:
            self._hot[key] = value
            self._hot_bytes += _size(key, value)

    def _spill(self) -> None:
        if self._file is None:
            self._file = _SpillFile(self._folder)
        self._file.update(self._hot)
        self._hot.clear()
        self._hot_bytes = 0

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All of them. It must not be changed meanwhile."""
        if self._file is not None:
            self._file.update(self._hot)
            self._hot.clear()
            self._hot_bytes = 0
            return self._file.items()
        return ((key, value) for key, value in self._hot.items() if value is not None)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _SpillFile:
    def __init__(self, folder: str | Path | None) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="logstore-upsert-", dir=folder)
        self._db = sqlite3.connect(
            Path(self._home.name) / "values", isolation_level=None, check_same_thread=False
        )
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE kept (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")

    def get_many(self, keys: list[bytes]) -> dict[bytes, bytes | None]:
        found: dict[bytes, bytes | None] = {}
        for start in range(0, len(keys), _KEYS_IN_QUERY):
            chunk = keys[start : start + _KEYS_IN_QUERY]
            marks = ",".join("?" * len(chunk))
            found.update(self._db.execute(f"SELECT key, value FROM kept WHERE key IN ({marks})", chunk))
        return found

    def update(self, changed: dict[bytes, bytes | None]) -> None:
        gone = [(key,) for key, value in changed.items() if value is None]
        kept = sorted((key, value) for key, value in changed.items() if value is not None)
        self._db.execute("BEGIN")
        self._db.executemany("DELETE FROM kept WHERE key = ?", gone)
        self._db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", kept)
        self._db.execute("COMMIT")

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        last: bytes | None = None
        while True:
            where, bound = ("WHERE key > ?", (last,)) if last is not None else ("", ())
            page = self._db.execute(
                f"SELECT key, value FROM kept {where} ORDER BY key LIMIT {_ROWS_IN_PAGE}", bound
            ).fetchall()
            if not page:
                return
            yield from page
            last = page[-1][0]

    def close(self) -> None:
        self._db.close()
        self._home.cleanup()


def _size(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + ENTRY_OVERHEAD
