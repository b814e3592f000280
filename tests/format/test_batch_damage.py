"""L20: damaged bytes are found, whatever reads them: no wrong record, no other error, no crash, no hang."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from logstore.format import kernels
from logstore.format.batches.area import Area
from logstore.format.batches.batch import (
    HEADER_SIZE,
    PATCH_SIZE,
    check_crc,
    encode_batch,
    read_info,
    validate,
)
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records
from logstore.format.errors import FormatError
from logstore.format.plain import fields, walk
from tests.support.format.material import CODECS, NOW_MS, log_of, stored, varied

LIMIT = 1 << 24


def read(raw: bytes) -> list[Record]:
    """As the engine reads: header, CRC, records."""
    info = read_info(raw)
    if info.size != len(raw):
        raise FormatError("bytes after the batch")
    check_crc(raw, info)
    return decode_records(raw, info)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("codec_id", CODECS)
def test_L20_every_flipped_bit_is_found(codec_id: int) -> None:
    records = varied(4)
    raw, _ = encode_batch(records, now_ms=NOW_MS, codec_id=codec_id)
    step = max(1, len(raw) // 1500)
    for position in [*range(HEADER_SIZE + 40), *range(HEADER_SIZE + 40, len(raw), step)]:
        for bit in (0, 3, 7):
            damaged = bytearray(raw)
            damaged[position] ^= 1 << bit
            if position < 8 or 12 <= position < PATCH_SIZE:
                # Base offset and leader epoch are not the encoder's to protect; the records must be the same
                # ones.
                try:
                    found = read(bytes(damaged))
                except FormatError:
                    continue
                assert [r._replace(offset=None) for r in found] == [
                    r._replace(offset=None) for r in stored(records)
                ]
            else:
                with pytest.raises(FormatError):
                    read(bytes(damaged))
                with pytest.raises(FormatError):
                    validate(bytes(damaged), max_batch_bytes=LIMIT)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("codec_id", CODECS)
def test_L20_every_cut_and_every_addition_is_found(codec_id: int) -> None:
    raw = log_of([[Record(b"value" * 9, b"key")] * 5], codec_id)
    for size in range(len(raw)):
        with pytest.raises(FormatError):
            read(raw[:size])
        with pytest.raises(FormatError):
            validate(raw[:size], max_batch_bytes=LIMIT)
    for extra in (b"\0", b"\xff" * 20, raw[:HEADER_SIZE], raw[:-1]):
        with pytest.raises(FormatError):
            validate(raw + extra, max_batch_bytes=LIMIT)


def outcomes(area: Area) -> list[object]:
    """What each reader makes of an area: the records, or the fact that it is refused."""
    found: list[object] = []
    readers = [walk.walk, fields.records, *(one.records for one in kernels.ALL)]
    for reader in readers:
        try:
            found.append(reader(area, 10, 0, area.records))
        except FormatError:
            found.append("refused")
    for one in kernels.ALL:
        try:
            one.check(area)
        except FormatError:
            found.append("refused")
        else:
            found.append(found[0])
    return found


def assert_one_outcome(area: Area) -> None:
    first, *others = outcomes(area)
    assert all(other == first for other in others)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=60), st.integers(1, 9), st.none() | st.just(5))
@example(b"\x80" * 40, 3, None)
def test_L20_all_readers_agree_on_junk(data: bytes, count: int, append_ms: int | None) -> None:
    assert_one_outcome(Area(data, count, NOW_MS, append_ms))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 30), st.integers(1, 120))
def test_L20_all_readers_agree_on_damage_that_no_crc_has_caught(seed: int, count: int) -> None:
    rng = random.Random(seed)
    raw, _ = encode_batch(varied(count, seed), now_ms=NOW_MS, codec_id=0)
    area = bytearray(raw[HEADER_SIZE:])
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        # Mostly near the front of the area, where fields and not contents are hit.
        position = rng.randrange(min(len(area), rng.choice([10, 60, len(area)])))
        area[position] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    cut = rng.choice([len(area), len(area), rng.randrange(len(area) + 1)])
    assert_one_outcome(Area(bytes(area[:cut]), count, NOW_MS, None))


def test_a_count_that_cannot_be_is_refused_before_memory_is_taken_for_it() -> None:
    assert outcomes(Area(b"\0" * 100, (1 << 31) - 1, 0, None))[0] == "refused"
    assert_one_outcome(Area(b"\0" * 100, (1 << 31) - 1, 0, None))
