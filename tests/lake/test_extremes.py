"""T02, T03: records that no table was made for do not stop it, and neither do settings that others have changed."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore import Record
from logstore.lake import Materializer, table
from logstore.lake.rows import values_of
from logstore.lake.table_format import Source, in_a_line
from logstore.lake.values.extremes import beyond_calendars, rows_with
from tests.support.lake.tables import FORMATS, durable, events, places, rows_of, target

MAY_MS = 1_700_000_000_000
YEAR_10000_MS = 253_402_300_800_000
LAST_MS = (1 << 63) // 1000 - 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logstore.Store]:
    with logstore.open((tmp_path / "log").as_uri()) as opened:
        yield opened


@pytest.fixture(params=FORMATS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return target(request.param, tmp_path / "lake")


def sorted_rows(where: str, *columns: str) -> list[list[Any]]:
    found = rows_of(where).sort_by("offset")
    return [found[name].to_pylist() for name in columns]


@pytest.mark.parametrize("partition_by", [None, "day", "hour"])
def test_T03_a_timestamp_behind_the_year_9999_is_null_and_stops_no_table(
    store: logstore.Store, where: str, partition_by: str | None
) -> None:
    """As of a producer that counts microseconds. Readers in Python have no time for it, and pyiceberg no statistics."""
    topic = store.create_topic("orders")
    stamps = [MAY_MS, YEAR_10000_MS - 1, YEAR_10000_MS, LAST_MS, MAY_MS * 1000]
    topic.append_many([Record(b'{"id": 1}', timestamp_ms=stamp) for stamp in stamps])
    copier = Materializer(topic, where, schema="infer", partition_by=partition_by)
    assert copier.run_once().rows == 5
    assert places(rows_of(where)) == durable(topic)
    topic.append(b"{}", timestamp_ms=LAST_MS)
    whole = table(topic, where, ["offset", "timestamp"]).read_all().sort_by("offset")
    assert whole["timestamp"].cast(pa.int64()).to_pylist() == [
        MAY_MS * 1000,
        (YEAR_10000_MS - 1) * 1000,
        *[None] * 4,
    ], "as it will be in the table"


def test_T03_delta_knows_of_a_file_without_timestamps(store: logstore.Store, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    topic = store.create_topic("orders")
    where = target("delta", tmp_path / "lake")
    topic.append_many([Record(b"1", timestamp_ms=MAY_MS), Record(b"2", timestamp_ms=LAST_MS)])
    Materializer(topic, where, partition_by="day").run_once()
    found = DeltaTable(where.removeprefix("delta:"))
    actions = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    assert sorted((one["partition.day"] is None, one["null_count.timestamp"]) for one in actions) == [
        (False, 0),
        (True, 1),
    ]


@pytest.mark.parametrize(
    "text", ["0000-01-01T00:00:00Z", "9999-12-31T23:59:59-10:00", "0001-01-01T00:00:00+14:00"]
)
def test_T03_a_time_in_a_value_that_no_calendar_has_does_not_fit(
    store: logstore.Store, where: str, text: str
) -> None:
    schema = pa.schema([("o", pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))])))])
    topic = store.create_topic("orders")
    odd = b'{"o": [{"at": "%s"}]}' % text.encode()
    topic.append_many([Record(b'{"o": [{"at": "2026-01-01"}]}'), Record(odd), Record(b'{"o": []}')])
    progress = Materializer(topic, where, schema=schema).run_once()
    assert (progress.rows, progress.unparsed) == (3, 1)
    assert sorted_rows(where, "value_raw") == [[None, odd, None]]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_T03_calendars_end_at_the_same_moment_in_every_unit(unit: Any) -> None:
    a_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    first, stop = -62_135_596_800 * a_second, 253_402_300_800 * a_second
    stamps = [None, first - 1, first, 0, stop - 1, stop]
    expected: list[bool] | None = [False, True, False, False, False, True]
    if unit == "ns":
        stamps, expected = [None, -(1 << 63), 0, (1 << 63) - 1], None
    found = beyond_calendars(pa.array(stamps, pa.int64()).view(pa.timestamp(unit)))
    assert (None if found is None else found.tolist()) == expected
    days = pa.array([-719_163, -719_162, 2_932_896, 2_932_897, None], pa.int32()).view(pa.date32())
    found = rows_with(beyond_calendars, pa.ListArray.from_arrays([0, 1, 3, 3, 5], days))
    assert found is not None
    assert found.tolist() == [True, False, False, True]


def test_T03_a_number_with_more_digits_than_its_column_has_is_kept_as_it_was(
    store: logstore.Store, where: str
) -> None:
    """Nobody said that it is a double."""
    values = [
        b'{"id": 12345678901234567890, "o": [{"n": 0.5}]}',
        b'{"id": 12345678901234567891, "o": []}',
        b'{"id": 7, "o": [{"n": 1}, {"n": -98765432109876543210}]}',
        b'{"id": 8, "o": null}',
    ]
    topic = store.create_topic("orders")
    topic.append_many([Record(value) for value in values])
    assert Materializer(topic, where, schema="infer").run_once().unparsed == 0
    ids, raw = sorted_rows(where, "id", "value_raw")
    assert ids == [12345678901234567890.0, 12345678901234567891.0, 7.0, 8.0]
    assert raw == [*values[:3], None]


def test_T03_names_that_differ_in_their_case_alone_stop_no_table_at_any_depth(
    store: logstore.Store, where: str
) -> None:
    values = [
        b'{"a": {"x": 1}}',
        b'{"a": {"X": 2}}',
        b'{"a": {"x": 3, "X": 4}}',
        b'{"b": [{"y": 1}, {"Y": 2}]}',
        b'{"a": {"x": 5}, "A": {"x": 6}}',
        b'{"a": {"": 7}}',
        b'{"a": {"x": 8}}',
    ]
    topic = store.create_topic("orders")
    copier = Materializer(topic, where, schema="infer")
    for value in values:
        topic.append(value)
        copier.run_once()
    a, raw = sorted_rows(where, "a", "value_raw")
    assert [None if one is None else one["x"] for one in a] == [1, None, 3, None, 5, None, 8]
    assert raw == [None, *values[1:6], None]


def test_T03_names_that_are_data_make_a_bounded_number_of_fields_at_any_depth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("logstore.lake.values.json_columns.FIELDS_MAX", 50)
    made = values_of("infer")
    assert made is not None
    for turn in range(10):
        inner = ",".join(f'"k{turn}-{n}": {{"x": 1}}' for n in range(4))
        made.parse(pa.array([f'{{"by_key": {{{inner}}}}}'.encode()], pa.binary()))
    (found,) = made.columns
    assert found.type.num_fields == 24, "a struct and its field each: the first 49 beside the column"
    for late, raw in ((b'{"%s": 1}' % (b"n" * 256), True), (b'{"id": 1}', False), (b'{"at": 1}', True)):
        parsed = made.parse(pa.array([late], pa.binary()))
        assert (parsed.unparsed, parsed.raw.to_pylist()) == (0, [late if raw else None])
    assert made.columns.names == ["by_key", "id"], "a name was too long, and for the last there was no room"


def test_T03_fields_that_a_table_cannot_have_leave_their_values_raw_and_keep_no_others_out(
    store: logstore.Store, where: str
) -> None:
    """Iceberg knows a field of a struct by its path, which is the name of another column here."""
    values = [
        b'{"a.b": 1}',
        b'{"a": {"b": 2}, "n": 5}',
        b'{"p": {"q": 1}, "p.q": 2, "m": 6}',
        b'{"z\\u0000": 3}',
        b'{"p": {"q": 4}, "a.b": 7, "n": 8}',
    ]
    topic = store.create_topic("orders")
    copier = Materializer(topic, where, schema="infer")
    for value in values:
        topic.append(value)
        progress = copier.run_once()
    assert (progress.rows, progress.unparsed, progress.conflicts, progress.behind) == (5, 0, 0, 0)
    a_b, n, m, raw = sorted_rows(where, "a.b", "n", "m", "value_raw")
    assert (a_b, n, m) == ([1, *[None] * 3, 7], [None, 5, *[None] * 2, 8], [None, None, 6, None, None])
    refused = {1, 2, 3} if where.startswith("iceberg") else {3}
    assert [number for number, value in enumerate(raw) if value is not None] == sorted(refused)
    if where.startswith("iceberg"):
        topic.append(b"{}")
        given = pa.schema([("x.y", pa.int64()), ("x", pa.struct([("y", pa.int64())]))])
        with pytest.raises(ValueError, match="the table cannot have these columns"):
            Materializer(topic, where, schema=given).run_once()


@pytest.mark.parametrize("depth", [20, 60, 110, 900, 1100])
def test_T03_what_is_nested_deeper_than_tables_can_be_stays_raw_and_harms_no_table(
    store: logstore.Store, where: str, depth: int
) -> None:
    """delta-rs took a column of 60 structs in each other, and never loaded the table again."""
    lists = b'{"l": %s1%s}' % (b"[" * depth, b"]" * depth)
    objects = b'{"o":' * depth + b"1" + b"}" * depth
    topic = store.create_topic("orders")
    copier = Materializer(topic, where, schema="infer")
    for value in (lists, objects, b'{"id": 1}'):
        topic.append(value)
        assert copier.run_once().behind == 0
    ids, raw = sorted_rows(where, "id", "value_raw")
    assert ids == [None, None, 1]
    assert raw == [None, None, None] if depth == 20 else [lists, objects, None]


def test_T03_a_value_without_an_end_of_objects_in_objects_does_not_end_the_process() -> None:
    """It took more than the stack: a record of 100 KB killed whoever inferred columns."""
    script = """if True:
        import pyarrow as pa
        from logstore.lake.rows import values_of
        deep = [b'{"o":' * 50_000 + b"1" + b"}" * 50_000, b'{"l":' + b"[" * 50_000 + b"]" * 50_000 + b"}"]
        hidden = b'{"a":"%s","l":%s%s}' % (b"]" * 60_000, b"[" * 50_000, b"]" * 50_000)
        shallow = b'{"id":1,"t":"%s","many":[%s]}' % (b"[" * 9_000, b",".join([b"{}"] * 3_000))
        found = values_of("infer").parse(pa.array([*deep, hidden, shallow], pa.binary()))
        print(found.unparsed, found.columns["id"].to_pylist())
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "3 [None, None, None, 1]"), done.stderr


@pytest.mark.parametrize(
    "schema", [pa.schema([("ID", pa.int64())]), pa.schema([("id", pa.int64()), ("Id", pa.int64())])]
)
def test_T03_a_schema_that_gives_a_column_another_case_is_refused(
    store: logstore.Store, where: str, schema: pa.Schema
) -> None:
    topic = store.create_topic("orders")
    topic.append_many(events(0, 5))
    Materializer(topic, where, schema="infer").run_once()
    with pytest.raises(ValueError, match=r"has the column id: I. would be the same one"):
        Materializer(topic, where, schema=schema).run_once()


def test_T03_a_type_that_a_table_cannot_have_is_refused_by_name_and_not_tried_again(
    store: logstore.Store, where: str
) -> None:
    topic = store.create_topic("orders")
    with pytest.raises(ValueError, match=r"orders|table.*: an? (Iceberg|Delta) table cannot have"):
        Materializer(topic, where, schema=pa.schema([("took", pa.duration("us"))])).run_once()
    nothing = pa.list_(pa.struct([("x", pa.null())]))
    for kind in (pa.null(), pa.struct([]), nothing, pa.map_(pa.string(), pa.int64()), pa.binary(4)):
        with pytest.raises(ValueError, match="no JSON value becomes a column of such a type: took"):
            Materializer(topic, where, schema=pa.schema([("id", pa.int64()), ("took", kind)]))


# -- what others set, and what is gone -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["4", None])
def test_T02_retries_that_somebody_has_switched_on_make_no_row_twice(
    store: logstore.Store, tmp_path: Path, value: str | None
) -> None:
    """pyiceberg goes by the property as it was when the table was loaded, not by what the commit says of it."""
    where = target("iceberg", tmp_path / "lake")
    topic = store.create_topic("orders")
    topic.append_many(events(0, 10))
    Materializer(topic, where).run_once()
    slow, quick = Materializer(topic, where), Materializer(topic, where)
    form: Any = slow._table
    assert form.load()
    with form._loaded.transaction() as change:
        if value is None:
            change.remove_properties("commit.retry.num-retries")
        else:
            change.set_properties({"commit.retry.num-retries": value, "commit.retry.min-wait-ms": "1"})
    commit = form.commit

    def late(*given: Any) -> bool:
        form.commit = commit
        quick.run_once()
        return bool(commit(*given))

    topic.append_many(events(10, 20))
    form.commit = late
    slow.run_once()
    assert places(rows_of(where)) == durable(topic)


def test_T02_a_delta_table_that_would_forget_its_transactions_is_refused(
    store: logstore.Store, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    where = target("delta", tmp_path / "lake")
    topic = store.create_topic("orders")
    topic.append_many(events(0, 10))
    Materializer(topic, where).run_once()
    DeltaTable(where.removeprefix("delta:")).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 1 days"}
    )
    for read in (lambda: Materializer(topic, where).run_once(), lambda: table(topic, where)):
        with pytest.raises(ValueError, match=r"setTransactionRetentionDuration.*Unset it"):
            read()


@pytest.mark.parametrize("moment", ["load", "put", "commit"])
def test_T02_a_topic_that_is_deleted_and_recreated_under_a_copier_is_copied_on_at_once(
    store: logstore.Store, where: str, moment: str
) -> None:
    topic = store.create_topic("orders")
    for first in range(0, 60, 10):
        topic.append_many(events(first, first + 10))
    copier = Materializer(topic, where, commit_bytes=1)
    form: Any = copier._table
    call: Callable[..., Any] = getattr(form, moment)
    turns = [0]

    def late(*given: Any) -> Any:
        turns[0] += 1
        if turns[0] == 2:
            store.delete_topic("orders")
            store.create_topic("orders").append_many(events(100, 105))
        return call(*given)

    setattr(form, moment, late)
    assert copier.run_once().behind == 0
    found = places(rows_of(where))
    assert set(found.values()) == {1}
    assert durable(store.topic("orders")) <= found


def test_T04_what_is_lost_is_counted_once_when_the_table_has_passed_it(
    store: logstore.Store, where: str
) -> None:
    topic = store.create_topic("orders")
    topic.append_many(events(0, 10))
    copier = Materializer(topic, where, hold_seconds=0, on_lost="skip")
    copier.run_once()
    form: Any = copier._table
    commit = form.commit

    def refused(*_: Any) -> bool:
        form.commit = commit
        return False

    form.commit = refused
    for first in (10, 20):
        topic.append_many(events(first, first + 10))
    topic.partition(0).delete_before(30)
    for _ in range(2):
        progress = copier.run_once()
        assert (progress.lost, progress.behind, progress.conflicts) == (20, 0, 1)
    assert table(topic, where).read_all().num_rows == 10, "it goes on where the log does"


@pytest.mark.parametrize("on_lost", ["raise", "skip"])
def test_T02_a_table_that_is_ahead_of_its_log_is_said(
    store: logstore.Store, where: str, on_lost: Any
) -> None:
    """The log was brought back from a copy, say: its next records would have offsets that the table knows."""
    topic = store.create_topic("orders")
    topic.append_many(events(0, 10))
    copier = Materializer(topic, where, on_lost=on_lost)
    copier.run_once()
    assert copier._table.load()
    incarnation = topic._internal.descriptor.incarnation
    assert copier._table.commit([], {Source("orders", incarnation, 0): 15})
    with pytest.raises(logstore.OffsetOutOfRange, match="offset 15 is outside of orders/0"):
        copier.run_once()


def test_T02_passwords_of_a_catalog_are_in_no_error_and_no_log(
    store: logstore.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "logstore")
    where = target("iceberg", tmp_path / "lake") + "&password=sesame"
    topic = store.create_topic("orders")
    topic.append_many(events(0, 10))
    copier = Materializer(topic, where)
    with pytest.raises(ValueError, match="no table") as none:
        table(topic, where)
    commit = copier._table.commit
    copier._table.commit = lambda *_: False  # type: ignore[method-assign]
    with pytest.raises(logstore.StoreUnavailable, match="did not go through") as refused:
        copier.run_once()
    copier._table.commit = commit  # type: ignore[method-assign]
    copier.run_once()
    with pytest.raises(ValueError, match="is partitioned by") as other:
        Materializer(topic, where, partition_by="day").run_once()
    topic.append_many(events(10, 20))
    topic.partition(0).delete_before(15)
    Materializer(topic, where, on_lost="skip").run_once()
    said = [str(each.value) for each in (none, refused, other)] + [caplog.text]
    assert not [text for text in said if "sesame" in text]


def test_T02_a_file_that_iceberg_cannot_store_may_be_stored_later(
    store: logstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.io.pyarrow import PyArrowFile

    topic = store.create_topic("orders")
    topic.append_many(events(0, 10))
    copier = Materializer(topic, target("iceberg", tmp_path / "lake"))
    copier.progress()

    def refused(file: PyArrowFile, overwrite: bool = False) -> None:
        raise OSError("connection reset")

    with monkeypatch.context() as broken:
        form: Any = copier._table
        create = PyArrowFile.create
        put = form.put

        def put_broken(*given: Any) -> None:
            broken.setattr(PyArrowFile, "create", refused)
            try:
                put(*given)
            finally:
                broken.setattr(PyArrowFile, "create", create)

        form.put = put_broken
        with pytest.raises(logstore.StoreUnavailable, match=r"cannot be stored .connection reset"):
            copier.run_once()
        form.put = put
    assert copier.run_once().rows == 10


def test_T02_what_a_library_says_comes_in_a_line() -> None:
    colours = Exception(
        "Kernel error -> Generic S3 error\n  \x1b[31m↳\x1b[0m Error performing GET\n   \x1b[31m↳\x1b[0m refused\n"
    )
    assert in_a_line(colours) == "Kernel error -> Generic S3 error Error performing GET refused"
    backtrace = Exception("Schema error: no such type\n   0: <unknown>\n   1: _start\n")
    assert in_a_line(backtrace) == "Schema error: no such type"
