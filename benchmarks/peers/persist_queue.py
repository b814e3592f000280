"""persist-queue's SQLite queue: items one by one, one commit for each append. Its file is never told not to sync."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.material import Row


class PersistQueue:
    level = "on this disk, fsynced"

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def append(self, rows: Sequence[Row]) -> None:
        put = self._queue.put
        for row in rows:
            put(row)
        self._queue.task_done()  # commits what was put

    def scan(self) -> Iterator[Row]:
        """Reading consumes: once."""
        while self._queue.size:
            yield self._queue.get()


@contextmanager
def opened(folder: Path) -> Iterator[PersistQueue]:
    import persistqueue

    with closing(persistqueue.SQLiteQueue(str(folder / "queue"), auto_commit=False)) as queue:
        yield PersistQueue(queue)
