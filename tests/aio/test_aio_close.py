"""The end of an asyncio store: what waits is told, what comes later too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import logstore
import logstore.aio
from logstore.aio.threads import THREADS
from logstore.errors import Closed
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def test_L06_a_second_close_is_a_no_op_and_every_call_after_it_is_refused() -> None:
    async def work() -> None:
        store = await logstore.aio.open(MemoryStore())
        topic = await store.create_topic("t")
        log = topic.partition(0)
        await log.append([b"v0", b"v1"])
        await store.close()
        await store.close()
        late: list[Coroutine[Any, Any, object]] = [
            topic.append(b"late"),
            topic.append_many([b"late"]),
            log.append(b"late"),
            log.submit(b"late"),
            log.read(0),
            log.offset_for_timestamp(0),
            store.create_topic("late"),
            store.topics(),
            store.flush(),
        ]
        for call in late:
            with pytest.raises(Closed):
                await call
        with pytest.raises(Closed):
            [record async for record in log.records()]
        assert [record async for record in log.tail(0)] == []
        assert [record async for record in log.tail()] == []

    run(work())


def test_L06_close_does_not_wait_behind_appends_that_wait_for_room() -> None:
    """More appends than there are threads wait for room in the buffer. Each is told that the store is closed."""

    async def work() -> None:
        objects = FaultyStore(MemoryStore())
        store = await logstore.aio.open(
            objects, max_buffered_bytes=4096, compression="none", append_timeout=3600
        )
        log = (await store.create_topic("t")).partition(0)
        await log.append(b"v0", ack="buffered")
        await log.flush()
        objects.down()
        await log.append(b"x" * 2048, ack="buffered")
        waiting = [asyncio.create_task(log.append(b"y" * 2048, ack="buffered")) for _ in range(2 * THREADS)]
        await asyncio.sleep(0)  # each has begun, and the threads are taken or will be
        with pytest.raises(logstore.LogStoreError, match="offsets 1 to 1"):
            await store.close(timeout=0.1)
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(end) for end in ends} == {Closed}

    run(work())


def test_L29_an_open_that_is_cancelled_leaves_no_open_store_behind() -> None:
    async def work() -> None:
        opened: list[logstore.Store] = []
        gated = GatedStore(MemoryStore())
        really_open = (
            logstore.open
        )  # asked for before it is replaced: the package looks it up once, and keeps it

        def open_and_note(*places: Any, **settings: Any) -> logstore.Store:
            opened.append(really_open(*places, **settings))
            return opened[0]

        with pytest.MonkeyPatch.context() as patch, gated.hold("put") as gate:
            patch.setattr(logstore.store, "open", open_and_note)

            async def open_it() -> None:
                async with logstore.aio.open(gated):
                    raise AssertionError("it was cancelled before")

            opening = asyncio.create_task(open_it())
            await asyncio.to_thread(gate.wait_held)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            gate.open()
            while not opened or not opened[0].health()["closed"]:
                await asyncio.sleep(0)

    run(work())
