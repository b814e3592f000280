"""One object in the store that all brokers share, changed by compare-and-set, read again when it changes.

Beside its content it holds a nonce, so that no two versions have the same bytes: whether ours is stored can be told, and a
put that is carried out late never meets the version that it was made for again.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from logstore.errors import CorruptData, ObjectNotFound, PreconditionFailed
from logstore.objects import ObjectStore
from logstore.objects.settled import put_settled

ATTEMPTS = 10
T = TypeVar("T")


class SharedObject(ABC, Generic[T]):
    """Does I/O: used from worker threads. `what` it holds, for errors; `nothing`: what it holds while it is not there."""

    key: ClassVar[str]
    what: ClassVar[str]

    def __init__(self, objects: ObjectStore, nothing: T) -> None:
        self._objects = objects
        self._nothing = nothing
        self._last: tuple[T, str | None] = (nothing, None)

    @abstractmethod
    def _parsed(self, content: Any) -> T: ...

    @abstractmethod
    def _shown(self, value: T) -> dict[str, Any]: ...

    def load(self) -> T:
        return self._read()[0]

    def change(self, edit: Callable[[T], T]) -> T:
        """Apply `edit` to what is there now; again if another broker was faster."""
        for _ in range(ATTEMPTS):
            value, etag = self._read()
            changed = edit(value)
            if changed == value:
                return value
            document = {**self._shown(changed), "nonce": secrets.token_hex(8)}
            if put_settled(self._objects, self.key, json.dumps(document).encode(), etag):
                return changed
        raise PreconditionFailed(f"{self.key} changed {ATTEMPTS} times while it was being edited; try again")

    def _read(self) -> tuple[T, str | None]:
        """Head before get: if the object changes in between, the older etag makes our put fail, never win."""
        info = self._objects.head(self.key)
        if info is None:
            return self._nothing, None
        if info.etag != self._last[1]:
            try:
                self._last = self._parsed(json.loads(self._objects.get(self.key))), info.etag
            except ObjectNotFound:
                return self._nothing, None
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise CorruptData(self.key, None, f"these are no {self.what}: {error}") from error
        return self._last
