"""On a local disk, against embedded stores and a server: the same records, the same promise, in turns.

* **fsynced**: when an append returns, its records survive a power cut. Ours is `ack="local"`.
* **not fsynced**: they survive the process at most as far as the kernel has them. Ours is `ack="buffered"`, which promises
  this process only.

Either way our turn ends when everything is in the object store (a folder, fsynced), because that would be done behind its
back otherwise, in the turns of the others. Their background work is theirs. A turn has so many appends that this flush is a
small part of it, as it is in a service, whose flushes take what a second has brought.

What is fsynced is judged by the clock. A disk that others use too is slow for seconds at a time, so turns are short and
many, and the median of them counts: the best would be that of whoever met a quiet moment. What is not fsynced, and a scan of
what the kernel has in memory, waits for nothing: it is judged in CPU seconds, background threads and the Redis server
included, which other work on the machine does not change. On the clock, whoever has more threads looks faster on a quiet
machine and slower on a busy one.

Everything that was stored is read back and compared, row by row, before a figure counts.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.material import Row, rows
from benchmarks.measure import Figures, Timing, in_turns
from benchmarks.peers import (
    Opener,
    Peer,
    check_scan,
    lmdb_map,
    open_all,
    ours,
    persist_queue,
    redis_stream,
    rocksdb,
    sqlite_wal,
)

SUITE = "local-peers"
US = "logstore"


def openers(folder: Path, *, synced: bool) -> dict[str, Opener]:
    settings: dict[str, Any] = {"wal_dir": str(folder / "wal"), "max_buffered_bytes": 256 << 20}
    found: dict[str, Opener] = {
        US: lambda: ours.opened(
            str(folder / "ours"),
            "local" if synced else "buffered",
            **settings,
        ),
        "SQLite WAL": lambda: sqlite_wal.opened(folder, synced=synced),
        "LMDB": lambda: lmdb_map.opened(folder, synced=synced),
        "RocksDB": lambda: rocksdb.opened(folder, synced=synced),
        "Redis stream": lambda: redis_stream.opened(folder, synced=synced),
    }
    return found


def append_in_turns(peers: dict[str, Peer], work: Callable[[Peer], None], turns: int) -> dict[str, Timing]:
    def turn(peer: Peer) -> None:
        work(peer)
        if isinstance(peer, ours.Ours):
            peer.log.flush()

    return timed(peers, turn, turns)


def timed(peers: dict[str, Peer], turn: Callable[[Peer], None], turns: int) -> dict[str, Timing]:
    servers = [peer.server for peer in peers.values() if isinstance(peer, redis_stream.RedisStream)]
    return in_turns({name: functools.partial(turn, peer) for name, peer in peers.items()}, turns, servers)


def compare(
    figures: Figures,
    group: str,
    found: dict[str, Timing],
    records: int,
    levels: dict[str, str],
    *,
    synced: bool,
) -> None:
    """By the clock where the disk is waited for, else in CPU seconds."""
    seconds = {name: timing.seconds if synced else timing.cpu_seconds for name, timing in found.items()}
    unit = "k records/s" if synced else "k records/s a core"
    figures.add_peers(SUITE, group, US, seconds, records / 1e3, unit, levels)


@pytest.mark.parametrize("synced", [True, False], ids=["fsynced", "not-fsynced"])
def test_appends_of_1000(synced: bool, tmp_path: Path, figures: Figures, quick: bool) -> None:
    many, appends, turns = rows(1000), 10, 3 if quick else 31
    with ExitStack() as stack:
        peers = open_all(stack, openers(tmp_path, synced=synced), figures, SUITE)

        def work(peer: Peer) -> None:
            for _ in range(appends):
                peer.append(many)

        found = append_in_turns(peers, work, turns)
        for peer in peers.values():
            check_scan(peer, many, appends * (turns + 1))
    how = "fsynced" if synced else "not fsynced"
    levels = {name: peer.level for name, peer in peers.items()}
    compare(figures, f"appends of 1,000, {how}", found, appends * len(many), levels, synced=synced)


def test_scan_in_order(tmp_path: Path, figures: Figures, quick: bool) -> None:
    many, appends, turns = rows(1000), 15, 3 if quick else 31
    with ExitStack() as stack:
        peers = open_all(stack, openers(tmp_path, synced=False), figures, SUITE)
        for peer in peers.values():
            for _ in range(appends):
                peer.append(many)
            if isinstance(peer, ours.Ours):
                peer.log.flush()
            check_scan(peer, many, appends)
        found = timed(peers, read, turns)
    levels = dict.fromkeys(peers, "read back in order, file cache warm")
    compare(figures, "scan in order", found, appends * len(many), levels, synced=False)


def read(peer: Peer) -> None:
    deque(peer.scan(), maxlen=0)


@pytest.mark.parametrize("synced", [True, False], ids=["fsynced", "not-fsynced"])
def test_appends_one_by_one(synced: bool, tmp_path: Path, figures: Figures, quick: bool) -> None:
    count, turns = (100, 61) if synced else (5_000, 25)
    turns = 3 if quick else turns
    few = rows(count)
    chosen = openers(tmp_path, synced=synced)
    if synced:  # it always syncs, and knows single items alone
        chosen["persist-queue"] = lambda: persist_queue.opened(tmp_path)
    with ExitStack() as stack:
        peers = open_all(stack, chosen, figures, SUITE)
        found = append_in_turns(peers, functools.partial(append_each, few), turns)
        for peer in peers.values():
            check_scan(peer, few, turns + 1)
    how = "fsynced" if synced else "not fsynced"
    levels = {name: peer.level for name, peer in peers.items()}
    compare(figures, f"appends one by one, {how}", found, count, levels, synced=synced)


def append_each(few: list[Row], peer: Peer) -> None:
    for row in few:
        peer.append((row,))
