"""Batches as Arrow columns: the same records, in exactly the types that Spark demands."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logstore.format.batches.batch import HEADER_SIZE, BatchInfo, split
from logstore.format.batches.columns import COLUMNS, column_chunks
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records
from logstore.format.errors import FormatError
from tests.support.format.columns import decode_columns, located
from tests.support.format.material import CODECS, NOW_MS, log_of, record_lists, sealed, stored, varied

pytestmark = pytest.mark.usefixtures("kernel")


def rows(batch: pa.RecordBatch) -> list[Record]:
    """The rows as records; Arrow's own full check first."""
    batch.validate(full=True)
    stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert all(stamp % 1000 == 0 for stamp in stamps)
    found = []
    for row, stamp in zip(batch.drop_columns("timestamp").to_pylist(), stamps, strict=True):
        assert row["headers"] is None or row["headers"], "no headers are null, not an empty list"
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        found.append(Record(row["value"], row["key"], headers, stamp // 1000, row["offset"]))
    return found


def mixed_log() -> tuple[bytes, list[BatchInfo], list[Record]]:
    """Batches of many sizes and all codecs, from offset 100."""
    raw, records = b"", list[Any]()
    for index, count in enumerate((1, 5, 1, 200, 7, 1, 90, 1, 1, 30)):
        batch = varied(count, seed=index)
        raw += log_of([batch], codec_id=index % 5, base_offset=100 + len(records))
        records += batch
    return raw, split(raw), stored(records, 100)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(record_lists, min_size=1, max_size=4), st.sampled_from(CODECS))
def test_S10_columns_hold_what_was_written(batches: list[list[Record]], codec_id: int) -> None:
    raw = log_of(batches, codec_id)
    expected = stored([record for batch in batches for record in batch])
    assert rows(decode_columns(raw, split(raw))) == expected


@pytest.mark.parametrize("value_size", [0, 10, 1000])
def test_a_column_holds_little_more_memory_than_its_values(value_size: int) -> None:
    """Whatever else lies in the batches, and however few of the rows are asked for."""
    raw = log_of([[Record(b"v" * value_size, b"k" * 500)] * 100])
    for stop in (100, 3):
        batch = decode_columns(raw, split(raw), columns=("value",), stop_offset=stop)
        assert batch.column("value").to_pylist() == [b"v" * value_size] * stop
        _, _, data = batch.column("value").buffers()
        assert data is None or 3 * data.size <= 4 * value_size * stop + 256


@pytest.mark.parametrize("place", [0, 60, 149])
@pytest.mark.parametrize("size", [0, 40, 63, 64, 8170, 8191, 8192, 1 << 20])
def test_a_record_among_others_of_another_length(size: int, place: int) -> None:
    """Lengths of one, two, three and more bytes, of the record and of its value, in an area that is read as arrays."""
    records = [Record(b"%03d" % number, b"key") for number in range(150)]
    records[place] = Record(b"x" * size, None)
    raw = log_of([records, records])
    assert rows(decode_columns(raw, split(raw))) == stored(records * 2)
    assert decode_records(raw, split(raw)[0]) == stored(records)


@pytest.mark.parametrize("place", [0, 60, 149])
@pytest.mark.parametrize("length", [b"\x01", b"\x0d", b"\x81\x01", b"\xff\xff\xff\xff\xff\x01"])
def test_a_record_with_a_length_that_cannot_be_is_refused(length: bytes, place: int) -> None:
    records = [Record(b"%03d" % number, b"key") for number in range(150)]
    raw = log_of([records])
    before_value = raw[HEADER_SIZE:].index(b"000") + (
        place >= 64
    )  # from there on an offset delta takes two bytes
    one = raw.index(b"%03d" % place) - before_value
    raw = sealed(raw[:one] + length + raw[one + len(length) :])
    with pytest.raises(FormatError):
        decode_columns(raw, split(raw))
    with pytest.raises(FormatError):
        decode_records(raw, split(raw)[0])


def test_S10_many_batches_of_many_codecs_in_one() -> None:
    raw, infos, records = mixed_log()
    assert rows(decode_columns(raw, infos)) == records


def test_the_schema_is_the_one_that_spark_derives() -> None:
    types = pytest.importorskip("pyspark.sql.pandas.types")
    spark = pytest.importorskip("pyspark.sql.types")
    pair = spark.StructType(
        [spark.StructField("key", spark.StringType()), spark.StructField("value", spark.BinaryType())]
    )
    declared = spark.StructType(
        [
            spark.StructField("key", spark.BinaryType()),
            spark.StructField("value", spark.BinaryType()),
            spark.StructField("offset", spark.LongType()),
            spark.StructField("timestamp", spark.TimestampType()),
            spark.StructField("timestampType", spark.IntegerType()),
            spark.StructField("headers", spark.ArrayType(pair)),
        ]
    )
    raw, infos, _ = mixed_log()
    expected = types.to_arrow_schema(declared, timezone="UTC")
    for batch in (
        decode_columns(raw, infos),
        decode_columns(raw, []),
        next(column_chunks(located(raw, infos))),
    ):
        assert batch.schema.equals(expected, check_metadata=True)
        assert str(batch.schema) == str(expected)


@pytest.mark.parametrize(
    "columns", [("value",), ("offset",), ("timestampType", "offset"), ("headers", "key")]
)
def test_only_the_columns_asked_for_in_that_order(columns: tuple[str, ...]) -> None:
    raw, infos, _ = mixed_log()
    whole, some = decode_columns(raw, infos), decode_columns(raw, infos, columns=columns, start_offset=150)
    assert some.schema.names == list(columns)
    for name in columns:
        assert some.column(name).equals(whole.column(name)[50:])


def test_offsets_alone_need_no_record_area() -> None:
    raw, infos, records = mixed_log()
    blanked = bytearray(len(raw))
    for info in infos:
        start = info.position
        blanked[start : start + HEADER_SIZE] = raw[start : start + HEADER_SIZE]
    batch = decode_columns(bytes(blanked), infos, columns=("offset",))
    assert batch.column("offset").to_pylist() == [record.offset for record in records]


def test_a_range_of_offsets_gives_exactly_those_rows() -> None:
    raw, infos, records = mixed_log()
    last: Any = records[-1].offset
    ranges = [(0, None), (101, 103), (105, 106), (150, 320), (last, None), (last + 1, None), (0, 100)]
    for start, stop in ranges:
        expected = [r for r in records if r.offset >= start and (stop is None or r.offset < stop)]  # type: ignore[operator]
        assert rows(decode_columns(raw, infos, start_offset=start, stop_offset=stop)) == expected
        chunks = column_chunks(located(raw, infos), start_offset=start, stop_offset=stop, rows=50)
        assert [row for chunk in chunks for row in rows(chunk)] == expected


@pytest.mark.parametrize("limit", [1, 3, 50, 200, 10_000])
def test_chunks_merge_small_batches_and_cut_large_ones(limit: int) -> None:
    raw, infos, records = mixed_log()
    chunks = list(column_chunks(located(raw, infos), rows=limit))
    assert [row for chunk in chunks for row in rows(chunk)] == records
    assert all(0 < chunk.num_rows <= limit for chunk in chunks)
    assert len(chunks) <= 2 * len(records) // limit + len([info for info in infos if info.count > limit]) + 1


def test_a_thousand_batches_of_one_record_are_one_chunk() -> None:
    records = varied(1000)
    raw = log_of([[record] for record in records])
    (chunk,) = column_chunks(located(raw, split(raw)))
    assert rows(chunk) == stored(records)


def test_a_gap_between_batches_is_a_gap_in_the_offsets() -> None:
    first, second = log_of([varied(3)], base_offset=10), log_of([varied(4)], base_offset=90)
    raw = first + second
    batch = decode_columns(raw, split(raw), start_offset=12, stop_offset=92)
    assert batch.column("offset").to_pylist() == [12, 90, 91]
    assert decode_columns(raw, split(raw), start_offset=13, stop_offset=90).num_rows == 0


def test_log_append_time_shows_in_both_columns() -> None:
    stamped = bytearray(log_of([varied(3)]))
    struct.pack_into(">h", stamped, 21, 0x08)
    struct.pack_into(">q", stamped, 35, NOW_MS + 9)
    raw = log_of([varied(2)]) + sealed(stamped) + log_of([varied(2)])
    batch = decode_columns(raw, split(raw))
    assert batch.column("timestampType").to_pylist() == [0, 0, 1, 1, 1, 0, 0]
    expected = [record for info in split(raw) for record in decode_records(raw, info)]
    assert rows(batch) == expected
    assert {record.timestamp_ms for record in expected[2:5]} == {NOW_MS + 9}


@pytest.mark.parametrize("size", range(14))
def test_values_around_the_size_that_arrow_may_keep_inline(size: int) -> None:
    records = [Record(bytes([65 + index]) * size, bytes([97 + index]) * (size // 2)) for index in range(20)]
    raw = log_of([records])
    assert rows(decode_columns(raw, split(raw))) == stored(records)


@pytest.mark.parametrize("values", [[None] * 30, [b""] * 30, [None, b"x"] * 40, [b"x", None, b""] * 9])
def test_nulls_and_empty_values_are_not_the_same(values: list[bytes | None]) -> None:
    raw = log_of([[Record(value, value) for value in values]])
    batch = decode_columns(raw, split(raw))
    assert batch.column("value").to_pylist() == values
    assert batch.column("key").to_pylist() == values
    assert batch.column("value").null_count == values.count(None)


def test_S08_a_damaged_area_raises_our_error() -> None:
    raw = log_of([varied(50)])
    (info,) = split(raw)
    for position in range(HEADER_SIZE, HEADER_SIZE + 12):
        damaged = bytearray(raw)
        damaged[position] ^= 0xFF
        try:
            found = rows(decode_columns(bytes(damaged), [info]))
        except FormatError:
            continue
        # Attributes, contents and timestamps carry no structure: without the CRC only they may differ.
        assert len(found) == 50
        assert found[1:] == stored(varied(50))[1:]


def test_columns_that_do_not_exist_are_named() -> None:
    raw, infos, _ = mixed_log()
    for wrong in (("topic",), ("key", "Value"), ()):
        with pytest.raises(FormatError, match="there are key, value, offset, timestamp, timestampType, h"):
            decode_columns(raw, infos, columns=wrong)
    with pytest.raises(FormatError, match="0 rows"):
        list(column_chunks(located(raw, infos), rows=0))
    assert COLUMNS == ("key", "value", "offset", "timestamp", "timestampType", "headers")


def test_the_core_imports_without_pyarrow() -> None:
    code = "import logstore, logstore.format.batches.columns, logstore.format.batches.records"
    subprocess.run([sys.executable, "-c", f"import sys; sys.modules['pyarrow'] = None; {code}"], check=True)
