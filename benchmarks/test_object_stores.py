"""Durable throughput and cold reads against boto3 itself: the same bytes, the same server, in turns.

The servers run in processes of their own; what they cannot do, we cannot do either. The ratio is what we add.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

import boto3
import pytest
from botocore.config import Config

import logstore
from benchmarks.measure import Figures, in_turns
from tests.servers import BUCKET, Server, export_credentials, moto_server_process, seaweedfs_server

SUITE = "object-stores"
SEGMENTS = 6
BATCHES_A_SEGMENT = 8
BLOCK = random.Random(8).randbytes((1 << 20) - 1000)  # one record, one batch, 1 MiB with its framing
SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "moto": moto_server_process,
    "seaweedfs": seaweedfs_server,
}


@pytest.fixture(scope="module", params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    export_credentials()
    with SERVERS[request.param]() as running:
        yield request.param, running


def peer(server: Server) -> Any:
    """boto3 as a careful user sets it up: no checksums that nobody reads."""
    config = Config(
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=16,
        s3={"addressing_style": "path"},
    )
    return boto3.client("s3", endpoint_url=server.endpoint_url, region_name="us-east-1", config=config)


def test_durable_throughput_and_cold_read(server: tuple[str, Server], figures: Figures, quick: bool) -> None:
    name, running = server
    turns = 2 if quick else 5
    client, number = peer(running), count()
    segment = BLOCK * BATCHES_A_SEGMENT
    topics: list[tuple[str, str]] = []

    def ours() -> None:
        """8 MiB segments, compression off: as many bytes as boto3 sends."""
        url = running.url(f"bench-{next(number)}")
        settings: dict[str, Any] = {
            "compression": "none",
            "flush_bytes": 8 << 20,
            "max_buffered_bytes": 32 << 20,
        }
        with logstore.open(url, **settings) as store:
            log = store.create_topic("t", segment_bytes=9 << 20).partition(0)
            for _ in range(SEGMENTS * BATCHES_A_SEGMENT):
                log.append(BLOCK, ack="buffered", timeout=120)
            log.flush(timeout=120)
            assert log.durable_high_watermark == SEGMENTS * BATCHES_A_SEGMENT
        topics.append((url, "t"))

    prefix = "peer"

    def theirs() -> None:
        for part in range(SEGMENTS):
            client.put_object(Bucket=BUCKET, Key=f"{prefix}/{part}", Body=segment)

    written = in_turns({"ours": ours, "theirs": theirs}, turns)
    figures.add(
        SUITE,
        f"durable throughput, 8 MiB segments, to boto3 put_object ({name})",
        written["theirs"].best / written["ours"].best,
        "×",
        target=0.85,
        ours_MB_per_s=round(SEGMENTS * 8.4 / written["ours"].best),
    )

    reading = logstore.open(topics[-1][0], writer="read_only", cache_bytes=64 << 20)
    log = reading.topic("t").partition(0)

    def read_ours() -> None:
        """From an open partition, with nothing of it in memory."""
        reading._runtime.cache.clear()
        position = 0
        while position < SEGMENTS * BATCHES_A_SEGMENT:
            result = log.read(position, 8 << 20, visibility="durable")
            position = result.next_offset
        assert [record.value for record in result.records()][-1] == BLOCK

    def read_theirs() -> None:
        for part in range(SEGMENTS):
            assert len(client.get_object(Bucket=BUCKET, Key=f"{prefix}/{part}")["Body"].read()) == len(
                segment
            )

    with reading:
        read = in_turns({"ours": read_ours, "theirs": read_theirs}, turns)
    figures.add(
        SUITE,
        f"sequential cold read, 8 MiB segments, to boto3 get_object ({name})",
        read["theirs"].best / read["ours"].best,
        "×",
        target=0.85,
        ours_MB_per_s=round(SEGMENTS * 8.4 / read["ours"].best),
    )
