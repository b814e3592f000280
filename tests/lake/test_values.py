"""T03: what does not fit the schema is in the table too, raw, and counted. Schemas grow."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore.lake import Materializer
from logstore.lake.rows import values_of
from logstore.lake.values.json_columns import ValueColumns
from tests.support.lake.tables import FORMATS, durable, events, places, rows_of, target

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("kind", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("o", pa.struct([("x", pa.float64())])),
    ]
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logstore.Store]:
    with logstore.open((tmp_path / "log").as_uri()) as opened:
        yield opened


@pytest.fixture(params=FORMATS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return target(request.param, tmp_path / "lake")


def parse(
    values: list[bytes | None], schema: Any = SCHEMA
) -> tuple[list[dict[str, Any]], list[bytes | None], int]:
    made = values_of(schema)
    assert made is not None
    found = made.parse(pa.array(values, pa.binary()))
    return found.columns.to_pylist(), found.raw.to_pylist(), found.unparsed


MISFITS = [
    b"",
    b" ",
    b"null",
    b"5",
    b"[1]",
    b'"text"',
    b"{",
    b'{"id": 1',
    b'{"id": "one"}',
    b'{"id": 1.5}',
    b'{"id": 99999999999999999999}',
    b'{"id": 1} null',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1},"kind":"x"',
    b'{"kind": "\xff"}',
    b'{"kind": "a\nb"}',
    b'{"id": 1, "id": 2}',
    b'{"o": 5}',
    b'{"at": "yesterday"}',
    b"\x00\x01",
    b"{}null{}",
    b'{"o": ' + b"[" * 10_000,
]


@pytest.mark.parametrize("misfit", MISFITS, ids=lambda value: repr(value[:24]))
def test_T03_a_value_that_does_not_fit_stays_as_it_is_and_its_neighbours_are_parsed(misfit: bytes) -> None:
    good = b'{"id": 7, "kind": "x", "at": "2026-01-01T00:00:00Z", "o": {"x": 1}, "other": [1]}'
    row = {"id": 7, "kind": "x", "at": datetime(2026, 1, 1, tzinfo=UTC), "o": {"x": 1.0}}
    nothing = dict.fromkeys(SCHEMA.names)
    assert parse([misfit]) == ([nothing], [misfit], 1)
    assert parse([good, misfit, good, misfit]) == (
        [row, nothing, row, nothing],
        [None, misfit, None, misfit],
        2,
    )


def test_T03_values_that_are_only_together_what_they_seem_are_told_apart() -> None:
    """Two of them make one object, and another makes two: the number of rows would be right."""
    halves: list[bytes | None] = [b'{"id": 1}{"id": 2}', b'{"id": 3, "o":', b'{"x": 4}}']
    rows, raw, unparsed = parse(halves)
    assert (raw, unparsed) == (halves, 3)
    assert all(value is None for row in rows for value in row.values())


def test_T03_objects_that_are_written_otherwise_fit_all_the_same() -> None:
    values: list[bytes | None] = [
        b"{}",
        b"{ }",
        b'  {"id": 1}\r\n',
        b'{\n  "id": 2\n}',
        None,
        b'{"id": null}',
        b'{"kind": "\\u00e4"}',
    ]
    rows, raw, unparsed = parse(values)
    assert [row["id"] for row in rows] == [None, None, 1, 2, None, None, None]
    assert rows[6]["kind"] == "ä"
    assert (raw, unparsed) == ([None] * 7, 0), "a tombstone has no value, and needs none"


def test_T03_any_mixture_of_values_comes_out_as_json_says() -> None:
    rng = random.Random(19)
    for _ in range(30):
        values = [
            rng.choice(MISFITS)
            if rng.random() < 0.2
            else json.dumps({"id": n, "kind": "k" * rng.randrange(9)}).encode()
            for n in range(rng.randrange(1, 200))
        ]
        rows, raw, unparsed = parse(list(values))
        for value, row, kept in zip(values, rows, raw, strict=True):
            assert (kept is None) == (value not in MISFITS)
            assert kept is not None or row["id"] == json.loads(value)["id"]
        assert unparsed == sum(value in MISFITS for value in values)


def test_T03_fields_with_the_names_of_our_columns_have_columns_of_their_own() -> None:
    value = json.dumps(
        {"key": 1, "Offset": 2, "value": 3, "value_key": 4, "value_raw": 5, "fine": 6}
    ).encode()
    rows, _, _ = parse([value], "infer")
    assert rows == [
        {
            "value_key": 1,
            "value_Offset": 2,
            "value_value": 3,
            "value_value_key": 4,
            "value_value_raw": 5,
            "fine": 6,
        }
    ]
    made = values_of("infer")
    assert made is not None
    made.parse(pa.array([value], pa.binary()))
    assert isinstance(made, ValueColumns)
    again = ValueColumns.of_table(made.columns, made._names.taken)
    assert again.fields.names == made.fields.names


def test_T03_an_inferred_schema_takes_times_for_text_and_leaves_out_what_says_nothing() -> None:
    rows, raw, _ = parse(
        [b'{"t": "2026-01-01T00:00:00Z", "n": null, "l": [], "s": {"a": [], "b": 1}}'], "infer"
    )
    assert rows == [{"t": "2026-01-01T00:00:00Z", "s": {"b": 1}}]
    assert raw == [None]


def test_T03_fields_that_cannot_be_columns_leave_the_value_beside_the_columns() -> None:
    value = b'{"name": "a", "NAME": "b"}'
    rows, raw, unparsed = parse([value], "infer")
    assert (rows, raw, unparsed) == ([{"name": "a"}], [value], 0)


def test_T03_typed_rows_raw_rows_and_their_number_are_in_the_table(store: logstore.Store, where: str) -> None:
    topic = store.create_topic("orders", partitions=2)
    topic.append_many(events(0, 20))
    topic.append_many([logstore.Record(b"no json", b"a"), logstore.Record(None, b"b")])
    progress = Materializer(topic, where, schema=SCHEMA, partition_by="day").run_once()
    assert (progress.rows, progress.unparsed) == (22, 1)
    found = rows_of(where)
    assert places(found) == durable(topic)
    assert sorted(n for n in found["id"].to_pylist() if n is not None) == list(range(20))
    assert [raw for raw in found["value_raw"].to_pylist() if raw is not None] == [b"no json"]


def test_T03_new_fields_become_new_columns_of_a_table_that_there_is(
    store: logstore.Store, where: str
) -> None:
    topic = store.create_topic("orders")
    copier = Materializer(topic, where, schema="infer")
    topic.append_many(events(0, 10, place={"town": "Ulm"}))
    copier.run_once()
    topic.append_many(events(10, 20, place={"town": "Ulm", "zip": 89073}, colour="red"))
    copier.run_once()
    topic.append_many(events(20, 30, colour=7))  # of another type than before
    progress = copier.run_once()
    found = rows_of(where).sort_by("offset").to_pylist()
    assert [row["colour"] for row in found] == [None] * 10 + ["red"] * 10 + [None] * 10
    assert found[15]["place"] == {"town": "Ulm", "zip": 89073}
    assert found[5]["place"]["zip"] is None
    assert progress.unparsed == 10
    assert json.loads(found[25]["value_raw"])["colour"] == 7


def test_T03_two_that_infer_different_types_agree_on_the_tables(store: logstore.Store, where: str) -> None:
    topic = store.create_topic("orders")
    topic.append_many(events(0, 5))
    slow, quick = (Materializer(topic, where, schema="infer", commit_bytes=1) for _ in range(2))
    slow.run_once()
    table: Any = slow._table
    grow = table.grow

    def late(schema: pa.Schema) -> None:
        """Somebody else gives the table that column, with another type, and copies these rows."""
        table.grow = grow
        quick.run_once()
        grow(schema)

    table.grow = late
    topic.append_many(
        [logstore.Record(b'{"id": 5, "size": "large"}'), logstore.Record(b'{"id": 6, "size": 3}')]
    )
    slow.run_once()
    found = rows_of(where)
    assert places(found) == durable(topic)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"partition_by": "minute"}, "day, hour or None"),
        ({"on_lost": "cry"}, "raise or skip"),
        ({"interval": -1}, "at least 0"),
        ({"commit_bytes": 0}, "at least 1"),
    ],
)
def test_T03_a_bad_argument_is_answered_with_what_is_allowed(
    store: logstore.Store, tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    topic = store.create_topic("orders")
    with pytest.raises(ValueError, match=says):
        Materializer(topic, f"delta:{tmp_path / 'table'}", **given)
    for wrong in ("parquet:/x", "delta:", "/x", "iceberg:orders"):
        with pytest.raises(ValueError, match="target="):
            Materializer(topic, wrong)
    with pytest.raises(logstore.UnsupportedStore, match="a folder or a bucket"):
        Materializer(topic, "delta:memory://x")


def test_T03_a_table_of_another_kind_is_refused(store: logstore.Store, where: str) -> None:
    topic = store.create_topic("orders")
    topic.append_many(events(0, 5))
    Materializer(topic, where).run_once()
    with pytest.raises(ValueError, match="no table of a topic with typed values"):
        Materializer(topic, where, schema="infer").run_once()
    with pytest.raises(ValueError, match="is partitioned by nothing, not by day"):
        Materializer(topic, where, partition_by="day").run_once()
