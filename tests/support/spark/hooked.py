"""A store with a hook before or after each change: to die there, or to let somebody else run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from logstore.objects import Buffer, ObjectInfo, ObjectStore


class Died(BaseException):
    """The process is gone: nothing may catch this and go on."""


class HookedStore:
    """Calls `hook(number)` at each moment round a change: an even number is just before one, an odd one just after."""

    def __init__(self, inner: ObjectStore, hook: Callable[[int], None]) -> None:
        self.inner = inner
        self.moments = 0
        self._hook = hook

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self.inner.get(key, start, end)

    def head(self, key: str) -> ObjectInfo | None:
        return self.inner.head(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, start_after)

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        self._moment()
        done = self.inner.put(key, data, if_absent=if_absent, if_match=if_match)
        self._moment()
        return done

    def delete(self, key: str) -> None:
        self._moment()
        self.inner.delete(key)
        self._moment()

    def _moment(self) -> None:
        number, self.moments = self.moments, self.moments + 1
        self._hook(number)
