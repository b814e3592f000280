"""An open store for asyncio, and opening it."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, Unpack

from logstore import store as blocking
from logstore.aio.atomic_block import AtomicBlock
from logstore.aio.group import Group
from logstore.aio.threads import Threads
from logstore.aio.topic import Topic
from logstore.config import StoreConfig, StoreSettings, TopicOptions, Visibility
from logstore.engine.garbage.garbage import Garbage
from logstore.engine.host.clock import Clock
from logstore.engine.partition.writer_metrics import WriterMetrics
from logstore.objects.homes.disk import Disk
from logstore.objects.protocol import ObjectStore
from logstore.objects.wrappers.metered import OperationStats


class Store:
    """`logstore.Store` for asyncio. An async context manager. Get it from `logstore.aio.open`."""

    def __init__(self, store: blocking.Store, threads: Threads) -> None:
        self.blocking = store
        self._threads = threads

    def __repr__(self) -> str:
        return f"aio.{self.blocking!r}"

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        exist_ok: bool = False,
        **topic_settings: Unpack[TopicOptions],
    ) -> Topic:
        """Create it, or with `exist_ok` take the one there is. `topic_settings` are fields of `TopicConfig`."""
        made = await self._threads.run(
            partial(self.blocking.create_topic, name, partitions, exist_ok=exist_ok, **topic_settings)
        )
        return Topic(made, self._threads)

    async def topic(self, name: str) -> Topic:
        """The topic of that name; `UnknownTopic` if there is none."""
        return Topic(await self._threads.run(self.blocking.topic, name), self._threads)

    async def topics(self) -> list[str]:
        """The names of the topics, sorted."""
        return await self._threads.run(self.blocking.topics)

    async def alter_topic(self, name: str, **topic_settings: Unpack[TopicOptions]) -> Topic:
        """As `logstore.Store.alter_topic`."""
        altered = await self._threads.run(partial(self.blocking.alter_topic, name, **topic_settings))
        return Topic(altered, self._threads)

    async def add_partitions(self, name: str, total: int) -> Topic:
        """As `logstore.Store.add_partitions`."""
        return Topic(await self._threads.run(self.blocking.add_partitions, name, total), self._threads)

    async def delete_topic(self, name: str) -> None:
        """Delete the topic with its records."""
        await self._threads.run(self.blocking.delete_topic, name)

    async def collect_garbage(self, topic: str | None = None, *, dry_run: bool = False) -> list[Garbage]:
        """As `logstore.Store.collect_garbage`."""
        return await self._threads.run(partial(self.blocking.collect_garbage, topic, dry_run=dry_run))

    async def flush(self, timeout: float | None = None) -> None:
        """Make everything durable that was appended so far."""
        await self._threads.run(self.blocking.flush, timeout)

    async def group(
        self,
        name: str,
        topics: str | Iterable[str],
        *,
        member: str | None = None,
        session_timeout: float = 30.0,
        max_poll_interval: float = 300.0,
        start: Literal["beginning", "end"] = "beginning",
        visibility: Visibility = "durable",
    ) -> Group:
        """Join a group, as `logstore.Store.group`: `async with await store.group(…) as group`."""
        joined = await self._threads.run(
            partial(
                self.blocking.group,
                name,
                topics,
                member=member,
                session_timeout=session_timeout,
                max_poll_interval=max_poll_interval,
                start=start,
                visibility=visibility,
            )
        )
        return Group(joined, self._threads)

    def atomic(self, *, timeout: float | None = None) -> AtomicBlock:
        """As `logstore.Store.atomic`: `async with store.atomic() as tx: await tx.append(topic, value)`."""
        return AtomicBlock(self.blocking.atomic(timeout=timeout), self._threads)

    def health(self) -> dict[str, Any]:
        """As `logstore.Store.health`. Asks nobody, so it needs no await."""
        return self.blocking.health()

    def metrics(self) -> dict[str, OperationStats]:
        """As `logstore.Store.metrics`."""
        return self.blocking.metrics()

    def writer_metrics(self) -> list[WriterMetrics]:
        """As `logstore.Store.writer_metrics`."""
        return self.blocking.writer_metrics()

    async def close(self, timeout: float | None = None) -> None:
        """Make the tail durable or raise what is not. On a thread of its own: all others may be waiting for room."""
        closer = ThreadPoolExecutor(1, thread_name_prefix="logstore-aio-close")
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(closer, partial(self.blocking.close, timeout))
        finally:
            closer.shutdown(wait=False)
            self._threads.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _let_go(opening: Future[blocking.Store]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class _Opening:
    """A store that is about to be open: await it, or enter it with `async with`."""

    def __init__(self, open_store: Callable[[], blocking.Store]) -> None:
        self._open_store = open_store
        self._store: Store | None = None

    def __await__(self) -> Generator[Any, None, Store]:
        return self._open().__await__()

    async def _open(self) -> Store:
        threads = Threads()
        opening = threads.submit(self._open_store)
        try:
            return Store(await asyncio.wrap_future(opening), threads)
        except BaseException:
            opening.add_done_callback(_let_go)  # cancelled: it may be open in a moment, and nobody has it
            threads.close()
            raise

    async def __aenter__(self) -> Store:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        assert self._store is not None, "entered before"
        await self._store.close()


def open(
    where: str | os.PathLike[str] | ObjectStore,
    *,
    config: StoreConfig | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    disk: Disk | None = None,
    **settings: Unpack[StoreSettings],
) -> _Opening:
    """`logstore.open` for asyncio: `async with logstore.aio.open(…) as store`, or `store = await logstore.aio.open(…)`."""
    return _Opening(partial(blocking.open, where, config=config, clock=clock, rng=rng, disk=disk, **settings))
