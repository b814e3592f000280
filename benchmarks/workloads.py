"""What can be profiled: one loop for each, that runs until it is told to stop.

python -m benchmarks.workloads append 10       # ten seconds of it
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import logstore
from benchmarks.material import rows
from logstore.format.batches.batch import encode_batch
from logstore.objects import MemoryStore

RECORDS = [logstore.Record(value, key) for key, value in rows(1000)]
ROOM: dict[str, Any] = {"max_buffered_bytes": 256 << 20, "cache_bytes": 256 << 20}


@contextmanager
def append() -> Iterator[Callable[[], object]]:
    """Lists of 1,000, buffered."""
    with logstore.open(MemoryStore(), **ROOM) as store:
        log = store.create_topic("t").partition(0)
        yield lambda: log.append(RECORDS, ack="buffered")


@contextmanager
def append_one() -> Iterator[Callable[[], object]]:
    """One by one, buffered."""
    with logstore.open(MemoryStore(), **ROOM) as store:
        topic = store.create_topic("t")

        def run() -> None:
            for record in RECORDS:
                topic.append(record.value, key=record.key, ack="buffered")

        yield run


@contextmanager
def append_local() -> Iterator[Callable[[], object]]:
    """One by one, each fsynced to the WAL."""
    with tempfile.TemporaryDirectory() as folder:
        with logstore.open(folder + "/store", wal_dir=folder + "/wal") as store:
            topic = store.create_topic("t")
            yield lambda: topic.append(b"value", key=b"key", ack="local")


@contextmanager
def append_durable() -> Iterator[Callable[[], object]]:
    """One by one, each in the object store (in memory): what a commit costs us."""
    with logstore.open(MemoryStore()) as store:
        topic = store.create_topic("t")
        yield lambda: topic.append(b"value", key=b"key")


@contextmanager
def read() -> Iterator[Callable[[], object]]:
    """records() from the cache."""
    with logstore.open(MemoryStore(), **ROOM) as store:
        log = store.create_topic("t").partition(0)
        for _ in range(50):
            log.append(RECORDS, ack="buffered")
        log.flush()
        yield lambda: sum(1 for _ in log.records())


@contextmanager
def scan() -> Iterator[Callable[[], object]]:
    """A partition opened and read, from a local folder."""
    with tempfile.TemporaryDirectory() as folder:
        with logstore.open(folder, **ROOM) as store:
            log = store.create_topic("t").partition(0)
            for _ in range(200):
                log.append(RECORDS, ack="buffered")

        def run() -> None:
            with logstore.open(folder, writer="read_only") as store:
                assert sum(1 for _ in store.topic("t").partition(0).records()) == 200_000

        yield run


@contextmanager
def encode() -> Iterator[Callable[[], object]]:
    """The codec alone."""
    yield lambda: encode_batch(RECORDS, now_ms=1_700_000_000_000, codec_id=0)


WORKLOADS = {
    workload.__name__.replace("_", "-"): workload
    for workload in (append, append_one, append_local, append_durable, read, scan, encode)
}


def main(name: str, seconds: str) -> None:
    with WORKLOADS[name]() as run:
        stop_at, turns = time.monotonic() + float(seconds), 0
        while time.monotonic() < stop_at:
            run()
            turns += 1
    print(f"{name}: {turns} turns in {seconds} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
