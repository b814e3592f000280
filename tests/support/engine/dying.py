"""A process that is killed at its n-th request to the object store, or one that somebody overtakes there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from logstore.errors import StoreUnavailable
from logstore.objects import ObjectStore
from logstore.objects.protocol import Buffer, ObjectInfo

T = TypeVar("T")


class DiesAt:
    """The store as seen by a process that is killed at its `n`-th request: before it is carried out, or right after."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._left = -1
        self._after = False
        self._lock = threading.Lock()
        self.died = False

    def die_at(self, request: int, *, after: bool) -> None:
        self._left, self._after = request, after

    def has_died(self) -> bool:
        return self.died

    def _through(self, call: Callable[[], T]) -> T:
        with self._lock:
            last = self._left == 0
            if self.died or (last and not self._after):
                self.died = True
                dead = StoreUnavailable("this process is dead")
                dead.retriable = False
                raise dead
            self._left -= 1
            self.died = last
        return call()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._through(lambda: self._inner.get(key, start, end))

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return self._through(lambda: self._inner.put(key, data, if_absent=if_absent, if_match=if_match))

    def head(self, key: str) -> ObjectInfo | None:
        return self._through(lambda: self._inner.head(key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._through(lambda: self._inner.list(prefix, start_after))

    def delete(self, key: str) -> None:
        self._through(lambda: self._inner.delete(key))


class OvertakenAt(DiesAt):
    """The store as seen by a process before whose `n`-th request somebody else does something."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._act: Callable[[], object] | None = None

    def overtake_at(self, request: int, act: Callable[[], object]) -> None:
        self._left, self._act = request, act

    @property
    def overtaken(self) -> bool:
        return self._act is None

    def _through(self, call: Callable[[], T]) -> T:
        with self._lock:
            act = self._act if self._left == 0 else None
            self._left -= 1
        if act is not None:
            self._act = None
            act()
        return call()


class SleepsAt(DiesAt):
    """The store as seen by a process that is suspended at its `n`-th request, before it is sent, and goes on with it later.
    While it sleeps it sends nothing else either."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._awake = threading.Event()
        self._awake.set()
        self.asleep = threading.Event()

    def sleep_at(self, request: int) -> None:
        self._left = request

    def wake(self) -> None:
        self._awake.set()

    def _through(self, call: Callable[[], T]) -> T:
        with self._lock:
            if self._left == 0:
                self._awake.clear()
                self.asleep.set()
            self._left -= 1
        self._awake.wait()
        return call()
