"""The child process that the kill tests kill: an ingester and nothing else."""

from __future__ import annotations

import sys

import logstore
from logstore.ingest.postgres import PostgresIngest, PostgresSettings


def main(dsn: str, store: str, slot: str) -> None:
    config = PostgresSettings(
        dsn=dsn, publication="pub", slot=slot, partitions=2, chunk_bytes=100_000, retry_max=0.5
    )
    with PostgresIngest(lambda: logstore.open(store, flush_interval=0.05), config) as ingest:
        ingest.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
