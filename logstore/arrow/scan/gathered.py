"""`GatheredStore`: slices that lie near each other in one entry of a lane come with one request.

Who reads asks for each slice as before. The first one of a range fetches the range; the others find it here. It is dropped
when the last of them was handed out. A slice that is asked for again, because it is damaged or read in parts, is fetched by
itself. Threads may ask side by side; for one range one of them asks the store.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from logstore.arrow.plan.splits import Split
from logstore.objects import ObjectStore
from logstore.objects.wrappers.slices import is_slice, parse_slice
from logstore.objects.wrappers.wrapped import WrappedStore

T = TypeVar("T")

HELD_BYTES_MAX = 32 << 20
"""Ranges that wait for the rest of their readers. Past it the oldest are dropped: their slices are fetched one by one."""
_GAP_BYTES = 64 << 10
"""Between two slices: fetching this for nothing is cheaper than a request."""
_RANGE_BYTES = 8 << 20


@dataclass(eq=False, slots=True)
class _Range:
    entry: str
    first: int
    last: int
    waiting: set[str] = field(default_factory=set)
    bytes: Future[bytes] | None = None


class GatheredStore(WrappedStore):
    """Round `inner`, for who reads these splits. Everything else goes to `inner` as it is."""

    def __init__(self, inner: ObjectStore, splits: Iterable[Split]) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        """Guards all ranges and what is held of them; never held while the store is asked."""
        keys = {ref.key for split in splits for ref in split.refs if is_slice(ref.key)}
        self._range_of = _ranges(keys)
        self._held: OrderedDict[_Range, int] = OrderedDict()

    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        return call()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        found = self._range_of.get(key)
        if found is None:
            return self.inner.get(key, start, end)
        _, position, size = parse_slice(key)
        is_whole = end is None and (
            start is None or -start >= size
        )  # an index is asked for by a tail of some size
        if not is_whole:
            return self.inner.get(key, start, end)
        with self._lock:
            is_first_time = key in found.waiting
            found.waiting.discard(key)
            data = found.bytes
            is_mine = is_first_time and data is None
            if is_mine:
                data = found.bytes = Future()
        if data is None or not is_first_time:
            return self.inner.get(key)
        if is_mine:
            self._fetch(found, data)
        whole = data.result()
        with self._lock:
            if not found.waiting:
                self._drop(found)
        if len(whole) != found.last - found.first:
            return self.inner.get(
                key
            )  # the entry is not what it was: let its reader see what the store says of it
        begin = position - found.first
        return whole[begin : begin + size]

    def _fetch(self, found: _Range, data: Future[bytes]) -> None:
        try:
            data.set_result(self.inner.get(found.entry, found.first, found.last))
        except BaseException as error:
            with self._lock:
                found.waiting.clear()  # whoever comes later asks by itself
                found.bytes = None
            data.set_exception(error)
            return
        with self._lock:
            self._held[found] = found.last - found.first
            while len(self._held) > 1 and sum(self._held.values()) > HELD_BYTES_MAX:
                oldest = next(iter(self._held))
                oldest.waiting.clear()
                self._drop(oldest)

    def _drop(self, found: _Range) -> None:
        self._held.pop(found, None)
        found.bytes = None


def _ranges(keys: Iterable[str]) -> dict[str, _Range]:
    """For each slice that has a neighbour, the range that holds both."""
    found: dict[str, _Range] = {}
    places = sorted((*parse_slice(key), key) for key in keys)
    for entry, slices in itertools.groupby(places, lambda place: place[0]):
        current: _Range | None = None
        for _, position, size, key in slices:
            end = position + size
            if current is None or position - current.last > _GAP_BYTES or end - current.first > _RANGE_BYTES:
                current = _Range(entry, position, end)
            current.last = max(current.last, end)
            current.waiting.add(key)
            found[key] = current
    return {key: one for key, one in found.items() if len(one.waiting) > 1}
