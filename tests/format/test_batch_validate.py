"""L27: foreign bytes that are not exactly what a producer may send take no offset."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from logstore.format import varint
from logstore.format.batches.area import MAX_TIMESTAMP_MS
from logstore.format.batches.batch import HEADER_SIZE, encode_batch, read_info, split, validate
from logstore.format.batches.codecs import compress
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records
from logstore.format.errors import FormatError, UnsupportedVersion
from tests.support.format.material import NOW_MS, log_of, sealed, stored, varied, with_area

pytestmark = pytest.mark.usefixtures("kernel")
LIMIT = 1 << 20


def changed(raw: bytes, position: int, form: str, *numbers: int) -> bytes:
    """The header field at `position` set, the CRC right."""
    out = bytearray(raw)
    struct.pack_into(">" + form, out, position, *numbers)
    return sealed(out)


def record(
    value: bytes = b"\x02v", key: bytes = b"\x01", number: int = 0, stamp: int = 0, tail: bytes = b"\0"
) -> bytes:
    """One record; `value`, `key` and `tail` are encoded already."""
    inner = b"\0" + varint.encode(stamp) + varint.encode(number) + key + value + tail
    return varint.encode(len(inner)) + inner


@pytest.fixture
def good() -> bytes:
    raw, _ = encode_batch([Record(b"v", None, (), NOW_MS)] * 3, now_ms=0, codec_id=0)
    return raw


def refuse(raw: bytes, match: str | None = None, **limits: Any) -> FormatError:
    with pytest.raises(FormatError, match=match) as caught:
        validate(raw, **({"max_batch_bytes": LIMIT} | limits))
    return caught.value


def test_L27_header_fields_that_lie(good: bytes) -> None:
    assert validate(good, max_batch_bytes=LIMIT)
    refuse(b"", "no batch")
    refuse(good[:-1], "bytes where")
    refuse(good + b"\0", "cannot hold a batch header")
    refuse(good[:60], "cannot hold a batch header")
    for magic in (0, 1, 3, -1):
        assert isinstance(refuse(changed(good, 16, "b", magic), "magic"), UnsupportedVersion)
    for length in (-1, 0, 48, len(good) - 11, 1 << 30):
        lying = bytearray(good)
        struct.pack_into(">i", lying, 8, length)
        refuse(bytes(lying), "a batch of .* bytes where")
    refuse(changed(good, 0, "q", -1), "base offset -1")
    refuse(changed(good, 0, "q", (1 << 63) - 3), "base offset 9223372036854775805")
    assert (
        validate(changed(good, 0, "q", (1 << 63) - 4), max_batch_bytes=LIMIT)[0].last_offset == (1 << 63) - 2
    )
    for count in (0, -1, 2, 4, 1 << 30):
        refuse(changed(good, 57, "i", count), "records with last offset delta")
        if count > 0:
            refuse(changed(changed(good, 57, "i", count), 23, "i", count - 1), "records|record|cannot hold")
    refuse(changed(good, 23, "i", 7), "last offset delta 7")


def test_L27_attributes_that_a_producer_must_not_set(good: bytes) -> None:
    refuse(changed(good, 21, "h", 0x20), "control")
    refuse(changed(good, 21, "h", 0x40), "delete horizon")
    for codec_id in (5, 6, 7):
        assert isinstance(refuse(changed(good, 21, "h", codec_id), f"codec {codec_id}"), UnsupportedVersion)
    for codec_id in (1, 2, 3, 4):
        refuse(changed(good, 21, "h", codec_id), "gzip|snappy|lz4|zstd")
    assert validate(changed(good, 21, "h", 0x10), max_batch_bytes=LIMIT)[0].is_transactional


def test_L27_a_producer_id_needs_an_epoch_and_a_sequence(good: bytes) -> None:
    assert validate(changed(good, 43, "qhi", 5, 0, 0), max_batch_bytes=LIMIT)
    refuse(changed(good, 43, "qhi", 5, 0, -1), "producer 5 with epoch 0 and sequence -1")
    refuse(changed(good, 43, "qhi", 5, -1, 0), "producer 5 with epoch -1")


def test_L27_limits_on_the_batch_and_on_what_is_in_it() -> None:
    raw, info = encode_batch([Record(b"x" * 100_000)], now_ms=0)
    assert info.size < 1000
    validate(raw, max_batch_bytes=info.size, max_decoded_bytes=101_000)
    refuse(raw, "at most", max_batch_bytes=info.size - 1)
    refuse(raw, "more than the 99999", max_decoded_bytes=99_999)


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([record(number=1)], id="offset deltas must start at 0"),
        pytest.param([record(), record()], id="and go up"),
        pytest.param([record(), record(number=2)], id="without a hole"),
        pytest.param([record(number=-1)], id="and not be negative"),
        pytest.param([record(key=b"\x03")], id="a key length below -1"),
        pytest.param([record(value=b"\x03")], id="a value length below -1"),
        pytest.param([record(key=b"\x06k")], id="a key that reaches into the value"),
        pytest.param([record(value=b"\x7ev")], id="a value that reaches past the record"),
        pytest.param([record(value=b"\x7ev"), record(number=1) * 9], id="into the next record"),
        pytest.param([record(value=b"\xfe\xff\xff\xff\x0fv")], id="a value of 2 GiB"),
        pytest.param([record(value=b"\x80\x80\x80\x80\x10v")], id="a varint of 33 bits"),
        pytest.param([record(value=b"\x80\x80\x80\x80\x80\x01v")], id="a varint of six bytes"),
        pytest.param([record(tail=b"\0\0")], id="a byte after the headers"),
        pytest.param([record(tail=b"")], id="no header count"),
        pytest.param([record(tail=b"\x01")], id="a negative header count"),
        pytest.param([record(tail=b"\x7e")], id="headers that are not there"),
        pytest.param([record(tail=b"\x02\x01\x01")], id="a header key that is null"),
        pytest.param([record(tail=b"\x02\x02\xff\x01")], id="a header key that is not UTF-8"),
        pytest.param([record(tail=b"\x02\x06\xed\xa0\x80\x01")], id="a surrogate in UTF-8"),
        pytest.param([record(tail=b"\x02\x04\xc0\x80\x01")], id="an overlong UTF-8 form"),
        pytest.param([record(tail=b"\x02\x08\xf4\x90\x80\x80\x01")], id="a code point past the last"),
        pytest.param([record(tail=b"\x02\x02a\x03")], id="a header value length below -1"),
        pytest.param([record(tail=b"\x02\x02a\x08v")], id="a header value past the record"),
        pytest.param([record(tail=b"\x02\x02a\x01\0")], id="a byte after the last header"),
        pytest.param([record(stamp=-NOW_MS - 2)], id="a timestamp below -1"),
        pytest.param([record(stamp=MAX_TIMESTAMP_MS)], id="a timestamp no reader can show"),
        pytest.param([record(stamp=1 << 62)], id="a timestamp delta of nine bytes"),
        pytest.param([b"\x01"], id="a negative record length"),
        pytest.param([b"\0"], id="a record of no bytes"),
        pytest.param([b"\x80"], id="an unfinished varint"),
        pytest.param([record()[:-1]], id="a record cut short"),
        pytest.param([record() + b"\0"], id="a byte after the last record"),
        pytest.param([record(), record(number=1)[:-1]], id="the last record cut short"),
    ],
)
@pytest.mark.parametrize("before", [0, 100])
def test_L27_record_areas_that_lie(good: bytes, records: list[bytes], before: int) -> None:
    """The same lie in the first record, and after a hundred good ones (the offset deltas then shifted)."""
    shifted = [bytes(part) for part in records]
    if before:
        raw, _ = encode_batch([Record(b"v", None, (), NOW_MS)] * before, now_ms=0, codec_id=0)
        area = raw[HEADER_SIZE:] + b"".join(renumbered(part, before) for part in shifted)
    else:
        area = b"".join(shifted)
    lying = with_area(good, area, before + len(records))
    refuse(lying)
    with pytest.raises(FormatError):
        decode_records(lying, read_info(lying))


def renumbered(part: bytes, shift: int) -> bytes:
    """Move the offset delta of an encoded record up, if there is one at its usual place."""
    if len(part) < 5 or part[2] & 0x80 or part[0] & 0x80:
        return part
    number, after = varint.read(part, 3)
    moved = part[1:3] + varint.encode(number + shift) + part[after:]
    length, _ = varint.read(part, 0)
    return varint.encode(length + len(moved) - len(part) + 1) + moved


def test_the_smallest_and_the_strangest_that_is_allowed(good: bytes) -> None:
    odd = [
        record(value=b"\x01", key=b"\x01"),  # tombstone without a key
        record(value=b"\x80\x00", key=b"\x82\x80\x00k", number=1),  # overlong varints: Kafka takes them
        record(tail=b"\x04\x00\x00\x00\x01", number=2),  # headers with empty keys, one null
        record(stamp=-NOW_MS - 1, number=3),  # "no timestamp"
    ]
    raw = with_area(good, b"".join(odd), 4)
    (info,) = validate(raw, max_batch_bytes=LIMIT)
    assert decode_records(raw, info) == [
        Record(None, None, (), NOW_MS, 0),
        Record(b"", b"k", (), NOW_MS, 1),
        Record(b"v", None, (("", b""), ("", None)), NOW_MS, 2),
        Record(b"v", None, (), -1, 3),
    ]
    assert (info.min_timestamp_ms, info.max_timestamp_ms) == (-1, NOW_MS)


@pytest.mark.parametrize("stamp", [-1, 0, MAX_TIMESTAMP_MS])
def test_the_first_and_the_last_timestamp_that_can_be(good: bytes, stamp: int) -> None:
    """The limits stand in Python and in C: both ends must be the same, to the millisecond."""
    delta = stamp - NOW_MS
    raw = with_area(good, record(stamp=delta), 1)
    (info,) = validate(raw, max_batch_bytes=LIMIT)
    assert [found.timestamp_ms for found in decode_records(raw, info)] == [stamp]
    outside = delta + (-1 if stamp == -1 else 1)
    if stamp:
        refuse(with_area(good, record(stamp=outside), 1), "timestamp")
        with pytest.raises(FormatError, match="timestamp"):
            encode_batch([Record(b"v", timestamp_ms=NOW_MS + outside)], now_ms=0)


@pytest.mark.parametrize("count", [3, 150])
def test_log_append_time_is_the_timestamp_of_every_record(count: int) -> None:
    records = varied(count)
    raw = bytearray(log_of([records]))
    struct.pack_into(">hi", raw, 21, 0x08, count - 1)
    struct.pack_into(">q", raw, 35, 77)
    stamped = sealed(raw)
    (info,) = validate(stamped, max_batch_bytes=LIMIT)
    assert (info.min_timestamp_ms, info.max_timestamp_ms) == (77, 77)
    assert decode_records(stamped, info) == [r._replace(timestamp_ms=77) for r in stored(records)]
    for stamp in (-2, MAX_TIMESTAMP_MS + 1):
        refuse(changed(stamped, 35, "q", stamp), "timestamp")


def test_a_max_timestamp_that_lies_is_corrected_in_the_result(good: bytes) -> None:
    """Kafka's broker accepts such a batch and corrects its index; the bytes stay the producer's."""
    (info,) = validate(changed(good, 35, "q", NOW_MS + 5000), max_batch_bytes=LIMIT)
    assert (info.min_timestamp_ms, info.max_timestamp_ms) == (NOW_MS, NOW_MS)
    refuse(changed(good, 27, "q", -2), "timestamp")


def test_L27_one_bad_batch_refuses_the_whole_record_set() -> None:
    raw = log_of([varied(3), varied(3)])
    second = split(raw)[1].position
    damaged = bytearray(raw)
    damaged[second + 70] ^= 1
    error = refuse(bytes(damaged), "CRC")
    assert error.position == second


@pytest.mark.parametrize("codec_id", [1, 2, 3, 4])
def test_L27_a_bomb_is_refused_without_being_unpacked(codec_id: int, good: bytes) -> None:
    bomb = compress(codec_id, bytes(8 << 20))
    raw = changed(good[:HEADER_SIZE] + bomb, 21, "h", codec_id)
    refuse(raw, "1000000", max_decoded_bytes=1_000_000)
