"""The child process that the kill tests kill: an ingester over a local folder that can be switched off from
outside.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

import logstore
from logstore.errors import StoreUnavailable
from logstore.ingest.postgres import PostgresIngest, PostgresSettings
from logstore.ingest.postgres import slot as slots
from logstore.ingest.postgres.slot import connect, slot_state
from logstore.ingest.postgres.stream import Message, Stream
from logstore.objects import ObjectInfo
from logstore.objects.homes.local import LocalStore
from logstore.objects.protocol import Buffer


class Switched:
    """A store that is down for as long as a file beside it exists: it refuses everything, and nothing happens."""

    def __init__(self, inner: LocalStore, off: Path) -> None:
        self._inner = inner
        self._off = off

    def _check(self) -> LocalStore:
        if self._off.exists():
            raise StoreUnavailable(f"{self._off.name} says that the store is down")
        return self._inner

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._check().get(key, start, end)

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return self._check().put(key, data, if_absent=if_absent, if_match=if_match)

    def head(self, key: str) -> ObjectInfo | None:
        return self._check().head(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._check().list(prefix, start_after)

    def delete(self, key: str) -> None:
        self._check().delete(key)


def switch_for(store: Path) -> Path:
    return store.with_suffix(".off")


class Watch:
    """Asks the server all the time how far the slot is confirmed, and notes it if that is past what the collectors reported.

    The server is asked first, and what was reported only rises: what it was told after our look cannot be taken for too
    much. `began` is what was confirmed when nobody had the slot, before this process.
    """

    def __init__(self, ingest: PostgresIngest, dsn: str, slot: str, notes: Path, began: int) -> None:
        self._ingest = ingest
        self._dsn = dsn
        self._slot = slot
        self._notes = notes
        self._looks = looks_beside(notes)
        self._may = began
        self._take_in = ingest._flushed
        ingest._flushed = self._reported  # type: ignore[method-assign]
        threading.Thread(target=self._run, daemon=True).start()

    def _reported(self, boundary: int) -> None:
        """The collector's word, before the ingester has it. One at a time."""
        self._may = max(self._may, boundary)
        self._take_in(boundary)

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(0.1):
            with suppress(psycopg.Error), connect(self._dsn) as connection:
                while not pause.wait(0.005):
                    state = slot_state(connection, self._slot)
                    if state is not None:
                        self._judge(state.confirmed)

    def _judge(self, confirmed: int) -> None:
        may = self._may
        if confirmed > may:
            with self._notes.open("a") as notes:
                notes.write(f"confirmed {confirmed:x}, but what is stored was reported up to {may:x}\n")
        with self._looks.open("a") as looks:
            looks.write("x")


def looks_beside(notes: Path) -> Path:
    """A character for each look."""
    return notes.with_suffix(".looks")


class Hasty(Stream):
    """The wrong way, kept: what psycopg2 does with a keepalive. When what we confirmed lies at or behind the last message
    that arrived, it takes all for processed, and confirms the keepalive's own position."""

    def __init__(self, connection: psycopg.Connection[Any], slot: str) -> None:
        super().__init__(connection, slot)
        self._given = 0
        self._last = 0
        self._reads = False

    def read(self) -> Message | None:
        seen, self.seen, self._reads = self.seen, 0, True
        message = super().read()
        end, self.seen, self._reads = self.seen, max(seen, self.seen), False
        if end > self._given >= self._last:
            super().confirm(end)
        if message is not None:
            self._last = message.data_start
        return message

    def confirm(self, boundary: int, *, force: bool = False) -> None:
        if not self._reads:
            self._given = max(boundary, self._given)
        super().confirm(boundary, force=force)


def main(dsn: str, store: str, slot: str, notes: str | None = None, began: str = "0", kind: str = "") -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(name)s %(message)s")
    if kind == "hasty":
        slots.Stream = Hasty  # type: ignore[attr-defined]
    config = PostgresSettings(
        dsn=dsn, publication="pub", slot=slot, partitions=2, chunk_bytes=100_000, retry_max=0.2
    )
    objects = Switched(LocalStore(Path(store)), switch_for(Path(store)))
    with PostgresIngest(
        lambda: logstore.open(objects, flush_interval=0.05, probe_interval=0.1), config
    ) as ingest:
        if notes is not None:
            Watch(ingest, dsn, slot, Path(notes), int(began))
        ingest.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
