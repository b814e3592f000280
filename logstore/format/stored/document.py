"""Small documents that a person may want to read: JSON, with a CRC-32C of the content in it.

A flipped digit in a number of partitions is still good JSON, so JSON alone would believe it.
"""

from __future__ import annotations

import json
from typing import Any

from logstore.format.checksum import crc32c
from logstore.format.errors import FormatError

_CHECKSUM = "crc32c"


def pack_document(content: dict[str, Any]) -> bytes:
    """`content` (plain JSON types) with its checksum, one field a line."""
    return json.dumps(content | {_CHECKSUM: _checksum(content)}, indent=1, sort_keys=True).encode()


def parse_document(data: bytes) -> dict[str, Any]:
    """What was packed; `FormatError` if it is anything else."""
    try:
        content = json.loads(data)
    except ValueError as error:
        raise FormatError(f"no JSON: {error}") from error
    if not isinstance(content, dict):
        raise FormatError("no JSON object")
    if content.pop(_CHECKSUM, None) != _checksum(content):
        raise FormatError("the checksum does not match the content")
    return content


def _checksum(content: dict[str, Any]) -> str:
    plain = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return f"{crc32c(plain):08x}"
