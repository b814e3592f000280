"""The child process that the kill tests kill: an ingester over a local folder that can be switched off from
outside.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg

import logstore
from logstore.errors import StoreUnavailable
from logstore.ingest.postgres import PostgresIngest, PostgresSettings
from logstore.ingest.postgres.slot import connect, slot_state
from logstore.objects import ObjectInfo
from logstore.objects.local import LocalStore
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
    """Asks the server all the time how far the slot is confirmed, and notes it if that is past the collector's boundary.

    The server is asked first, and the boundary only rises: what it was told after our look cannot be taken for too much.
    """

    def __init__(self, ingest: PostgresIngest, dsn: str, slot: str, notes: Path) -> None:
        self._ingest = ingest
        self._dsn = dsn
        self._slot = slot
        self._notes = notes
        self._looks = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        began: int | None = None
        pause = threading.Event()
        while True:
            with suppress(psycopg.Error), connect(self._dsn) as connection:
                while not pause.wait(0.005):
                    state = slot_state(connection, self._slot)
                    if state is None or not self._ingest.status().phase.startswith("streaming"):
                        continue
                    # What the process before us had confirmed may have arrived after we looked where to begin.
                    began = state.confirmed if began is None else began
                    self._judge(state.confirmed, began)

    def _judge(self, confirmed: int, began: int) -> None:
        boundary = self._ingest._stored
        if confirmed > max(boundary, began):
            with self._notes.open("a") as notes:
                notes.write(f"confirmed {confirmed:x}, but the collector's boundary is {boundary:x}\n")
        self._looks += 1
        if self._looks % 10 == 0:
            with self._notes.with_suffix(".looks").open("a") as looks:
                looks.write("x")


def main(dsn: str, store: str, slot: str, notes: str | None = None) -> None:
    config = PostgresSettings(
        dsn=dsn, publication="pub", slot=slot, partitions=2, chunk_bytes=100_000, retry_max=0.2
    )
    objects = Switched(LocalStore(Path(store)), switch_for(Path(store)))
    with PostgresIngest(
        lambda: logstore.open(objects, flush_interval=0.05, probe_interval=0.1), config
    ) as ingest:
        if notes is not None:
            Watch(ingest, dsn, slot, Path(notes))
        ingest.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
