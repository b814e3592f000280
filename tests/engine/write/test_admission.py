"""What an append is cut into: the same by the C kernel, which knows plain records only, and by Python, which knows all."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.engine.write.admission import Run, admit_records
from logstore.errors import InvalidRecord, LogStoreError, RecordTooLarge
from logstore.format import kernels
from logstore.format.batches.batch import HEADER_SIZE
from logstore.format.batches.record import Record
from logstore.format.batches.records import HEADER_OVERHEAD, RECORD_OVERHEAD

LARGE = 1 << 20
STAMP = 1_700_000_000_000


@pytest.fixture(params=kernels.ALL, ids=lambda one: one.name)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kernels, "active", request.param)
    return str(request.param.name)


@pytest.mark.usefixtures("kernel")
def test_each_part_of_a_record_is_charged() -> None:
    records = [
        Record(b"value"),
        Record(b"value", b"key"),
        Record(None, b"key"),
        Record(b"", b"", (), STAMP),
        Record(b"v", None, (("name", b"content"), ("n", None))),
    ]
    charged = [5, 8, 3, 0, 1 + 2 * HEADER_OVERHEAD + 4 + 7 + 1]
    whole = sum(charged) + len(records) * RECORD_OVERHEAD
    assert admit_records(records, LARGE) == [Run(records, whole)]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("fit", [1, 2, 3])
def test_runs_end_where_the_next_record_does_not_fit(fit: int) -> None:
    """Ten records; a batch has room for exactly so many, or for one byte less than one more."""
    records = [Record(b"%02d" % number, b"key") for number in range(10)]
    size = RECORD_OVERHEAD + 5
    for spare in (0, size - 1):
        runs = admit_records(records, HEADER_SIZE + fit * size + spare)
        assert [run.records for run in runs] == [records[start : start + fit] for start in range(0, 10, fit)]
        assert [run.charged for run in runs] == [len(run.records) * size for run in runs]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("last", [b"", b"last", bytearray(b"last"), Record(b"last", b"key")])
def test_a_list_of_bytes_is_one_of_records_with_a_value_alone(last: Any) -> None:
    """Also if the last is not of their kind, and the whole list has to be looked at closer."""
    values = [b"%02d" % number for number in range(9)]
    records = [Record(value) for value in values]
    limit = HEADER_SIZE + 3 * (RECORD_OVERHEAD + 7)
    as_record = last if isinstance(last, Record) else Record(bytes(last))
    assert admit_records([*values, last], limit) == admit_records([*records, as_record], limit)
    assert admit_records(iter(values), LARGE) == admit_records(records, LARGE)


@pytest.mark.usefixtures("kernel")
def test_a_record_that_fits_no_batch_refuses_all() -> None:
    records = [Record(b"small"), Record(bytes(1000)), Record(b"small")]
    exact = HEADER_SIZE + RECORD_OVERHEAD + 1000
    assert [len(run.records) for run in admit_records(records, exact)] == [1, 1, 1]
    with pytest.raises(RecordTooLarge, match="nothing was appended"):
        admit_records(records, exact - 1)


@pytest.mark.usefixtures("kernel")
def test_what_is_done_to_the_list_afterwards_changes_nothing() -> None:
    records = [Record(b"one"), Record(b"two")]
    (run,) = admit_records(records, LARGE)
    records.clear()
    assert run.records == [Record(b"one"), Record(b"two")]


class Text(str):
    pass


class Special(Record):
    pass


@pytest.mark.parametrize(
    ("odd", "becomes"),
    [
        (b"bytes", Record(b"bytes")),
        (bytearray(b"array"), Record(b"array")),
        (Record(bytearray(b"v"), memoryview(b"k")), Record(b"v", b"k")),  # type: ignore[arg-type]
        (Record(b"v", headers=[("h", b"1")]), Record(b"v", headers=(("h", b"1"),))),  # type: ignore[arg-type]
        (Record(b"v", headers=(("häh", bytearray(b"1")),)), Record(b"v", headers=(("häh", b"1"),))),  # type: ignore[arg-type]
        (Record(b"v", headers=((Text("h"), b"1"),)), Record(b"v", headers=(("h", b"1"),))),
        (Special(b"v", b"k"), Record(b"v", b"k")),
    ],
)
@pytest.mark.usefixtures("kernel")
def test_what_is_not_plain_becomes_a_plain_record_between_others(odd: Any, becomes: Record) -> None:
    plain = Record(b"plain", b"key", (("h", b"1"),), STAMP)
    (run,) = admit_records([plain, odd, plain], LARGE)
    assert run.records == [plain, becomes, plain]
    assert all(isinstance(record, Record) for record in run.records)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "text",
        (b"v", b"k"),
        Record("text"),  # type: ignore[arg-type]
        Record(b"v", 5),  # type: ignore[arg-type]
        Record(b"v", headers=(("h",),)),  # type: ignore[arg-type]
        Record(b"v", headers=((b"h", b"1"),)),  # type: ignore[arg-type]
        Record(b"v", headers=(("h", "1"),)),  # type: ignore[arg-type]
        Record(b"v", headers=None),  # type: ignore[arg-type]
        Record(b"v", timestamp_ms=-1),
        Record(b"v", timestamp_ms=1 << 63),
        Record(b"v", timestamp_ms=True),
        Record(b"v", timestamp_ms=1.0),  # type: ignore[arg-type]
    ],
)
@pytest.mark.usefixtures("kernel")
def test_what_is_no_record_refuses_all(bad: Any) -> None:
    with pytest.raises(InvalidRecord, match="nothing was appended"):
        admit_records([Record(b"good"), bad], LARGE)


@pytest.mark.usefixtures("kernel")
def test_a_tuple_that_only_claims_to_be_a_record_is_not_read_past_its_end() -> None:
    short = tuple.__new__(Record, (b"value", b"key"))
    with pytest.raises((LogStoreError, ValueError)):
        admit_records([short], LARGE)


def test_the_c_kernel_looks_at_plain_records_itself() -> None:
    """Else it would be no use: everything would take the long way, and be right."""
    plain = [Record(b"v", b"k", (("h", None),), STAMP), Record(None)]
    found = [one.cut(plain, LARGE) for one in kernels.ALL]
    charged = 2 * RECORD_OVERHEAD + 2 + HEADER_OVERHEAD + 1
    assert found == [None, [(2, charged)]][: len(kernels.ALL)]


@pytest.mark.usefixtures("kernel")
def test_records_without_a_timestamp_get_one_and_the_newest_of_all_is_known() -> None:
    class Own(Record):
        pass

    headers = (("h", b"1"),)
    given = [
        Record(b"a"),
        Record(None, b"k", headers, STAMP + 5),
        Own(b"b", b"k"),
        Record(b"c", None, headers),
    ]
    found, newest = kernels.active.stamp(given, STAMP)
    assert found == [
        Record(b"a", None, (), STAMP),
        given[1],
        Record(b"b", b"k", (), STAMP),
        Record(b"c", None, headers, STAMP),
    ]
    assert {type(record) for record in found} == {Record}
    assert newest == STAMP + 5
    assert kernels.active.stamp(given, STAMP + 9)[1] == STAMP + 9
    assert given[0].timestamp_ms is None


@pytest.mark.skipif(len(kernels.ALL) == 1, reason="the C kernels are not built")
def test_the_c_kernel_stamps_records_alone() -> None:
    stamp = kernels.ALL[-1].stamp
    for bad in (b"bytes", None, (b"v", None, (), None, None), tuple.__new__(Record, (b"value",))):
        with pytest.raises(TypeError):
            stamp([Record(b"good"), bad], STAMP)  # type: ignore[list-item]
