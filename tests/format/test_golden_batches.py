"""Batches on disk from earlier releases and from another client: every later release reads them, record by record.

The files are never written again. A new codec or batch version gets files of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.format.batches.batch import check_crc, encode_batch, split, validate
from logstore.format.batches.codecs import CODEC_IDS, CODEC_NAMES
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records

pytestmark = pytest.mark.usefixtures("kernel")

GOLDEN = Path(__file__).parent.parent / "golden" / "batches"
STAMP_MS = 1_700_000_000_000
RECORDS = [
    Record(b"paid", b"order-17", (), STAMP_MS),
    Record(None, b"order-18", (), STAMP_MS + 1),
    Record(b"", None, (("trace", b"4bf92f"), ("trace", None), ("größe", b"")), STAMP_MS - 86_400_000),
    Record(b"thirteen byte", b"", (), STAMP_MS),
    Record(b'{"id": 1, "state": "shipped"}' * 300, b"order-19", (), STAMP_MS + 40_000),
    *(Record(b"line %d" % index, b"order-%d" % (index % 7), (), STAMP_MS + index) for index in range(200)),
]


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("writer", ["logstore", "aiokafka"])
def test_L20_a_golden_batch_gives_its_records(writer: str, name: str) -> None:
    raw = (GOLDEN / f"{writer}-v2-{name}.bin").read_bytes()
    (info,) = split(raw)
    check_crc(raw, info)
    assert info.codec_id == CODEC_IDS[name]
    assert info.base_offset == 1000
    assert decode_records(raw, info) == [
        record._replace(offset=1000 + index) for index, record in enumerate(RECORDS)
    ]
    (exact,) = validate(raw, max_batch_bytes=len(raw))
    assert (exact.min_timestamp_ms, exact.max_timestamp_ms) == (STAMP_MS - 86_400_000, STAMP_MS + 40_000)


def test_uncompressed_encoding_has_not_changed_by_a_byte() -> None:
    raw, _ = encode_batch(RECORDS, now_ms=0, codec_id=0)
    assert raw[16:] == (GOLDEN / "logstore-v2-none.bin").read_bytes()[16:]
