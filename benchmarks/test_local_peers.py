"""On a local disk, against embedded stores and a server: the same records, the same promise, in turns.

* **fsynced**: when an append returns, its records survive a power cut. Ours is `ack="local"`.
* **not fsynced**: they survive the process at most as far as the kernel has them. Ours is `ack="buffered"`, which promises
  this process only.

Either way our turn ends when everything is in the object store (a folder, fsynced), because that would be done behind its
back otherwise, in the turns of the others. Their background work is theirs.

A disk that others use too is slow for seconds at a time. So turns are short and many, and the median of them counts: the
best would be that of whoever met a quiet moment. Everything that was stored is read back and compared, row by row, before a
figure counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.material import Row, rows
from benchmarks.measure import Figures, in_turns
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
    settings = {"wal_dir": str(folder / "wal"), "max_buffered_bytes": 256 << 20}
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


def append_in_turns(peers: dict[str, Peer], work: Callable[[Peer], None], turns: int) -> dict[str, float]:
    """Seconds of each peer's median turn."""

    def turn(peer: Peer) -> None:
        work(peer)
        if isinstance(peer, ours.Ours):
            peer.log.flush()

    found = in_turns({name: functools.partial(turn, peer) for name, peer in peers.items()}, turns)
    return {name: timing.median for name, timing in found.items()}


@pytest.mark.parametrize("synced", [True, False], ids=["fsynced", "not-fsynced"])
def test_appends_of_1000(synced: bool, tmp_path: Path, figures: Figures, quick: bool) -> None:
    many, appends, turns = rows(1000), 3, 3 if quick else 9
    with ExitStack() as stack:
        peers = open_all(stack, openers(tmp_path, synced=synced), figures, SUITE)

        def work(peer: Peer) -> None:
            for _ in range(appends):
                peer.append(many)

        seconds = append_in_turns(peers, work, turns)
        reading = in_turns(
            {name: functools.partial(read, peer) for name, peer in peers.items()},
            3 if quick else 7,
        )
        for peer in peers.values():
            check_scan(peer, many, appends * (turns + 1))
    how = "fsynced" if synced else "not fsynced"
    levels = {name: peer.level for name, peer in peers.items()}
    rates = {name: appends * len(many) / median / 1e3 for name, median in seconds.items()}
    figures.add_peers(SUITE, f"appends of 1,000, {how}", US, rates, "k records/s", levels)
    if synced:
        stored = appends * len(many) * (turns + 1)
        scans = {name: stored / timing.median / 1e3 for name, timing in reading.items()}
        reads = dict.fromkeys(scans, "read back in order, file cache warm")
        figures.add_peers(SUITE, "scan in order", US, scans, "k records/s", reads)


def read(peer: Peer) -> None:
    for _ in peer.scan():
        pass


@pytest.mark.parametrize("synced", [True, False], ids=["fsynced", "not-fsynced"])
def test_appends_one_by_one(synced: bool, tmp_path: Path, figures: Figures, quick: bool) -> None:
    count, turns = 100 if synced else 2_000, 3 if quick else 9
    few = rows(count)
    chosen = openers(tmp_path, synced=synced)
    if synced:  # it always syncs, and knows single items alone
        chosen["persist-queue"] = lambda: persist_queue.opened(tmp_path)
    with ExitStack() as stack:
        peers = open_all(stack, chosen, figures, SUITE)
        seconds = append_in_turns(peers, functools.partial(append_each, few), turns)
        for peer in peers.values():
            check_scan(peer, few, turns + 1)
    how = "fsynced" if synced else "not fsynced"
    levels = {name: peer.level for name, peer in peers.items()}
    rates = {name: count / median / 1e3 for name, median in seconds.items()}
    figures.add_peers(SUITE, f"appends one by one, {how}", US, rates, "k records/s", levels)


def append_each(few: list[Row], peer: Peer) -> None:
    for row in few:
        peer.append((row,))
