"""A topic for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Literal

from logstore.aio.partition import PartitionLog
from logstore.aio.threads import Threads, call_in, settled
from logstore.config import Ack, Visibility
from logstore.engine.memory.results import Receipt
from logstore.engine.partition.many_partitions import ManyPartitions, Taken
from logstore.errors import Closed, InvalidRecord, UnknownTopic
from logstore.format.batches.record import Header, Record, TopicRecord
from logstore.topic import Topic as BlockingTopic
from logstore.topic import check_one


class Topic:
    """`logstore.Topic` for asyncio."""

    def __init__(self, topic: BlockingTopic, threads: Threads) -> None:
        self.blocking = topic
        self._threads = threads

    def __repr__(self) -> str:
        return f"aio.{self.blocking!r}"

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.blocking.name

    @property
    def partitions(self) -> int:
        """How many there are."""
        return self.blocking.partitions

    def partition(self, i: int) -> PartitionLog:
        """The log of partition `i`, counted from 0."""
        return PartitionLog(self.blocking.partition(i), self._threads)

    async def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        ack: Ack | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Append one record and return when it is acked, as `logstore.Topic.append`."""
        record = Record(value, key, headers, timestamp_ms)  # type: ignore[arg-type]  # checked like any record
        log = self.partition(self.blocking._internal.pick(key) if partition is None else partition)
        try:
            return await log.append(record, ack=ack, timeout=timeout)
        except InvalidRecord:
            check_one(value)
            raise

    async def append_many(
        self,
        records: Iterable[Record | bytes],
        *,
        partition: int | None = None,
        ack: Ack | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """One receipt for each record, in their order, as `logstore.Topic.append_many`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.blocking.partition(0)._internal.ack_timeout(timeout)
        many = await self._threads.run(
            lambda: self.blocking._internal.begin_append_many(
                records, partition=partition, ack=ack, timeout=deadline - loop.time()
            )
        )
        await settled([asyncio.wrap_future(ack) for ack in many.acks], deadline - loop.time())
        return await self._threads.run(many.finish)

    async def tail(
        self,
        positions: Mapping[int, int | Literal["end"]] | Literal["end"] | None = None,
        *,
        visibility: Visibility = "buffered",
    ) -> AsyncIterator[TopicRecord]:
        """The records of all partitions, for ever, as `logstore.Topic.tail`. `"end"`: what comes after the first step."""
        inner = self.blocking._internal
        many, starts = await self._threads.run(inner.many, positions, visibility)
        many.put(inner.cursor(i, starts.get(i)) for i in range(self.partitions))
        try:
            while True:
                try:
                    taken = await _taken(many, self._threads)
                except (Closed, UnknownTopic):
                    return
                for some in taken:
                    for record in some.records:
                        yield record
        finally:
            many.close()

    async def records(
        self,
        start: Mapping[int, int] | None = None,
        stop: Mapping[int, int] | None = None,
        *,
        visibility: Visibility = "buffered",
    ) -> AsyncIterator[TopicRecord]:
        """The records that there are, partition after partition, as `logstore.Topic.records`."""
        for given in (start, stop):
            self.blocking._internal.check_partitions(given or {})
        for i in range(self.partitions):
            found = self.partition(i).records(
                (start or {}).get(i), (stop or {}).get(i), visibility=visibility
            )
            async for record in found:
                yield TopicRecord.at(self.name, i, record)


async def _taken(many: ManyPartitions, threads: Threads) -> list[Taken]:
    """What `many` has next. Taking may ask the store and runs on a thread; waiting holds none."""
    loop, moved = asyncio.get_running_loop(), asyncio.Event()
    many.on_wake = lambda: call_in(loop, moved.set)
    try:
        while True:
            taken = await threads.run(many.take, 1)
            if taken:
                return taken
            with suppress(TimeoutError):
                await asyncio.wait_for(moved.wait(), many.delay())
            moved.clear()
    finally:
        many.on_wake = lambda: None
