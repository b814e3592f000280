"""Atomic appends by hand, and what a process that was not there reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import logstore
from logstore.engine.partition.atomic_batches import atomic_checked, checked
from logstore.format.batches.batch import encode_batch

Logs = list[logstore.PartitionLog]


def raw(*values: bytes) -> bytes:
    return encode_batch([logstore.Record(value) for value in values], now_ms=1, codec_id=0)[0]


def opened(store: logstore.Store, partitions: int) -> Logs:
    """Each has one record; their entries are in the lane's first places."""
    topic = store.create_topic("t", partitions)
    logs = [topic.partition(number) for number in range(partitions)]
    for log in logs:
        log.append(b"opened")
    return logs


def atomic_batches(
    parts: Sequence[tuple[logstore.PartitionLog, bytes]], *, timeout: float | None = None
) -> Future[list[logstore.Receipt]]:
    """Both halves, as the broker does them."""
    return atomic_checked([(log, checked(log, raw, control=True)) for log, raw in parts], timeout=timeout)


def submit(*parts: tuple[logstore.PartitionLog, bytes]) -> Future[list[logstore.Receipt]]:
    return atomic_batches([(log, raw(*values.split())) for log, values in parts])
