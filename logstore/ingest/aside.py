"""Aside: a call that may wait for the object store, on a thread of its own, while the source's thread stays awake.

Opening a partition or creating a topic asks the store, and waits through an outage inside of the engine. Whoever
waits there handles no signal and answers no ping. So it is done aside: the source's thread looks up about once a
second and calls `on_wait`, which keeps the source informed and may raise. Then the call is left behind; it ends
with the store's answer, or when the store is closed, and what comes of it is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TypeVar

LOOK_UP_S = 1.0

T = TypeVar("T")


def aside(call: Callable[[], T], on_wait: Callable[[], object] | None) -> T:
    """What `call` returns or raises; `on_wait` is called about once a second until then."""
    if on_wait is None:
        return call()
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    # A daemon: it may wait for a store that never answers, and must not keep the process.
    threading.Thread(target=run, name="ingest aside", daemon=True).start()
    while True:
        try:
            return future.result(LOOK_UP_S)
        except NotYet:
            if future.done():
                raise  # it is the call's own
            on_wait()
