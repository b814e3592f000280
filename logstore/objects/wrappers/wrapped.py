"""A store round another one: what every wrapper has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

from logstore.objects.protocol import Buffer, ObjectInfo, ObjectStore

T = TypeVar("T")


class WrappedStore(ABC):
    """An `ObjectStore` round `inner`: each call goes through `_through`, unless a wrapper has its own way for it."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return repr(self.inner)  # messages name the place, not how it is wrapped

    @abstractmethod
    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        """Carry out `call`. For a listing, the key is its prefix."""

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._through("get", key, lambda: self.inner.get(key, start, end))

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return self._through(
            "put", key, lambda: self.inner.put(key, data, if_absent=if_absent, if_match=if_match)
        )

    def head(self, key: str) -> ObjectInfo | None:
        return self._through("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._through("list", prefix, lambda: self.inner.list(prefix, start_after))

    def delete(self, key: str) -> None:
        self._through("delete", key, lambda: self.inner.delete(key))
