"""Which calls of the five operations a rule or a gate is about."""

from __future__ import annotations

from typing import NamedTuple

from logstore.objects.protocol import OPERATIONS

WRITES = ("put", "delete")


class Match(NamedTuple):
    """Calls of one operation (or of `"*"`, any) whose key has this prefix and this suffix.

    For `list`, the key is its prefix.
    """

    operation: str
    prefix: str = ""
    suffix: str = ""

    def covers(self, operation: str, key: str) -> bool:
        return (
            self.operation in ("*", operation) and key.startswith(self.prefix) and key.endswith(self.suffix)
        )


def match(operation: str, prefix: str, suffix: str) -> Match:
    """A `Match`, or ValueError for an operation that no store has."""
    if operation != "*" and operation not in OPERATIONS:
        raise ValueError(f"no operation {operation!r}: use one of {', '.join(OPERATIONS)}, or '*' for any")
    return Match(operation, prefix, suffix)
