"""Batches of idempotent producers, and how a broker answers them."""

from __future__ import annotations

from logstore.format.batches.batch import BatchInfo, encode_batch, read_info
from logstore.format.batches.record import Record
from tests.support.broker.harness import Wire

PID = 7_000_000_001


def batch(sequence: int, count: int = 1, *, pid: int = PID, epoch: int = 0, text: bytes = b"v") -> bytes:
    records = [Record(b"%s%d" % (text, sequence + i), b"k", (), 1_700_000_000_000) for i in range(count)]
    raw, _ = encode_batch(
        records, now_ms=0, codec_id=0, producer_id=pid, producer_epoch=epoch, base_sequence=sequence
    )
    return raw


def outcome(client: Wire, raw: bytes) -> tuple[int, int]:
    answer = client.produce("t", raw)
    return answer.error_code, answer.base_offset


def info_of(sequence: int, *, pid: int = PID, epoch: int = 0, count: int = 1, offset: int = 0) -> BatchInfo:
    return read_info(batch(sequence, count, pid=pid, epoch=epoch))._replace(base_offset=offset)
