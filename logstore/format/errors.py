"""What the format layer raises: bytes that are not what they claim to be.

`format` knows no object keys and no callers, so it says only what is wrong and where in the buffer. The engine turns it
into `InvalidRecord` (a caller handed us the bytes) or `CorruptData` (they come from the store).
"""

from __future__ import annotations


class FormatError(ValueError):
    """The bytes break the format at `position`."""

    def __init__(self, why: str, position: int | None = None) -> None:
        super().__init__(why if position is None else f"{why} (at byte {position})")
        self.why = why
        self.position = position


class UnsupportedVersion(FormatError):
    """Well-formed, but of a version or codec that this release does not know: written by a newer one, perhaps."""
