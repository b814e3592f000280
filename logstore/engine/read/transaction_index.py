"""Which transactions of a partition are decided, and how: what a reader of committed records has to know.

It lies in the log: a marker ends each transaction of a producer. So that not all of it has to be read, a broker leaves a
snapshot beside it now and then, and one before the first transactional batch is stored: where there is none, there are no
transactions (`docs/decisions/0021-transactions-in-two-steps.md`). From the snapshot on, batch headers are read up to the end
that is asked for, and later only what has come since.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from logstore.engine.memory.results import Bytes, ReadResult
from logstore.errors import ObjectNotFound
from logstore.format.batches.batch import split
from logstore.format.batches.transactions import Aborted, AbortedBatches, Transactions
from logstore.layout.broker import producers_key
from logstore.layout.paths import PartitionPaths
from logstore.objects.protocol import ObjectStore

logger = logging.getLogger(__name__)

READ_BYTES = 8 << 20


class Stable(NamedTuple):
    """`end`: the last stable offset. Everything below it is decided, as far as the log is known: up to `known_until`."""

    end: int
    known_until: int


class Ahead(Exception):
    """The snapshot speaks of offsets from the asked end on: look at the log again, it has become longer."""


class TransactionIndex:
    """Of one partition; it keeps what it has learned. Safe for threads, which wait for one that is reading."""

    def __init__(self, objects: ObjectStore, paths: PartitionPaths) -> None:
        self._objects = objects
        self._key = producers_key(paths)
        self._lock = threading.Lock()
        self._followed: tuple[Transactions, int] | None = None
        self._stable = Stable(0, 0)

    @property
    def last(self) -> Stable:
        """What was learned last."""
        return self._stable

    def learn(
        self, low: int, end: int, read: Callable[[int, int], ReadResult], *, is_newest: bool = False
    ) -> Stable:
        """The last stable offset of the log from `low` to `end`, all of it durable. `read(offset, max_bytes)` reads it.
        Costs nothing if it is not longer than the last time. Raises `Ahead`, unless `is_newest`: then a snapshot that speaks
        of more is of no use, and the log is read instead."""
        with self._lock:
            if self._stable.known_until < end:
                if self._followed is not None and self._followed[1] < low:
                    self._followed = (
                        None  # the markers between are deleted: what was open then may have ended
                    )
                if self._followed is None:
                    self._followed = self._snapshot(low, end, is_newest)
                if self._followed is None:
                    self._stable = Stable(end, end)
                else:
                    self._follow(*self._followed, end, read)
                    self._followed[0].forget_below(low)
            return self._stable

    def aborted(self, start: int, stop: int) -> list[Aborted]:
        """The aborted transactions with records from `start` up to `stop`, which is not above the last stable offset."""
        with self._lock:
            return [] if self._followed is None else self._followed[0].aborted(start, stop)

    def committed(self, found: ReadResult, stable: Stable) -> ReadResult:
        """What was read, up to the last stable offset and without the batches of aborted transactions."""
        aborted = AbortedBatches(self.aborted(found.offset, stable.end))
        parts: list[Bytes] = []
        for part in found.parts:
            start = 0
            for info in split(part):
                if info.base_offset >= stable.end or aborted.holds(info):
                    if info.position > start:
                        parts.append(memoryview(part)[start : info.position])
                    start = info.position + info.size
            if start < len(part):
                parts.append(memoryview(part)[start:] if start else part)
        end = min(found.next_offset, max(stable.end, found.offset))
        return replace(found, parts=tuple(parts), next_offset=end)

    def _follow(
        self, known: Transactions, position: int, end: int, read: Callable[[int, int], ReadResult]
    ) -> None:
        while position < end:
            found = read(position, READ_BYTES)
            for part in found.parts:
                for info in split(part):
                    if position <= info.base_offset < end:
                        known.replay(part, info)
            if found.next_offset <= position:
                break
            position = min(found.next_offset, end)
        self._followed = known, end
        self._stable = Stable(known.last_stable(end), end)

    def _snapshot(self, low: int, end: int, is_newest: bool) -> tuple[Transactions, int] | None:
        """What it knows, and up to where; None if there is none."""
        try:
            content = json.loads(self._objects.get(self._key))
            offset = int(content["offset"])
            known = (
                Transactions.load(content["transactions"]) if "transactions" in content else Transactions()
            )
        except ObjectNotFound:
            return None
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s: not a table of producers (%s); the log is read instead", self._key, error)
            return Transactions(), low
        if offset > end and not is_newest:
            raise Ahead
        if offset > end or offset < low:
            return Transactions(), low
        return known, offset
