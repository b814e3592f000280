"""C08: sees each descriptor that WAL and `LocalStore` open, and notes a close too many or a touch of another's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from logstore.objects.homes.disk import Disk

_TOUCH = ("close", "write", "pread", "fsync", "fstat", "utime", "flock")


class DescriptorGuard:
    """Installed for a whole session, so that it has seen the opening of whatever a test closes."""

    def __init__(self) -> None:
        self.misuse: list[str] = []
        self._mine: set[int] = set()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Disk, "open", self._opening(Disk.open))
        for name in _TOUCH:
            patch.setattr(Disk, name, self._touching(name, getattr(Disk, name)))

    def _opening(self, real: Callable[..., int]) -> Callable[..., int]:
        @wraps(real)
        def guarded(disk: Disk, path: Any, *args: Any, **kwargs: Any) -> int:
            descriptor = real(disk, path, *args, **kwargs)
            if descriptor in self._mine:
                self.misuse.append(
                    f"open({path}) gave {descriptor}, which was ours: somebody else has closed it"
                )
            self._mine.add(descriptor)
            return descriptor

        return guarded

    def _touching(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def guarded(disk: Disk, descriptor: int, *args: Any, **kwargs: Any) -> Any:
            if descriptor not in self._mine:
                self.misuse.append(f"{name}({descriptor}): closed already, or never opened here")
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if name == "close":
                self._mine.discard(descriptor)  # before: a moment later the number may be another's
            return real(disk, descriptor, *args, **kwargs)

        return guarded
