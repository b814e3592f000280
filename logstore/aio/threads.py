"""Threads for calls that block, and the way back into the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from logstore.engine.memory.results import Receipt
from logstore.errors import Closed

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 16


class Threads:
    """Runs blocking calls of one store."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="logstore-aio")
        self._closed = False

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise Closed("the store is closed")
        return await asyncio.wrap_future(self.submit(call, *args, **kwargs))

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._pool.submit(call, *args, **kwargs)

    def close(self) -> None:
        """Calls that still wait for a thread get one, and `Closed` from the store."""
        self._closed = True
        self._pool.shutdown(wait=False)


def call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """From any thread."""
    with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
        loop.call_soon_threadsafe(call)


async def settled(acks: list[asyncio.Future[Receipt]], timeout: float) -> None:
    """Wait until each has come, failed or is late; which of these, whoever has begun them tells."""
    if not acks:
        return
    try:
        done, _ = await asyncio.wait(acks, timeout=timeout)
    except BaseException:
        for ack in acks:
            ack.cancel()
        raise
    for ack in done:
        if not ack.cancelled():
            ack.exception()  # seen, as far as asyncio is concerned
