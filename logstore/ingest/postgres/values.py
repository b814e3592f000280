"""PostgreSQL's text values as JSON, by type.

What JSON can hold exactly becomes JSON; everything else stays the text that PostgreSQL prints, so nothing is
rounded, re-zoned or guessed:

| PostgreSQL | JSON |
|---|---|
| bool | true, false |
| int2, int4, int8, oid | number |
| float4, float8 | number; `"NaN"`, `"Infinity"`, `"-Infinity"` as strings |
| bytea | base64 string |
| everything else (numeric, json, dates, arrays, …) | string, as PostgreSQL prints it (ISO dates, UTC) |

A large value that an update did not touch is not in the stream; it becomes `UNAVAILABLE`, as Debezium has it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from json.encoder import encode_basestring

UNAVAILABLE = "__debezium_unavailable_value"
UNAVAILABLE_JSON = encode_basestring(UNAVAILABLE).encode()

BOOL, BYTEA, INT8, INT2, INT4, OID, FLOAT4, FLOAT8 = 16, 17, 20, 21, 23, 26, 700, 701

SESSION_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "TimeZone": "UTC",
    "client_encoding": "UTF8",
}
"""The settings on which the printed form of a value depends; the same for snapshot and stream."""

Encoder = Callable[[bytes], bytes] | None
"""None: the text is JSON as it is."""


def _string(text: bytes) -> bytes:
    return encode_basestring(text.decode()).encode()


def _bool(text: bytes) -> bytes:
    return b"true" if text == b"t" else b"false"


def _float(text: bytes) -> bytes:
    return b'"' + text + b'"' if text[-1:] in b"yN" else text


def _bytea(text: bytes) -> bytes:
    return b'"' + base64.b64encode(binascii.unhexlify(text[2:])) + b'"'


_BY_TYPE: dict[int, Encoder] = {
    BOOL: _bool,
    BYTEA: _bytea,
    INT2: None,
    INT4: None,
    INT8: None,
    OID: None,
    FLOAT4: _float,
    FLOAT8: _float,
}


def encoder_for(type_oid: int) -> Encoder:
    """How values of a type become JSON."""
    return _BY_TYPE.get(type_oid, _string)
