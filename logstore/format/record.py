"""A record: what a caller appends and what a reader gets back."""

from __future__ import annotations

from typing import NamedTuple

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]


class Record(NamedTuple):
    """One entry of the log. `value=None` is a tombstone. `offset` is None until the log has given one.

    A tuple, so that a reader can build a million of them a second.

    >>> Record(b"paid", key=b"order-17").value
    b'paid'
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    offset: int | None = None
