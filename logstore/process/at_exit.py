"""Stores that are still open when the interpreter ends: their buffered records are stored, not dropped.

A buffered ack promises nothing beyond this process, but a program that simply ends has not crashed, and its author expects
the last second's records to be there. So what `close()` would have done is done then, for stores that hold something, with a
line in the log that says so. A store is kept until it is closed, if it can write; one that reads is released as before.

Not after fork(): the child's copy of the buffer is the parent's to store. Not where a test drives the clock: nobody would.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable
from typing import Protocol

from logstore.config import StoreConfig
from logstore.errors import LogStoreError

logger = logging.getLogger(__name__)


class Closable(Protocol):
    @property
    def config(self) -> StoreConfig: ...
    def close(self, timeout: float | None = None) -> None: ...


_open: dict[Closable, tuple[int, Callable[[], bool]]] = {}
"""Each with the process that opened it, and with what says whether it holds records that are not stored yet."""


def remember(store: Closable, holds_records: Callable[[], bool]) -> None:
    _open[store] = os.getpid(), holds_records


def forget(store: Closable) -> None:
    _open.pop(store, None)


@atexit.register
def _close_all() -> None:
    began = time.monotonic()
    for store, (process, holds_records) in list(_open.items()):
        if process == os.getpid() and holds_records():
            logger.warning("the program ends with a store that was not closed: storing what it holds")
            try:  # one deadline for all: whoever ended the program may not wait for several
                store.close(max(0.0, store.config.close_timeout - (time.monotonic() - began)))
            except LogStoreError as error:
                logger.error("%s", error)
