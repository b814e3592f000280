"""What is made by columns is what would have been made one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.engine.write.admission import admit_columns, admit_records
from logstore.errors import RecordTooLarge
from logstore.format.batches.record import Record
from logstore.upsert.changes import decode_change, encode_change, encode_changes

values = st.none() | st.binary(max_size=40)


@given(pairs=st.lists(st.tuples(values, values), max_size=30), time=st.integers(0, (1 << 63) - 1))
def test_changes_of_one_time_are_encoded_as_one_by_one(
    pairs: list[tuple[bytes | None, bytes | None]], time: int
) -> None:
    encoded = encode_changes([old for old, _ in pairs], [new for _, new in pairs], time)
    assert encoded == [encode_change(old, new, time) for old, new in pairs]
    for change, (old, new) in zip(encoded, pairs, strict=True):
        if old is not None or new is not None:
            assert decode_change(change) == (old, new, time)


@given(
    pairs=st.lists(st.tuples(st.binary(max_size=60), st.binary(max_size=60)), min_size=1, max_size=30),
    limit=st.integers(61 + 36 + 120, 1000),
)
def test_columns_are_cut_into_the_same_batches_as_records(
    pairs: list[tuple[bytes, bytes]], limit: int
) -> None:
    keys, contents = [key for key, _ in pairs], [value for _, value in pairs]
    assert admit_columns(keys, contents, limit) == admit_records(
        [Record(value, key) for key, value in pairs], limit
    )
    assert admit_columns([], [], limit) == []


def test_a_record_of_the_columns_that_fits_no_batch_is_refused() -> None:
    with pytest.raises(RecordTooLarge, match="max_batch_bytes=200"):
        admit_columns([b"a", b"b"], [b"fits", b"x" * 200], 200)
