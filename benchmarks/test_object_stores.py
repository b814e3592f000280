"""Durable throughput and cold reads against boto3 itself: the same bytes, the same server, in turns.

The servers run in processes of their own; what they cannot do, we cannot do either. The ratio is what we add. Stores are
open before the clock runs: opening has a suite of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count

import pytest

import logstore
from benchmarks.measure import Figures, in_turns
from benchmarks.peers.raw_put import boto3_client
from tests.support.servers import BUCKET, Server, export_credentials, moto_server_process, seaweedfs_server

SUITE = "object-stores"
SEGMENTS = 5
BATCHES_A_SEGMENT = 8
BLOCK = random.Random(8).randbytes((1 << 20) - 1000)  # one record, one batch, 1 MiB with its framing
SEGMENT = BLOCK * BATCHES_A_SEGMENT
MB_A_TURN = SEGMENTS * len(SEGMENT) / 1e6
SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "moto": moto_server_process,
    "seaweedfs": seaweedfs_server,
}


@pytest.fixture(scope="module", params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    export_credentials()
    with SERVERS[request.param]() as running:
        yield request.param, running


def test_durable_throughput(server: tuple[str, Server], figures: Figures, quick: bool) -> None:
    """Segments of 8 MiB, compression off: as many bytes as boto3 sends, in as many objects."""
    name, running = server
    turns, client, number = 4 if quick else 9, boto3_client(running), count()
    with logstore.open(
        running.url("durable"), compression="none", flush_bytes=len(SEGMENT), max_buffered_bytes=32 << 20
    ) as store:
        log = store.create_topic("t", segment_bytes=len(SEGMENT) + 10_000).partition(0)
        log.append(b"open the writer")

        def ours() -> None:
            for _ in range(SEGMENTS * BATCHES_A_SEGMENT):
                log.append(BLOCK, ack="buffered", timeout=120)
            log.flush(timeout=120)

        def theirs() -> None:
            for _ in range(SEGMENTS):
                client.put_object(Bucket=BUCKET, Key=f"peer/{next(number)}", Body=SEGMENT)

        found = in_turns({"ours": ours, "theirs": theirs}, turns)
        assert all(record.value == BLOCK for record in log.records(1, visibility="durable"))
        assert log.durable_high_watermark == 1 + SEGMENTS * BATCHES_A_SEGMENT * (turns + 1)
    figures.add(
        SUITE,
        f"durable throughput, 8 MiB segments, to boto3 put_object ({name})",
        found["theirs"].median / found["ours"].median,
        "×",
        target=0.85,
        ours_MB_per_s=round(MB_A_TURN / found["ours"].median),
        theirs_MB_per_s=round(MB_A_TURN / found["theirs"].median),
    )


def test_cold_read(server: tuple[str, Server], figures: Figures, quick: bool) -> None:
    """From an open partition, again and again from its start: the cache holds half of it, so the scan never finds in it what
    it wants next. Against GETs of the same objects."""
    name, running = server
    turns, client, url = 4 if quick else 7, boto3_client(running), running.url("cold")
    last = 2 * SEGMENTS * BATCHES_A_SEGMENT
    with logstore.open(url, compression="none", flush_bytes=1 << 30, max_buffered_bytes=128 << 20) as store:
        log = store.create_topic("t", segment_bytes=len(SEGMENT) + 10_000).partition(0)
        for _ in range(last):
            log.append(BLOCK, ack="buffered")
        log.flush()
        keys = [f"cold/{segment.key}" for segment in log.segments() if segment.size > len(BLOCK)]
        assert len(keys) == 2 * SEGMENTS

    with logstore.open(url, writer="read_only", cache_bytes=4 * len(SEGMENT)) as store:
        log = store.topic("t").partition(0)

        def ours() -> None:
            position = 0
            while position < last:
                result = log.read(position, 16 << 20, visibility="durable")
                position = result.next_offset
            assert position == last

        def theirs() -> None:
            for key in keys:
                assert len(client.get_object(Bucket=BUCKET, Key=key)["Body"].read()) > len(SEGMENT)

        assert log.durable_high_watermark == last
        before = store.metrics()["get"].requests
        found = in_turns({"ours": ours, "theirs": theirs}, turns)
        fetched = store.metrics()["get"].requests - before
        assert fetched == len(keys) * (turns + 1), "some of it was in the cache, or was fetched twice"
        assert [record.value for record in log.records()] == [BLOCK] * last
    figures.add(
        SUITE,
        f"sequential cold read, 8 MiB segments, to boto3 get_object ({name})",
        found["theirs"].median / found["ours"].median,
        "×",
        target=0.85,
        ours_MB_per_s=round(2 * MB_A_TURN / found["ours"].median),
        theirs_MB_per_s=round(2 * MB_A_TURN / found["theirs"].median),
    )
