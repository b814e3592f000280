"""The broker's store, opened again when a partition has to be taken back.

A writer that was fenced, or whose outcome is unknown, has stopped for good, and so has one whose partition was handed
to another broker: it may have been fenced without knowing. To take such a partition back its store is opened anew, which
starts from what the object store says. Partitions that are taken back at about the same time share one opening, and an
opening that no partition uses any more is closed, so there are rarely more than two.

Thread-safe. `partition` and `close` do I/O: worker threads.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from logstore.engine.partition_log import PartitionLog
from logstore.errors import LogStoreError
from logstore.store import Store

log = logging.getLogger(__name__)
RETIRE_TIMEOUT_S = 20.0


class Stores:
    """`first` also answers for topics, and stays open.

    `_lock` guards the openings and who uses them; it is never held during I/O, because the event loop takes it too.
    `_opening` is held while a store is opened, so that those who need a newer one at the same time get the same one.
    """

    def __init__(self, first: Store, open_again: Callable[[], Store]) -> None:
        self.first = first
        self._open_again = open_again
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._openings: dict[int, Store] = {0: first}
        self._users: Counter[int] = Counter()
        self._newest = 0

    def __iter__(self) -> Iterator[Store]:
        with self._lock:
            return iter(list(self._openings.values()))

    def partition(self, topic: str, index: int, used: int | None) -> tuple[PartitionLog, int]:
        """The partition's log in an opening that is newer than `used`, and that opening's number.

        `used` None: not used yet, any opening will do.
        """
        with self._opening:
            if used is not None and used == self._newest:
                opened = self._open_again()
                with self._lock:
                    self._openings[self._newest + 1] = opened
                    self._newest += 1
            with self._lock:
                chosen = self._newest
                self._users[chosen] += 1
                store = self._openings[chosen]
        try:
            found = store.topic(topic).partition(index)
        except BaseException:
            self._let_go(chosen)
            raise
        if used is not None:
            self._let_go(used)
        return found, chosen

    def _let_go(self, number: int) -> None:
        """One user less. The last one out closes the door, unless newcomers will be sent here."""
        with self._lock:
            self._users[number] -= 1
            if self._users[number] > 0 or number in (0, self._newest):
                return
            store = self._openings.pop(number, None)
        if store is not None:
            _close(store, RETIRE_TIMEOUT_S)

    def close(self, timeout_s: float) -> None:
        """Make everything durable and stop. What could not be stored is logged, by offset."""
        with self._lock:
            openings, self._openings = self._openings, {}
        for store in openings.values():
            _close(store, timeout_s)


def _close(store: Store, timeout_s: float) -> None:
    try:
        store.close(timeout_s)
    except LogStoreError as error:
        log.error("%s", error)
