"""Objects in this process's memory: for tests, for `memory://name`, and as the plainest reading of the
protocol.

Linearizable: one lock guards the objects and their sorted keys, and is held for dictionary work only. Two
opens of the same name share their data, which lives as long as the process.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

from logstore.errors import ObjectNotFound, PreconditionFailed
from logstore.objects.keys import check_key, check_prefix
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.objects.ranges import resolve

LIST_PAGE = 1000

_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()


class MemoryStore:
    """An `ObjectStore` in memory. The etag is a version number that is never used twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._keys: list[str] = []
        self._version = 0
        self.url: str | None = None

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The store of that name in this process; the same one each time."""
        with _named_lock:
            store = _named.setdefault(name, cls())
            store.url = f"memory://{name}"
            return store

    def __repr__(self) -> str:
        return "MemoryStore()"

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        check_key(key)
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(f"{key}: no such object in memory")
        data = found[0]
        first, last = resolve(start, end, len(data))
        return data[first:last]

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        check_key(key)
        stored = bytes(data)
        with self._lock:
            found = self._objects.get(key)
            if if_absent and found is not None:
                raise PreconditionFailed(f"{key}: there is an object already (etag {found[1].etag})")
            if if_match is not None and (found is None or found[1].etag != if_match):
                now = "there is none" if found is None else f"its etag is {found[1].etag}"
                raise PreconditionFailed(f"{key}: expected etag {if_match}, but {now}")
            self._version += 1
            info = ObjectInfo(key, len(stored), f"v{self._version}")
            if found is None:
                insort(self._keys, key)
            self._objects[key] = (stored, info)
        return info

    def head(self, key: str) -> ObjectInfo | None:
        check_key(key)
        with self._lock:
            found = self._objects.get(key)
        return None if found is None else found[1]

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._list(prefix, start_after)

    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """A page at a time, as S3 does: the lock is never held while the caller looks at a page."""
        page = self._page(prefix, start_after)
        while page:
            yield from page
            page = self._page(prefix, page[-1].key) if len(page) == LIST_PAGE else []

    def _page(self, prefix: str, start_after: str) -> Sequence[ObjectInfo]:
        with self._lock:
            at = bisect_right(self._keys, start_after)
            if start_after < prefix:
                at = bisect_left(self._keys, prefix)
            keys = self._keys[at : at + LIST_PAGE]
            return [self._objects[key][1] for key in keys if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
