"""The child process that the kill tests kill: an ingester over a local folder that can be switched off from
outside.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import logstore
from logstore.errors import StoreUnavailable
from logstore.ingest.postgres import PostgresIngest, PostgresSettings
from logstore.objects import ObjectInfo
from logstore.objects.local import LocalStore


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
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
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


def main(dsn: str, store: str, slot: str) -> None:
    config = PostgresSettings(
        dsn=dsn, publication="pub", slot=slot, partitions=2, chunk_bytes=100_000, retry_max=0.2
    )
    objects = Switched(LocalStore(Path(store)), switch_for(Path(store)))
    with PostgresIngest(
        lambda: logstore.open(objects, flush_interval=0.05, probe_interval=0.1), config
    ) as ingest:
        ingest.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
