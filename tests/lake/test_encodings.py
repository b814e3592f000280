"""T03 for values that are Avro or Protobuf: typed by a given schema; what does not fit is kept raw, and counted."""

from __future__ import annotations

import io
import json
import pickle
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

import logstore
from logstore.cli import main
from logstore.lake import Avro, Materializer, Protobuf, table
from logstore.lake.rows import values_of
from tests.support.lake.tables import FORMATS, durable, places, rows_of, target

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "town", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "state", "type": "State"}],
                },
            },
        },
    ],
}
AT = datetime(2026, 11, 17, 12, 0, 0, 5000, tzinfo=UTC)
REF = uuid.UUID(int=7)


def order(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "town": "Ulm" if number % 2 else None,
        "price": Decimal("1.50"),
        "at": AT,
        "day": date(2026, 11, 17),
        "ref": REF,
        "state": "PAID",
        "tags": {"a": number},
        "lines": [{"sku": "x", "state": "NEW"}],
        **more,
    }


def avro(content: dict[str, Any], schema: Any = ORDER, number: int | None = None) -> bytes:
    out = io.BytesIO()
    if number is not None:
        out.write(b"\0" + number.to_bytes(4, "big"))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), content)
    return out.getvalue()


def proto_file() -> descriptor_pb2.FileDescriptorSet:
    """Of `shop.Order`, the second message of its file."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.enum_type.add(name="State").value.add(name="NEW", number=0)
    file.enum_type[0].value.add(name="PAID", number=1)
    file.message_type.add(name="Line").field.add(
        name="sku", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL
    )
    made = file.message_type.add(name="Order")
    made.nested_type.add(name="TagsEntry").options.map_entry = True
    for number, (name, kind) in enumerate((("key", field.TYPE_STRING), ("value", field.TYPE_INT32)), 1):
        made.nested_type[0].field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    for number, (name, kind, named, label) in enumerate(
        (
            ("id", field.TYPE_UINT64, "", field.LABEL_OPTIONAL),
            ("offset", field.TYPE_BYTES, "", field.LABEL_OPTIONAL),
            ("state", field.TYPE_ENUM, ".shop.State", field.LABEL_OPTIONAL),
            ("at", field.TYPE_MESSAGE, ".google.protobuf.Timestamp", field.LABEL_OPTIONAL),
            ("lines", field.TYPE_MESSAGE, ".shop.Line", field.LABEL_REPEATED),
            ("tags", field.TYPE_MESSAGE, ".shop.Order.TagsEntry", field.LABEL_REPEATED),
        ),
        1,
    ):
        made.field.add(name=name, number=number, type=kind, type_name=named or None, label=label)
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    return descriptor_pb2.FileDescriptorSet(file=[stamp, file])


@pytest.fixture(scope="module")
def message() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in proto_file().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logstore.Store]:
    with logstore.open((tmp_path / "log").as_uri()) as opened:
        yield opened


def parse(schema: Any, values: list[bytes | None]) -> tuple[list[dict[str, Any]], list[bytes | None], int]:
    made = values_of(pickle.loads(pickle.dumps(schema)))  # as it comes to an executor
    assert made is not None
    found = made.parse(pa.array(values, pa.binary()))
    return found.columns.to_pylist(), found.raw.to_pylist(), found.unparsed


def test_T03_an_avro_record_becomes_typed_columns() -> None:
    (found,), raw, lost = parse(Avro(json.dumps(ORDER)), [avro(order(1))])
    expected = order(1, ref=str(REF), tags=[("a", 1)])
    # a field with the name of a column of the log makes way
    assert found == {("value_day" if name == "day" else name): content for name, content in expected.items()}
    assert (raw, lost) == ([None], 0)


def test_T03_bytes_that_are_no_such_avro_record_stay_as_they_are() -> None:
    good = avro(order(1))
    misfits = [b"", b"\xff", good[:-1], good + b"\0", b'{"id": 1}']
    values: list[bytes | None] = [good, *misfits, None, good]
    rows, raw, lost = parse(Avro(ORDER), values)
    assert [row["id"] for row in rows] == [1, None, None, None, None, None, None, 1]
    assert raw == [None, *misfits, None, None]
    assert lost == len(misfits)


def test_T03_avro_that_names_its_schema_is_read_by_the_rules_of_resolution() -> None:
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    new = {
        "type": "record",
        "name": "Order",
        "fields": [*old["fields"], {"name": "note", "type": "string", "default": "-"}],
    }
    values: list[bytes | None] = [
        avro({"id": 1}, old, 11),
        avro({"id": 2, "note": "x"}, new, 12),
        avro({"id": 3}, old, 13),  # a number that the registry does not know
        avro({"id": 4}, old),
    ]
    rows, raw, lost = parse(Avro(new, {11: old, 12: json.dumps(new)}), values)
    assert rows[:2] == [{"id": 1, "note": "-"}, {"id": 2, "note": "x"}]
    assert (raw, lost) == ([None, None, *values[2:]], 2)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (["int", "string"], "union of 2 types"),
        ({"type": "record", "name": "E", "fields": []}, "has no column"),
        ({"type": "array", "items": "null"}, "has no column"),
        (["null", "Order"], "has no column"),
    ],
)
def test_an_avro_type_without_a_column_is_refused_by_name(kind: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Avro({"type": "record", "name": "Order", "fields": [{"name": "x", "type": kind}]})


def test_T03_a_protobuf_message_becomes_typed_columns(message: Any) -> None:
    whole = message(id=1 << 63, offset=b"\0", state=1, lines=[{"sku": "x"}], tags={"a": 5})
    whole.at.FromDatetime(AT)
    rows, raw, lost = parse(Protobuf(message), [whole.SerializeToString(), b"", None, b"\xff\xff"])
    assert rows[0] == {
        "id": Decimal(1 << 63),
        "value_offset": b"\0",
        "state": "PAID",
        "at": AT,
        "lines": [{"sku": "x"}],
        "tags": [("a", 5)],
    }
    assert (rows[1]["id"], rows[1]["at"], rows[1]["state"]) == (Decimal(0), None, "NEW")  # what b"" means
    assert rows[2] == rows[3] == dict.fromkeys(rows[0])
    assert (raw, lost) == ([None, None, None, b"\xff\xff"], 1)


def test_T03_what_a_protobuf_type_does_not_know_is_kept_raw_as_well(message: Any) -> None:
    newer = message(id=3).SerializeToString() + b"\x98\x06\x05"  # field 99 = 5
    rows, raw, lost = parse(Protobuf(proto_file().SerializeToString(), "shop.Order"), [newer])
    assert (rows[0]["id"], raw, lost) == (Decimal(3), [newer], 0)
    line = b"\x0a\x01x" + b"\x98\x06\x05"
    within = message(id=4).SerializeToString() + b"\x2a%c%s" % (len(line), line)
    known = message(id=5, lines=[{"sku": "y"}]).SerializeToString()
    rows, raw, lost = parse(Protobuf(message), [within, known])
    assert [row["lines"] for row in rows] == [[{"sku": "x"}], [{"sku": "y"}]]
    assert (raw, lost) == ([within, None], 0), "a line has a field that the type of lines does not know"


def test_T03_a_protobuf_type_without_messages_in_it_sees_what_it_does_not_know() -> None:
    lines = Protobuf(proto_file().SerializeToString(), "shop.Line")
    newer = b"\x0a\x01x" + b"\x98\x06\x05"
    rows, raw, lost = parse(lines, [newer, b"\x0a\x01x"])
    assert (rows, raw, lost) == ([{"sku": "x"}, {"sku": "x"}], [newer, None], 0)


def test_T03_framed_protobuf_says_which_message_it_is(message: Any) -> None:
    body = message(id=3).SerializeToString()
    framed = [b"\0\0\0\0\x07" + place + body for place in (b"\x02\x02", b"\0", b"\x02\x04")]
    rows, raw, lost = parse(Protobuf(message, framed=True), [*framed, body])
    assert [row["id"] for row in rows] == [Decimal(3), None, None, None]
    assert (raw, lost) == ([None, *framed[1:], body], 3)


@pytest.mark.parametrize("form", FORMATS)
def test_T05_a_union_read_decodes_the_rest_as_the_table_was_filled(
    store: logstore.Store, tmp_path: Path, form: str
) -> None:
    where = target(form, tmp_path / "lake")
    topic = store.create_topic("orders", partitions=2)
    topic.append_many([avro(order(n)) for n in range(20)])
    Materializer(topic, where, schema=Avro(ORDER)).run_once()
    grown = {
        **ORDER,
        "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}],
    }
    topic.append_many([avro(order(n, note="new"), grown) for n in range(20, 30)])
    assert Materializer(topic, where, schema=Avro(grown)).run_once().unparsed == 0  # schemas grow
    topic.append_many([avro(order(n), grown) for n in range(30, 35)])
    assert places(rows_of(where)).total() == 30
    with pytest.raises(ValueError, match="filled from Avro"):
        table(topic, where)
    with pytest.raises(ValueError, match="filled from Avro, not from Json"):
        Materializer(topic, where, schema="infer").run_once()
    found = table(topic, where, schema=Avro(grown)).read_all()
    assert places(found) == durable(topic)
    assert sorted(found["id"].to_pylist()) == list(range(35))
    assert found["note"].to_pylist().count("new") == 10


def test_the_command_takes_a_schema_from_a_file(
    store: logstore.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], message: Any
) -> None:
    topic = store.create_topic("orders")
    topic.append_many([message(id=n).SerializeToString() for n in range(3)])
    (tmp_path / "shop.desc").write_bytes(proto_file().SerializeToString())
    where = target("delta", tmp_path / "lake")
    shop = f"{tmp_path / 'shop.desc'}:shop.Order"
    at = ["--store", (tmp_path / "log").as_uri(), "materialize", "orders", "--to", where, "--once"]
    assert main([*at, "--protobuf", shop]) == 0
    assert sorted(rows_of(where)["id"].to_pylist()) == [Decimal(n) for n in range(3)]
    assert main([*at, "--protobuf", shop, "--infer"]) == 2
    assert main([*at, "--protobuf", f"{tmp_path / 'shop.desc'}:shop.Nothing"]) == 2
    assert main([*at, "--avro", str(tmp_path / "none.avsc")]) == 2
    assert "no message shop.Nothing" in capsys.readouterr().err
