"""Which keys every home accepts, so that a log moves between homes without renaming an object.

A key is a relative path: segments joined by "/", none of them empty, "." or "..", no control character, valid
UTF-8, at most 1,024 bytes (S3's limit). A prefix is the beginning of a key: empty, or a key with its last
segment cut anywhere. Python compares strings by code point, which is the order of their UTF-8 bytes:
`sorted(keys)` is key order.
"""

from __future__ import annotations

import re

from logstore.errors import InvalidKey

MAX_KEY_BYTES = 1024

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_BAD_SEGMENTS = frozenset(("", ".", ".."))


def check_key(key: str) -> None:
    """Raise `InvalidKey` unless `key` can name an object in every home."""
    _check_text(key)
    if not _BAD_SEGMENTS.isdisjoint(key.split("/")):
        raise InvalidKey(
            f"{key!r} is no object key: no segment may be empty, '.' or '..'; use a relative path"
        )


def check_prefix(prefix: str) -> None:
    """Raise `InvalidKey` unless `prefix` can be the beginning of a key."""
    _check_text(prefix)
    if not _BAD_SEGMENTS.isdisjoint(prefix.split("/")[:-1]):
        raise InvalidKey(f"{prefix!r} begins no object key: no segment may be empty, '.' or '..'")


def _check_text(key: str) -> None:
    if _FORBIDDEN.search(key):
        raise InvalidKey(f"{key!r} is no object key: control characters and lone surrogates are not allowed")
    # A key of n characters has at most 4n bytes: encode only those that may be too long.
    if len(key) > MAX_KEY_BYTES // 4 and len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidKey(f"{key[:60]!r}… is no object key: it is longer than {MAX_KEY_BYTES} bytes")
