"""What a caller may hand in as a record."""

from __future__ import annotations

import pytest

from logstore.format.batches.area import MAX_TIMESTAMP_MS
from logstore.format.batches.batch import HEADER_SIZE, encode_batch
from logstore.format.batches.record import Record
from logstore.format.batches.records import check_record, record_size
from logstore.format.errors import FormatError
from tests.support.format.material import varied


def test_a_plain_record_passes_as_it_is() -> None:
    record = Record(b"value", b"key")
    assert check_record(record) is record
    assert check_record(Record(None)) == Record(None)


def test_bytes_like_fields_become_bytes_and_headers_a_tuple() -> None:
    record = Record(bytearray(b"v"), memoryview(b"k"), [["a", bytearray(b"1")], ("b", None)], 5, offset=9)  # type: ignore[arg-type]
    checked = check_record(record)
    assert checked == Record(b"v", b"k", (("a", b"1"), ("b", None)), 5, None)
    assert {type(checked.value), type(checked.key), type(checked.headers[0][1])} == {bytes}


def test_a_memoryview_of_wide_items_counts_its_bytes() -> None:
    wide = memoryview(bytearray(16)).cast("I")
    assert check_record(Record(wide)).value == bytes(16)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "what"),
    [
        ("text", "must be a Record"),
        ((b"v", b"k", (), None, None), "must be a Record"),
        (Record("text"), "value must be bytes or None, not str"),  # type: ignore[arg-type]
        (Record(b"", key=5), "key must be bytes or None, not int"),  # type: ignore[arg-type]
        (Record(b"", headers=(("a", 5),)), "header value must be bytes or None, not int"),  # type: ignore[arg-type]
        (Record(b"", headers=((b"a", b""),)), "header key must be a str, not bytes"),  # type: ignore[arg-type]
        (Record(b"", headers=(("\ud800", b""),)), "header key has no UTF-8 form"),
        (Record(b"", headers=(("a",),)), "pairs"),  # type: ignore[arg-type]
        (Record(b"", headers=7), "pairs"),  # type: ignore[arg-type]
        (Record(b"", headers={"a": b"b"}), "pairs"),  # type: ignore[arg-type]
        (Record(b"", timestamp_ms=True), "timestamp_ms must be an int or None, not bool"),
        (Record(b"", timestamp_ms=1.0), "timestamp_ms must be an int or None, not float"),  # type: ignore[arg-type]
        (Record(b"", timestamp_ms=-1), "between 0 and"),
        (Record(b"", timestamp_ms=MAX_TIMESTAMP_MS + 1), "between 0 and"),
    ],
)
def test_L27_a_bad_record_is_refused_and_the_error_says_which_field(record: object, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        check_record(record)  # type: ignore[arg-type]


def test_the_size_is_an_upper_bound_and_not_far_off() -> None:
    for record in varied(200):
        _, info = encode_batch([record], now_ms=0, codec_id=0)
        assert info.size - HEADER_SIZE <= record_size(record) <= info.size - HEADER_SIZE + 80
