"""`close_store`: sockets go back, through any number of wrappers, and stores without a close are left alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from logstore.objects import LocalStore, MemoryStore, MeteredStore, RetryingStore, close_store, open_url
from logstore.testing import GatedStore
from tests.support.servers import Server


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


@pytest.mark.s3
def test_L29_no_socket_stays_open(seaweedfs: Server) -> None:
    before = sockets()
    store = RetryingStore(MeteredStore(open_url(seaweedfs.url())))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: store.put(f"{number}", b"x"), range(8)))
    assert sockets() - before, "the pool keeps connections for the next request"
    close_store(store)
    assert sockets() - before == set()
    close_store(store)


@pytest.mark.s3
def test_L29_a_failed_or_abandoned_read_gives_its_socket_back(seaweedfs: Server) -> None:
    before = sockets()
    store = open_url(seaweedfs.url())
    for number in range(5):
        store.put(f"{number}", b"x" * 100_000)
        store.get(f"{number}", 10, 20)
        next(store.list(""))
        assert store.head("missing") is None
    assert len(sockets() - before) == 1, "one thread needs one connection"
    close_store(store)


def test_L29_the_innermost_store_is_closed(tmp_path: Path) -> None:
    class Closable(MemoryStore):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    inner = Closable()
    close_store(GatedStore(RetryingStore(MeteredStore(inner))))
    assert inner.closed == 1
    close_store(LocalStore(tmp_path))


def test_L29_a_local_store_keeps_no_file_open(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        etag = store.put(f"log/{number}", b"x").etag
        store.put(f"log/{number}", b"y", if_match=etag)
        store.get(f"log/{number}")
        next(store.list("log/"))
    store.delete("log/0")
    assert len(os.listdir("/proc/self/fd")) == before
