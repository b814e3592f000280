"""`SlicedStore`: a key may name a slice of an object, `‹key›@‹position›+‹size›`.

An entry of a lane holds whole segments of many partitions. Whoever reads one of them asks for its slice like for any object,
and needs to know nothing of what lies around it. A slice is only ever read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from logstore.objects.protocol import ObjectInfo
from logstore.objects.wrappers.wrapped import WrappedStore

T = TypeVar("T")

_SLICE = re.compile(r"(.+)@(\d+)\+(\d+)", re.ASCII)


def slice_key(key: str, position: int, size: int) -> str:
    """The name of these bytes of the object."""
    return f"{key}@{position}+{size}"


def is_slice(key: str) -> bool:
    """Whether it names a part of an object. No object of ours has such a name."""
    return _SLICE.fullmatch(key) is not None


def parse_slice(key: str) -> tuple[str, int, int]:
    """The object, the position and the size that `slice_key` was given."""
    named = _SLICE.fullmatch(key)
    assert named is not None, "only slices are parsed"
    return named[1], int(named[2]), int(named[3])


def whole(key: str) -> str:
    """The object that a slice is of; the key itself if it names one."""
    found = _SLICE.fullmatch(key)
    return key if found is None else found[1]


class SlicedStore(WrappedStore):
    """An `ObjectStore` round `inner` that reads slices as if each were an object."""

    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        return call()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        named = _SLICE.fullmatch(key) if "@" in key else None
        if named is None:
            return self.inner.get(key, start, end)
        position, size = int(named[2]), int(named[3])
        first = 0 if start is None else max(0, size + start) if start < 0 else start
        last = size if end is None else min(end, size)
        return self.inner.get(named[1], position + first, position + last) if first < last else b""

    def head(self, key: str) -> ObjectInfo | None:
        named = _SLICE.fullmatch(key) if "@" in key else None
        found = self.inner.head(named[1] if named else key)
        return ObjectInfo(key, int(named[3]), found.etag) if named and found else found
