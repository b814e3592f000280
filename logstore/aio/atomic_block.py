"""`store.atomic()` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from logstore import atomic
from logstore.aio.threads import Threads
from logstore.aio.topic import Topic
from logstore.engine.memory.results import Receipt
from logstore.engine.partition.atomic_batches import late, left
from logstore.format.batches.record import Header


class AtomicBlock:
    """`logstore.atomic.AtomicBlock` for asyncio. Get it from `Store.atomic`."""

    def __init__(self, block: atomic.AtomicBlock, threads: Threads) -> None:
        self.blocking = block
        self._threads = threads

    @property
    def receipts(self) -> list[Receipt]:
        """After the block, one for each record in the order of the appends."""
        return self.blocking.receipts

    async def append(
        self,
        topic: Topic | str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Add a record to the block, as `logstore.atomic.AtomicBlock.append`."""
        add = partial(
            self.blocking.append,
            topic.blocking if isinstance(topic, Topic) else topic,
            value,
            key=key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
        )
        await self._threads.run(add) if isinstance(topic, str) else add()

    async def __aenter__(self) -> AtomicBlock:
        self.blocking.__enter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Begins on a thread, where it may wait for room, and waits for the ack without one."""
        if kind is not None:
            self.blocking._give_up()
            return
        begun = await self._threads.run(self.blocking._begin)
        if begun is None:
            return
        append, deadline = begun
        try:
            whole = await asyncio.wait_for(asyncio.wrap_future(append.future), left(append, deadline))
        except TimeoutError:
            raise late(append) from None
        self.blocking._finish(whole)
