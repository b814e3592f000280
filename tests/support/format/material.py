"""Records and batches for the format tests."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from crc32c import crc32c
from hypothesis import strategies as st

from logstore.format.batches.area import MAX_TIMESTAMP_MS
from logstore.format.batches.batch import HEADER_SIZE, encode_batch, patch_head, split
from logstore.format.batches.record import Record

NOW_MS = 1_700_000_000_000
CODECS = range(5)

# Lengths on both sides of every varint border that matters: 1, 2 and 3 bytes.
_blobs = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(
        [b"", b"x", b"twelve bytes", b"thirteen byte", b"v" * 63, b"v" * 64, b"v" * 8191, b"v" * 8192]
    ),
)
_nullable = st.none() | _blobs
_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4).map(tuple)
_stamps = st.one_of(
    st.none(),
    st.integers(NOW_MS - 70, NOW_MS + 70),
    st.integers(0, MAX_TIMESTAMP_MS),
    st.sampled_from([0, NOW_MS, MAX_TIMESTAMP_MS]),
)
records = st.builds(Record, _nullable, _nullable, st.just(()) | _headers, _stamps)
record_lists = st.lists(records, min_size=1, max_size=12)


def varied(count: int, seed: int = 1) -> list[Record]:
    """Records of every shape: null, empty, short, long; headers with null, empty and repeated keys."""
    rng = random.Random(seed)
    values = [None, b"", b"x", b"twelve bytes", b"thirteen byte", rng.randbytes(100), b"ab" * 4000]
    keys = [None, b"", b"k", b"key of some length"]
    headers = [(), (), (("trace", b"1"),), (("a", None), ("a", b""), ("schlüssel", b"\xff" * 70))]
    return [
        Record(
            rng.choice(values),
            rng.choice(keys),
            rng.choice(headers),
            rng.choice([NOW_MS, NOW_MS + index, NOW_MS - 5_000_000 - index]),
        )
        for index in range(count)
    ]


def stored(records: Sequence[Record], base_offset: int = 0) -> list[Record]:
    """What a reader gets back."""
    return [
        record._replace(
            offset=base_offset + index,
            timestamp_ms=NOW_MS if record.timestamp_ms is None else record.timestamp_ms,
        )
        for index, record in enumerate(records)
    ]


def log_of(batches: Sequence[Sequence[Record]], codec_id: int = 0, base_offset: int = 0) -> bytes:
    """Batches back to back, with consecutive offsets."""
    parts = []
    for batch in batches:
        raw, info = encode_batch(batch, now_ms=NOW_MS, codec_id=codec_id)
        parts.append(patch_head(base_offset, info.size, 7) + raw[16:])
        base_offset += info.count
    raw = b"".join(parts)
    assert len(split(raw)) == len(batches)
    return raw


def sealed(raw: bytes | bytearray) -> bytes:
    """One batch with its length and its CRC made right again: damage that only a full check can find."""
    fixed = bytearray(raw)
    struct.pack_into(">i", fixed, 8, len(fixed) - 12)
    struct.pack_into(">I", fixed, 17, crc32c(bytes(fixed[21:])))
    return bytes(fixed)


def with_area(raw: bytes, area: bytes, count: int) -> bytes:
    """The batch `raw` with another record area, uncompressed."""
    changed = bytearray(raw[:HEADER_SIZE]) + area
    struct.pack_into(">hi", changed, 21, 0, count - 1)
    struct.pack_into(">i", changed, 57, count)
    return sealed(changed)
