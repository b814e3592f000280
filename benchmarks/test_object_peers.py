"""Durable appends to an S3 server, against others who store records there, and against the bare PUT: in turns.

One promise for all: when an append returns, its records are in the object store. The server is SeaweedFS, in a process of
its own. Everything that was stored is read back and compared, row by row, before a figure counts.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count

import pytest

from benchmarks.material import rows
from benchmarks.measure import Figures, in_turns
from benchmarks.peers import Opener, Peer, check_scan, delta_table, open_all, ours, raw_put, slate
from tests.support.servers import Server, export_credentials, seaweedfs_server

SUITE = "object-peers"
US = "logstore"
NAMES = count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    export_credentials()
    with seaweedfs_server() as running:
        yield running


def openers(server: Server) -> dict[str, Opener]:
    number = next(NAMES)
    return {
        US: lambda: ours.opened(server.url(f"ours-{number}"), "durable"),
        "boto3 put_object": lambda: raw_put.with_boto3(server, f"boto3-{number}"),
        "obstore put": lambda: raw_put.with_obstore(server, f"obstore-{number}"),
        "SlateDB": lambda: slate.opened(server, f"slate-{number}"),
        "Delta table": lambda: delta_table.opened(server, f"delta-{number}"),
    }


@pytest.mark.parametrize("size", [1, 1000])
def test_appends_by_one_producer(size: int, server: Server, figures: Figures, quick: bool) -> None:
    many, appends, turns = rows(size), 5, 2 if quick else 31
    with ExitStack() as stack:
        peers = open_all(stack, openers(server), figures, SUITE)

        def work(peer: Peer) -> None:
            for _ in range(appends):
                peer.append(many)

        found = in_turns({name: functools.partial(work, peer) for name, peer in peers.items()}, turns)
        for peer in peers.values():
            check_scan(peer, many, appends * (turns + 1))
    seconds = {name: timing.seconds for name, timing in found.items()}
    levels = {name: peer.level for name, peer in peers.items()}
    records = "1 record" if size == 1 else f"{size:,} records"
    group = f"durable appends of {records}, one producer"
    figures.add_peers(SUITE, group, US, seconds, appends, "appends/s", levels)


PRODUCERS = 16


def test_16_producers_of_single_records(server: Server, figures: Figures, quick: bool) -> None:
    """Group commit: a store takes tens of objects a second, so producers have to share them."""
    each, turns = 5, 2 if quick else 31
    mine = rows(PRODUCERS * each)
    chosen = {name: opener for name, opener in openers(server).items() if name != "Delta table"}
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(PRODUCERS))
        peers = open_all(stack, chosen, figures, SUITE)

        def by_threads(peer: Peer) -> None:
            list(pool.map(lambda p: [peer.append((row,)) for row in mine[p::PRODUCERS]], range(PRODUCERS)))

        async def produce(peer: slate.Slate, producer: int) -> None:
            for row in mine[producer::PRODUCERS]:
                await peer.append_later((row,))

        async def all_of(peer: slate.Slate) -> None:
            await asyncio.gather(*(produce(peer, producer) for producer in range(PRODUCERS)))

        def run(peer: Peer) -> Callable[[], None]:
            if isinstance(peer, slate.Slate):
                return lambda: peer.loop.run_until_complete(all_of(peer))
            return lambda: by_threads(peer)

        found = in_turns({name: run(peer) for name, peer in peers.items()}, turns)
        for peer in peers.values():
            assert sorted(peer.scan()) == sorted(mine * (turns + 1))
    seconds = {name: timing.seconds for name, timing in found.items()}
    levels = {name: peer.level for name, peer in peers.items()}
    group = "durable appends of 1 record, 16 producers"
    figures.add_peers(SUITE, group, US, seconds, len(mine), "acks/s", levels)
