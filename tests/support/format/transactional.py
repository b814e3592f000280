"""Batches of transactions, as a producer sends them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from logstore.format.batches.batch import TRANSACTIONAL, encode_batch
from logstore.format.batches.record import Record

_ATTRIBUTES_AT, _CRC_AT = 21, 17


def transactional(
    records: Sequence[Record], *, producer_id: int, epoch: int, sequence: int, codec_id: int = 0
) -> bytes:
    raw, info = encode_batch(
        records,
        now_ms=0,
        codec_id=codec_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    changed = bytearray(raw)
    struct.pack_into(">h", changed, _ATTRIBUTES_AT, info.attributes | TRANSACTIONAL)
    struct.pack_into(">I", changed, _CRC_AT, crc32c(bytes(changed[_ATTRIBUTES_AT:])))
    return bytes(changed)
