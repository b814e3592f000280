"""The stream's messages, byte by byte: what they mean, and that nothing broken is ever taken for something
else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from types import EllipsisType

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from logstore.errors import InvalidRecord
from logstore.ingest.postgres.envelope import Envelope
from logstore.ingest.postgres.pgoutput import Begin, Change, Commit, Decoder, format_lsn, parse_lsn
from logstore.ingest.postgres.relation import UNCHANGED, Column, Relation
from logstore.ingest.postgres.snapshot import parse_field
from logstore.ingest.postgres.values import encoder_for

BEGIN = b"B" + struct.pack(">QqI", 0x1000, 1_000_000, 742)
COMMIT = b"C" + struct.pack(">BQQq", 0, 0x1000, 0x1030, 1_000_000)


def relation_message(
    oid: int = 7, columns: Sequence[tuple[str, int, int]] = (("id", 23, 1), ("v", 25, 0))
) -> bytes:
    head = b"R" + struct.pack(">I", oid) + b"public\0t\0d" + struct.pack(">H", len(columns))
    return head + b"".join(
        bytes([is_key]) + name.encode() + b"\0" + struct.pack(">Ii", oid, -1) for name, oid, is_key in columns
    )


def row(*values: bytes | EllipsisType | None) -> bytes:
    fields = [
        b"u" if value is ... else b"n" if value is None else b"t" + struct.pack(">I", len(value)) + value
        for value in values
    ]
    return struct.pack(">H", len(values)) + b"".join(fields)


def change(kind: bytes, *parts: bytes) -> bytes:
    return kind + struct.pack(">I", 7) + b"".join(parts)


INSERT = change(b"I", b"N", row(b"1", "é".encode()))
UPDATE = change(b"U", b"N", row(b"1", ...))
UPDATE_KEY = change(b"U", b"K", row(b"1", None), b"N", row(b"2", b"x"))
UPDATE_FULL = change(b"U", b"O", row(b"1", b"old"), b"N", row(b"1", ...))
DELETE = change(b"D", b"K", row(b"1", None))
TRUNCATE = b"T" + struct.pack(">IBI", 1, 0, 7)
ALL = [BEGIN, relation_message(), INSERT, UPDATE, UPDATE_KEY, UPDATE_FULL, DELETE, TRUNCATE, COMMIT]


def changes(decoder: Decoder, message: bytes) -> list[Change]:
    found = decoder.decode(message, 5)
    assert isinstance(found, list)
    return found


def opened() -> Decoder:
    decoder = Decoder()
    decoder.decode(BEGIN, 1)
    decoder.decode(relation_message(), 1)
    return decoder


def test_begin_and_commit() -> None:
    decoder = Decoder()
    assert decoder.decode(BEGIN, 1) == Begin(0x1000, 946_684_801_000, 742)
    assert decoder.decode(COMMIT, 1) == Commit(0x1000, 0x1030)


def test_rows_and_what_the_server_leaves_out() -> None:
    decoder = opened()
    (insert,) = changes(decoder, INSERT)
    assert (insert.op, insert.before, insert.after, insert.lsn) == ("c", None, [b"1", "é".encode()], 5)
    (update,) = changes(decoder, UPDATE)
    assert (update.op, update.before, update.after) == ("u", None, [b"1", UNCHANGED])
    (update,) = changes(decoder, UPDATE_KEY)
    assert (update.before, update.after, update.before_is_identity) == ([b"1", None], [b"2", b"x"], True)
    (update,) = changes(decoder, UPDATE_FULL)
    assert (update.before, update.after, update.before_is_identity) == ([b"1", b"old"], [b"1", b"old"], False)
    (delete,) = changes(decoder, DELETE)
    assert (delete.op, delete.before, delete.after) == ("d", [b"1", None], None)
    (truncate,) = changes(decoder, TRUNCATE)
    assert (truncate.op, truncate.relation.name) == ("t", "public.t")
    for silent in (b"O" + bytes(8) + b"origin\0", b"Y" + bytes(4) + b"s\0t\0", b"M" + bytes(20)):
        assert decoder.decode(silent, 5) is None


@pytest.mark.parametrize("message", ALL, ids=lambda message: chr(message[0]) + str(len(message)))
def test_a_message_that_is_cut_or_has_more_than_it_says_is_refused(message: bytes) -> None:
    for size in range(1, len(message)):
        with pytest.raises(InvalidRecord):
            opened().decode(message[:size], 5)
    with pytest.raises(InvalidRecord):
        opened().decode(message + b"\0", 5)


@settings(deadline=None)
@given(st.sampled_from(ALL), st.data())
def test_a_flipped_byte_is_refused_or_changes_a_value_but_nothing_else_happens(
    message: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(message) - 1))
    flipped = bytearray(message)
    flipped[at] ^= data.draw(st.integers(1, 255))
    with suppress(InvalidRecord):
        opened().decode(bytes(flipped), 5)


def test_what_belongs_to_no_transaction_or_no_table_is_refused() -> None:
    decoder = Decoder()
    decoder.decode(relation_message(), 1)
    with pytest.raises(InvalidRecord, match="belongs to no transaction"):
        decoder.decode(INSERT, 5)
    decoder.decode(BEGIN, 1)
    with pytest.raises(InvalidRecord, match="table 9, which the stream has not described"):
        decoder.decode(b"I" + struct.pack(">I", 9) + INSERT[5:], 5)
    with pytest.raises(InvalidRecord, match="unknown in version 1"):
        decoder.decode(b"S" + bytes(5), 5)


@settings(deadline=None)
@given(st.text())
def test_text_becomes_json_that_reads_back_equal(value: str) -> None:
    encode = encoder_for(25)
    assert encode is not None
    assert json.loads(encode(value.encode())) == value


@pytest.mark.parametrize(
    ("type_oid", "text", "value"),
    [
        (16, b"t", True),
        (16, b"f", False),
        (20, b"-9223372036854775808", -(2**63)),
        (701, b"1e+300", 1e300),
        (701, b"NaN", "NaN"),
        (700, b"-Infinity", "-Infinity"),
        (17, b"\\xdeadbeef", "3q2+7w=="),
        (17, b"\\x", ""),
        (1700, b"1.50", "1.50"),
        (3802, b'{"a": 1}', '{"a": 1}'),
    ],
)
def test_values_by_type(type_oid: int, text: bytes, value: object) -> None:
    relation = Relation("s", "t", [Column("c", type_oid, False)])
    assert json.loads(relation.row_json([text])) == {"c": value}


@settings(deadline=None)
@given(st.binary())
def test_copys_escapes_are_undone(value: bytes) -> None:
    names = {8: b"b", 12: b"f", 10: b"n", 13: b"r", 9: b"t", 11: b"v", 92: b"\\"}
    escaped = b"".join(b"\\" + names[byte] if byte in names else bytes([byte]) for byte in value)
    assert parse_field(escaped) == value
    assert parse_field(b"\\N") is None


def test_a_key_that_is_chosen_replaces_the_replica_identity_and_must_exist() -> None:
    columns = [Column("id", 23, True), Column("v", 25, False)]
    assert Relation("s", "t", columns).key_json([b"1", b"x"]) == b'{"id":1}'
    assert Relation("s", "t", columns, ["v", "id"]).key_json([b"1", b"x"]) == b'{"v":"x","id":1}'
    with pytest.raises(InvalidRecord, match="names a column 'w'; there are: id, v"):
        Relation("s", "t", columns, ["w"])


def test_F14_a_change_becomes_the_same_bytes_each_time() -> None:
    """Replay compares positions, so the same position must mean the same record."""
    first, second = Envelope("s", "db", tombstones=True), Envelope("s", "db", tombstones=True)
    for message in (INSERT, UPDATE, UPDATE_KEY, UPDATE_FULL, DELETE, TRUNCATE):
        (one,), (two,) = changes(opened(), message), changes(opened(), message)
        assert first.route(one) == second.route(two)


def test_tables_that_are_described_again_and_again_take_no_memory() -> None:
    """Each reconnect and each DDL describes a table again; what was prepared for an old description goes."""
    envelope = Envelope("s", "db")
    for _ in range(50):
        (change,) = changes(opened(), INSERT)
        envelope.route(change)
    assert len(envelope._frames) == 1


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_positions_print_as_postgresql_prints_them(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn
    assert format_lsn(0x16_B374D848) == "16/B374D848"
