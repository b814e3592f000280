"""What the commands print: lines for people, or JSON for programs."""

from __future__ import annotations

import base64
import json
from typing import Any, TextIO

from logstore.format.record import Record


class Output:
    def __init__(self, stream: TextIO, as_json: bool) -> None:
        self.stream = stream
        self.as_json = as_json

    def row(self, fields: dict[str, Any], line: str) -> None:
        """One result: `line` for people, `fields` with --json."""
        print(json.dumps(fields) if self.as_json else line, file=self.stream)

    def table(self, rows: list[dict[str, Any]]) -> None:
        """Several results with the same fields, in columns."""
        if self.as_json:
            for fields in rows:
                print(json.dumps(fields), file=self.stream)
            return
        if not rows:
            return
        cells = [list(rows[0])] + [[str(value) for value in fields.values()] for fields in rows]
        widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
        for line in cells:
            print(
                "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(),
                file=self.stream,
            )

    def record(self, topic: str, partition: int, record: Record, template: str) -> None:
        """One record, as JSON or by a kcat-like template."""
        if self.as_json:
            print(json.dumps(record_fields(topic, partition, record)), file=self.stream)
            return
        self.stream.flush()
        self.stream.buffer.write(format_record(template, topic, partition, record))
        self.stream.buffer.flush()


def record_fields(topic: str, partition: int, record: Record) -> dict[str, Any]:
    """A record as JSON: bytes that are UTF-8 as text, others as {"base64": …}, so that nothing is lost."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def format_record(template: str, topic: str, partition: int, record: Record) -> bytes:
    """kcat's letters: %t topic, %p partition, %o offset, %k key, %s value, %T timestamp, %h headers, %% a percent sign."""
    headers = ",".join(f"{name}={(value or b'').decode(errors='replace')}" for name, value in record.headers)
    fields = {
        "t": topic.encode(),
        "p": str(partition).encode(),
        "o": str(record.offset).encode(),
        "k": record.key or b"",
        "s": record.value or b"",
        "T": str(record.timestamp_ms).encode(),
        "h": headers.encode(),
        "%": b"%",
    }
    out = bytearray()
    letters = iter(template.encode().decode("unicode_escape"))
    for letter in letters:
        if letter == "%":
            code = next(letters, "")
            out += fields.get(code, b"%" + code.encode())
        else:
            out += letter.encode()
    return bytes(out)
