"""Batches written and read back by us."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logstore.format.batches import batch
from logstore.format.batches.batch import check_crc, encode_batch, patch_head, read_info, split, validate
from logstore.format.batches.record import Record
from logstore.format.batches.records import check_record, decode_records, record_size
from logstore.format.errors import FormatError, UnsupportedVersion
from tests.support.format.material import CODECS, NOW_MS, log_of, record_lists, stored, varied

pytestmark = pytest.mark.usefixtures("kernel")
LIMIT = 1 << 24
over_kernels = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@over_kernels
@given(record_lists, st.sampled_from(CODECS))
def test_L27_what_is_encoded_is_decoded_and_valid(records: list[Record], codec_id: int) -> None:
    checked = [check_record(record) for record in records]
    raw, info = encode_batch(checked, now_ms=NOW_MS, codec_id=codec_id)
    check_crc(raw, info)
    assert validate(raw, max_batch_bytes=LIMIT) == [info]
    assert decode_records(raw, info) == stored(records)
    stamps = [record.timestamp_ms for record in stored(records)]
    assert (info.min_timestamp_ms, info.max_timestamp_ms) == (min(stamps), max(stamps))  # type: ignore[type-var]
    assert info.size == len(raw)
    assert info.size <= batch.HEADER_SIZE + sum(map(record_size, checked))


@pytest.mark.parametrize("codec_id", CODECS)
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200, 8193])
def test_every_record_of_a_batch_comes_back_at_its_offset(count: int, codec_id: int) -> None:
    records = varied(count) if count < 1000 else [Record(b"v%d" % i, b"k") for i in range(count)]
    raw = log_of([records], codec_id, base_offset=1 << 40)
    (info,) = split(raw)
    assert info.last_offset == (1 << 40) + count - 1
    assert decode_records(raw, info) == stored(records, 1 << 40)


def test_more_records_than_the_table_of_varints_holds() -> None:
    records = [Record(b"%d" % i, None, (), NOW_MS + i * (i % 3)) for i in range(40_000)]
    raw, info = encode_batch(records, now_ms=NOW_MS, codec_id=4)
    assert decode_records(raw, info) == stored(records)
    assert validate(raw, max_batch_bytes=LIMIT) == [info]


def test_large_values_keys_and_headers() -> None:
    records = [
        Record(b"v" * 300_000, b"k" * 70_000, (("h" * 20_000, b"c" * 20_000),), NOW_MS),
        Record(b"w" * 16_384, b"k" * 16_383, (), NOW_MS - (1 << 40)),
    ]
    raw, info = encode_batch(records, now_ms=NOW_MS, codec_id=0)
    assert decode_records(raw, info) == stored(records)
    assert validate(raw, max_batch_bytes=LIMIT) == [info]


@pytest.mark.parametrize("count", [5, 300])
def test_a_range_of_offsets_gives_exactly_those_records(count: int) -> None:
    records = varied(count)
    raw = log_of([records], base_offset=1000)
    (info,) = split(raw)
    expected = stored(records, 1000)
    whole = (1000, 1000 + count)
    ranges = [(0, None), whole, (1002, None), (0, 1003), (1001, 1004), (1000 + count, None), (0, 1000)]
    for start, stop in ranges:
        wanted = [r for r in expected if r.offset >= start and (stop is None or r.offset < stop)]  # type: ignore[operator]
        assert decode_records(raw, info, start_offset=start, stop_offset=stop) == wanted


def test_a_batch_is_read_out_of_any_buffer_at_any_position() -> None:
    batches = [varied(3, seed) for seed in range(4)]
    raw = log_of(batches, codec_id=3)
    for buffer in (raw, bytearray(raw), memoryview(raw), memoryview(bytearray(raw))):
        offset = 0
        for records, info in zip(batches, split(buffer), strict=True):
            check_crc(buffer, info)
            assert decode_records(buffer, info) == stored(records, offset)
            offset += info.count
        assert [info.count for info in validate(buffer, max_batch_bytes=LIMIT)] == [3] * 4


def test_patching_the_head_changes_the_offset_and_nothing_under_the_crc() -> None:
    raw, info = encode_batch(varied(5), now_ms=NOW_MS)
    patched = patch_head(123_456_789_012, info.size, 42) + raw[16:]
    assert len(patched) == len(raw)
    found = read_info(patched)
    check_crc(patched, found)
    assert found.base_offset == 123_456_789_012
    assert found._replace(base_offset=0, min_timestamp_ms=0) == info._replace(min_timestamp_ms=0)
    assert patched[12:16] == (42).to_bytes(4, "big")


def test_producer_fields_are_carried() -> None:
    raw, info = encode_batch(varied(2), now_ms=NOW_MS, producer_id=9, producer_epoch=3, base_sequence=77)
    (found,) = validate(raw, max_batch_bytes=LIMIT)
    assert found == info
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (9, 3, 77)
    assert not found.is_control
    assert not found.is_transactional


@pytest.mark.parametrize("codec_id", CODECS)
def test_compression_is_kept_only_where_it_helps(codec_id: int) -> None:
    _, small = encode_batch([Record(b"x")], now_ms=NOW_MS, codec_id=codec_id)
    assert small.codec_id == 0
    _, large = encode_batch([Record(b"x" * 5000)] * 9, now_ms=NOW_MS, codec_id=codec_id)
    assert large.codec_id == codec_id
    assert codec_id == 0 or large.size < 4000


def test_a_batch_needs_a_record_and_a_known_codec() -> None:
    with pytest.raises(FormatError, match="at least one"):
        encode_batch([], now_ms=NOW_MS)
    with pytest.raises(UnsupportedVersion, match="codec 5"):
        encode_batch([Record(b"x" * 100)], now_ms=NOW_MS, codec_id=5)
    with pytest.raises(UnsupportedVersion, match="codec -1"):
        encode_batch([Record(b"x")], now_ms=NOW_MS, codec_id=-1)


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize("nothing", [(), [], None])
def test_no_headers_are_no_headers_whatever_they_are_made_of(nothing: object, count: int) -> None:
    raw, info = encode_batch([Record(b"x", headers=nothing)] * count, now_ms=NOW_MS)  # type: ignore[arg-type]
    assert decode_records(raw, info) == stored([Record(b"x")] * count)


def test_what_could_not_be_read_back_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_DECODED_BYTES", 1000)
    encode_batch([Record(b"x" * 900)], now_ms=NOW_MS)
    with pytest.raises(FormatError, match="1000"):
        encode_batch([Record(b"x" * 1001)], now_ms=NOW_MS)


@pytest.mark.parametrize(
    "bad",
    [
        Record("text"),  # type: ignore[arg-type]
        Record(bytearray(b"x")),  # type: ignore[arg-type]
        Record(memoryview(b"x")),  # type: ignore[arg-type]
        Record(b"x", key="text"),  # type: ignore[arg-type]
        Record(b"x", key=5),  # type: ignore[arg-type]
        Record(b"x", headers=(("a", "text"),)),  # type: ignore[arg-type]
        Record(b"x", headers=((b"a", b"bytes"),)),  # type: ignore[arg-type]
        Record(b"x", headers=(("\ud800", b"lone surrogate"),)),
        Record(b"x", headers=(("a",),)),  # type: ignore[arg-type]
        Record(b"x", headers=5),  # type: ignore[arg-type]
        Record(b"x", timestamp_ms=-2),
        Record(b"x", timestamp_ms=1 << 62),
        Record(b"x", timestamp_ms=1 << 80),
        Record(b"x", timestamp_ms=1.5),  # type: ignore[arg-type]
        (b"x", b"y"),
        None,
    ],
)
@pytest.mark.parametrize("around", [0, 40])
def test_encoding_refuses_what_check_record_would(bad: object, around: int) -> None:
    records = [Record(b"good")] * around + [bad] + [Record(b"good")] * around
    with pytest.raises(FormatError):
        encode_batch(records, now_ms=NOW_MS, codec_id=0)  # type: ignore[arg-type]
