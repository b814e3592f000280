"""A member of a group for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import datetime

from logstore.aio.threads import Threads, call_in
from logstore.errors import Closed
from logstore.format.batches.record import TopicRecord
from logstore.groups import group as blocking
from logstore.groups.documents import Place
from logstore.groups.group import MAX_RECORDS
from logstore.groups.lag import PartitionLag
from logstore.groups.places import Places, Seek, Start

_ITERATE_S = 3600.0


class Group:
    """`logstore.groups.Group` for asyncio: an async context manager, for one task at a time. Get it from
    `logstore.aio.Store.group`."""

    def __init__(self, group: blocking.Group, threads: Threads) -> None:
        self.blocking = group
        self._threads = threads

    def __repr__(self) -> str:
        return f"aio.{self.blocking!r}"

    @property
    def name(self) -> str:
        """The group's name."""
        return self.blocking.name

    @property
    def member(self) -> str:
        """This member's own name."""
        return self.blocking.member

    @property
    def assignment(self) -> list[Place]:
        """As `logstore.groups.Group.assignment`: from memory, so it needs no await."""
        return self.blocking.assignment

    async def poll(self, timeout: float = 1.0, *, max_records: int = MAX_RECORDS) -> list[TopicRecord]:
        """As `logstore.groups.Group.poll`; waiting holds no thread, and one that is cancelled has taken nothing."""
        loop, moved = asyncio.get_running_loop(), asyncio.Event()
        many = self.blocking._many
        deadline = loop.time() + timeout
        many.on_wake = lambda: call_in(loop, moved.set)
        try:
            while True:
                await self._threads.run(self.blocking._fill, max_records)
                records = self.blocking._hand_out(max_records)
                left = deadline - loop.time()
                if records or left <= 0:
                    return records
                with suppress(TimeoutError):
                    await asyncio.wait_for(moved.wait(), min(left, many.delay()))
                moved.clear()
        finally:
            many.on_wake = lambda: None

    async def __aiter__(self) -> AsyncIterator[TopicRecord]:
        """The records one by one, as `logstore.groups.Group`."""
        while True:
            try:
                records = await self.poll(_ITERATE_S, max_records=1)
            except Closed:
                return
            for record in records:
                yield record

    async def commit(self) -> None:
        """As `logstore.groups.Group.commit`."""
        await self._threads.run(self.blocking.commit)

    async def seek(self, positions: Mapping[int | Place, Seek] | Start | datetime) -> None:
        """As `logstore.groups.Group.seek`."""
        await self._threads.run(self.blocking.seek, positions)

    async def pause(self, partitions: Places | None = None) -> None:
        """As `logstore.groups.Group.pause`."""
        await self._threads.run(self.blocking.pause, partitions)

    async def resume(self, partitions: Places | None = None) -> None:
        """As `logstore.groups.Group.resume`."""
        await self._threads.run(self.blocking.resume, partitions)

    async def lag(self) -> list[PartitionLag]:
        """As `logstore.groups.Group.lag`."""
        return await self._threads.run(self.blocking.lag)

    async def close(self) -> None:
        """As `logstore.groups.Group.close`."""
        await self._threads.run(self.blocking.close)

    async def __aenter__(self) -> Group:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
