"""Pieces of segments in memory: least recently used first out, and one load for all who ask at once.

Segments never change, so a cached piece is never stale. Room is made for a piece before it is loaded, so that the limit
holds for what is here and what is on its way together. A piece larger than the whole cache is handed out and not kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from typing import Protocol, TypeVar, cast


class Sized(Protocol):
    @property
    def cached_bytes(self) -> int: ...


P = TypeVar("P", bound=Sized)


class BlockCache:
    """The lock guards the two maps and the counters; it is never held during a load."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._pieces: OrderedDict[Hashable, Sized] = OrderedDict()
        self._loading: dict[Hashable, Future[Sized]] = {}
        self._used = 0
        self._coming = 0
        self.hits = 0
        self.misses = 0

    @property
    def used(self) -> int:
        return self._used

    def peek(self, key: Hashable) -> Sized | None:
        """The piece if it is here; never loads."""
        with self._lock:
            piece = self._pieces.get(key)
            if piece is not None:
                self._pieces.move_to_end(key)
                self.hits += 1
            return piece

    def get(self, key: Hashable, size: int, load: Callable[[], P]) -> P:
        """The piece, loaded by at most one thread; the others wait for that load and share its result or its error.

        `size` is about how many bytes the load will bring.
        """
        if size > self.limit:
            size = 0  # it will not stay, so nothing has to go for it
        with self._lock:
            piece = self._pieces.get(key)
            if piece is not None:
                self._pieces.move_to_end(key)
                self.hits += 1
                return cast(P, piece)
            loading = self._loading.get(key)
            if loading is None:
                mine: Future[Sized] = Future()
                self._loading[key] = mine
                self._coming += size
                self._shrink()
                self.misses += 1
        if loading is not None:
            try:
                return cast(P, loading.result())
            except CancelledError:
                return self.get(key, size, load)
        try:
            loaded = load()
        except BaseException as error:
            with self._lock:
                del self._loading[key]
                self._coming -= size
            if isinstance(error, Exception):
                mine.set_exception(error)
            else:
                mine.cancel()  # Ctrl-C, or the end of its thread: not the others' affair, so one of them loads it
            raise
        with self._lock:
            del self._loading[key]
            self._coming -= size
            self._keep(key, loaded)
        mine.set_result(loaded)
        return loaded

    def add(self, key: Hashable, piece: Sized) -> None:
        """A piece that nobody had to load."""
        with self._lock:
            if key not in self._pieces and key not in self._loading:
                self._keep(key, piece)

    def is_known(self, key: Hashable) -> bool:
        """Here, or on its way: no prefetch needed."""
        with self._lock:
            return key in self._pieces or key in self._loading

    def _keep(self, key: Hashable, piece: Sized) -> None:
        if piece.cached_bytes > self.limit:
            return
        self._pieces[key] = piece
        self._used += piece.cached_bytes
        self._shrink()

    def _shrink(self) -> None:
        while self._pieces and self._used + self._coming > self.limit:
            _, oldest = self._pieces.popitem(last=False)
            self._used -= oldest.cached_bytes

    def clear(self) -> None:
        with self._lock:
            self._pieces.clear()
            self._used = 0
