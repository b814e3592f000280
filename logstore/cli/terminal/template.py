"""How `cat` and `tail` print a record: kcat's letters."""

from __future__ import annotations

import re
from collections.abc import Callable

from logstore.format.batches.record import Record

_Field = Callable[[str, int, Record], bytes]

_FIELDS: dict[str, _Field] = {
    "t": lambda topic, partition, record: topic.encode(),
    "p": lambda topic, partition, record: b"%d" % partition,
    "o": lambda topic, partition, record: str(record.offset).encode(),
    "k": lambda topic, partition, record: record.key or b"",
    "s": lambda topic, partition, record: record.value or b"",
    "T": lambda topic, partition, record: str(record.timestamp_ms).encode(),
    "h": lambda topic, partition, record: _headers(record),
    "%": lambda topic, partition, record: b"%",
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE = re.compile(
    r"%(?P<field>.?)|\\(?:x(?P<hex>[0-9a-fA-F]{2})|(?P<escape>.?))|(?P<text>[^%\\]+)", re.DOTALL
)


class Template:
    """%t topic, %p partition, %o offset, %k key, %s value, %T timestamp, %h headers, %% a percent sign; \\n, \\t, \\r, \\0,
    \\\\ and \\xHH. Everything else stands for itself.

    As an argument's `type`: a letter that does not exist is an error of the command line.
    """

    def __init__(self, text: str) -> None:
        self._pieces = [_piece(found, text) for found in _PIECE.finditer(text)]

    def bytes_of(self, topic: str, partition: int, record: Record) -> bytes:
        return b"".join(
            piece if isinstance(piece, bytes) else piece(topic, partition, record) for piece in self._pieces
        )


def _piece(found: re.Match[str], text: str) -> bytes | _Field:
    field, code, escape, plain = found.group("field", "hex", "escape", "text")
    if plain is not None:
        return plain.encode(errors="surrogateescape")
    if code is not None:
        return bytes.fromhex(code)
    known = _FIELDS.get(field) if field is not None else _ESCAPES.get(escape)
    if known is None:
        raise ValueError(
            f"{text!r}: there is no {found.group()!r}; there are "
            f"{' '.join('%' + name for name in _FIELDS)} {' '.join(chr(92) + name for name in _ESCAPES)} \\xHH"
        )
    return known


def _headers(record: Record) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)
