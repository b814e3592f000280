"""The asyncio face: the same log, with awaits where the other blocks."""

from __future__ import annotations

import asyncio
import gc
import pickle
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

import logstore
import logstore.aio
from logstore.objects import MemoryStore
from logstore.testing import GatedStore

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 30))


def test_L11_read_after_ack() -> None:
    async def work() -> list[tuple[int | None, bytes | None]]:
        async with logstore.aio.open(MemoryStore(), flush_interval=3600) as store:
            topic = await store.create_topic("t")
            await topic.append(b"durable", key=b"k")
            await topic.append(b"buffered", key=b"k", ack="buffered")
            log = topic.partition(0)
            assert (log.durable_high_watermark, log.buffered_high_watermark) == (1, 2)
            return [(record.offset, record.value) async for record in log.records()]

    assert run(work()) == [(0, b"durable"), (1, b"buffered")]


def test_L12_what_is_cached_and_more_than_one_read_holds_is_read_without_a_hole() -> None:
    async def work() -> list[int | None]:
        async with logstore.aio.open(MemoryStore(), compression="none") as store:
            log = (await store.create_topic("t")).partition(0)
            for _ in range(6):
                await log.append([bytes(250_000)] * 3)
            return [record.offset async for record in log.records()]

    assert run(work()) == list(range(18))


@pytest.mark.parametrize("how", ["append", "append_batches", "append_many"])
def test_L04_a_hundred_durable_appends_wait_without_a_thread_each(how: str) -> None:
    """While one upload is held, all others become the next segment; far more wait than there are threads."""

    async def work() -> None:
        gated = GatedStore(MemoryStore())
        async with logstore.aio.open(gated) as store:
            topic = await store.create_topic("t")
            log = topic.partition(0)
            await log.append(b"opens the writer")
            raw = (await log.read(0)).raw

            async def another(n: int) -> logstore.Receipt:
                if how == "append_many":
                    return (await topic.append_many([b"%d" % n]))[0]
                return await (log.append_batches(raw) if how == "append_batches" else log.append(b"%d" % n))

            with gated.hold("put", suffix=".seg") as gate:
                first = asyncio.create_task(log.append(b"first"))
                await asyncio.to_thread(gate.wait_held)
                others = [asyncio.create_task(another(n)) for n in range(100)]
                while log.blocking._internal.health()["next_offset"] < 102:
                    await asyncio.sleep(0)
                gate.open()
                receipts = await asyncio.gather(first, *others)
            assert sorted(receipt.offset for receipt in receipts) == list(range(1, 102))
            assert len(log.blocking.segments()) == 3

    run(work())


def test_L14_a_tail_is_woken_by_the_append_and_asks_the_store_nothing() -> None:
    async def work() -> None:
        async with logstore.aio.open(MemoryStore(), flush_interval=3600) as store:
            topic = await store.create_topic("t")
            await topic.append(b"0", ack="buffered")
            found: asyncio.Queue[bytes | None] = asyncio.Queue()

            async def follow() -> None:
                async for record in topic.partition(0).tail():
                    await found.put(record.value)

            follower = asyncio.create_task(follow())
            assert await found.get() == b"0"
            requests = {name: stats.requests for name, stats in store.blocking.metrics().items()}
            await topic.append(b"1", ack="buffered")
            assert await found.get() == b"1"
            assert {name: stats.requests for name, stats in store.blocking.metrics().items()} == requests
            follower.cancel()

    run(work())


def test_a_tail_sees_what_another_process_commits() -> None:
    async def work() -> None:
        objects = MemoryStore()
        async with logstore.aio.open(objects) as writing:
            topic = await writing.create_topic("t")
            async with logstore.aio.open(objects, writer="read_only", follow_interval=0.01) as reading:
                tail = (await reading.topic("t")).partition(0).tail()
                await topic.append(b"a")
                assert (await anext(tail)).value == b"a"
                await topic.append(b"b")
                assert (await anext(tail)).value == b"b"

    run(work())


def test_L18_an_offset_past_the_mark_as_last_seen_is_asked_for_at_the_store() -> None:
    """A reader that resumes at an offset somebody told it: its own marks are older than that."""

    async def work() -> None:
        objects = MemoryStore()
        with logstore.open(objects) as writing:
            log = writing.create_topic("t").partition(0)
            log.append(b"0")
            async with logstore.aio.open(objects, writer="read_only") as reading:
                reader = (await reading.topic("t")).partition(0)
                assert (await reader.read(0)).next_offset == 1
                log.append([b"1", b"2", b"3"])
                assert [record.value for record in (await reader.read(2)).records()] == [b"2", b"3"]
                log.append([b"4", b"5"])
                assert (await anext(reader.tail(5))).value == b"5"
                log.append([b"6", b"7"])
                waited = await reader.read(7, wait=3600)
                assert [record.value for record in waited.records()] == [b"7"]

    run(work())


@pytest.mark.parametrize("offset", [7, -1])
def test_L18_no_wait_for_an_offset_outside_of_the_marks(offset: int) -> None:
    """Of a partition that nobody has read yet, nor opened: only the store knows its watermarks."""

    async def work() -> None:
        objects = MemoryStore()
        with logstore.open(objects) as store:
            store.create_topic("t").append(b"0")
        async with logstore.aio.open(objects) as reading:
            with pytest.raises(logstore.OffsetOutOfRange) as tailed:
                await anext((await reading.topic("t")).partition(0).tail(offset))
            assert (tailed.value.low, tailed.value.high) == (0, 1)
        async with logstore.aio.open(objects) as reading:
            with pytest.raises(logstore.OffsetOutOfRange):
                await (await reading.topic("t")).partition(0).read(offset, wait=3600)

    run(work())


def test_an_offset_that_is_none_is_refused_by_name() -> None:
    async def work() -> None:
        async with logstore.aio.open(MemoryStore()) as store:
            log = (await store.create_topic("t")).partition(0)
            await log.append(b"x")
            for offset in ("0", 1.5, True):
                with pytest.raises(TypeError, match="an offset is an int"):
                    await log.read(offset)  # type: ignore[arg-type]
                with pytest.raises(TypeError, match="an offset is an int"):
                    await anext(log.tail(offset))  # type: ignore[arg-type]

    run(work())


def test_L25_a_tail_ends_when_another_process_deletes_the_topic() -> None:
    async def work() -> None:
        objects = MemoryStore()
        with logstore.open(objects) as writing:
            writing.create_topic("t").append(b"a")
            async with logstore.aio.open(objects, writer="read_only", follow_interval=0.01) as reading:
                log = (await reading.topic("t")).partition(0)
                tail = log.tail()
                assert (await anext(tail)).value == b"a"
                waiting = asyncio.create_task(log.read(1, wait=3600))
                writing.delete_topic("t")
                assert [record.value async for record in tail] == []
                with pytest.raises(logstore.UnknownTopic):
                    await waiting

    run(work())


def test_L07_a_deadline_that_passes_says_that_the_outcome_is_unknown() -> None:
    async def work() -> None:
        gated = GatedStore(MemoryStore())
        async with logstore.aio.open(gated) as store:
            log = (await store.create_topic("t")).partition(0)
            await log.append(b"a")
            with gated.hold("put", suffix=".seg") as gate:
                with pytest.raises(logstore.AppendTimeout, match="offsets 1 to 1"):
                    await log.append(b"b", timeout=0.01)
                gate.open()
            assert await log.flush() == 2  # the flush went on

    run(work())


def test_L07_one_deadline_covers_the_wait_for_the_writer_and_the_wait_for_the_ack() -> None:
    """An hour passes while the writer is opened. The ack, which never comes, is not waited for on top of that."""

    async def work() -> None:
        gated = GatedStore(MemoryStore())
        async with logstore.aio.open(gated) as store:
            log = (await store.create_topic("t")).partition(0)
            loop = asyncio.get_running_loop()
            passed_s, now = 0.0, loop.time
            loop.time = lambda: now() + passed_s  # type: ignore[method-assign]
            with gated.hold("put", suffix=".seg") as gate:
                appending = asyncio.create_task(log.append(b"v", timeout=3600))
                await asyncio.to_thread(gate.wait_held)
                passed_s = 3600.0
                gate.release()  # the fence; the segment is held in its turn
                with pytest.raises(logstore.AppendTimeout):
                    await appending

    asyncio.run(work())


def test_L06_a_tail_ends_when_the_store_is_closed() -> None:
    async def work() -> list[bytes | None]:
        store = await logstore.aio.open(MemoryStore())
        log = (await store.create_topic("t")).partition(0)
        await log.append(b"a")
        seen: list[bytes | None] = []
        begun = asyncio.Event()

        async def follow() -> None:
            async for record in log.tail():
                seen.append(record.value)
                begun.set()

        follower = asyncio.create_task(follow())
        await begun.wait()
        await store.close()
        await follower
        return seen

    assert run(work()) == [b"a"]


def test_errors_are_the_same() -> None:
    async def work() -> None:
        async with logstore.aio.open(MemoryStore()) as store:
            with pytest.raises(logstore.UnknownTopic):
                await store.topic("nope")
            topic = await store.create_topic("t")
            with pytest.raises(logstore.InvalidRecord):
                await topic.append("text")  # type: ignore[arg-type]
            assert (await topic.append(b"x")).offset == 0
            with pytest.raises(logstore.OffsetOutOfRange):
                await topic.partition(0).read(7)

    run(work())


def test_a_topic_is_altered_grown_trimmed_and_swept() -> None:
    async def work() -> None:
        async with logstore.aio.open(MemoryStore()) as store:
            topic = await store.create_topic("t")
            log = topic.partition(0)
            await log.append([b"a", b"b", b"c"])
            assert (await store.alter_topic("t", segment_bytes=1000)).blocking.config.segment_bytes == 1000
            assert (await store.add_partitions("t", 2)).partitions == 2
            assert await log.delete_before(2) == log.low_watermark == 2
            assert [record.value async for record in log.records()] == [b"c"]
            assert await store.collect_garbage(dry_run=True) == []

    run(work())


def test_W05_a_fenced_partition_is_reopened() -> None:
    async def work() -> None:
        objects = MemoryStore()
        async with logstore.aio.open(objects) as one, logstore.aio.open(objects) as two:
            mine = await one.create_topic("t")
            theirs = await two.topic("t")
            await mine.append(b"0")
            await theirs.append(b"1")
            with pytest.raises(logstore.Fenced):
                await mine.append(b"refused")
            fresh = await mine.partition(0).reopen()
            assert (await fresh.append(b"2")).offset == 2
            assert (await mine.append(b"3")).offset == 3

    run(work())


def test_L07_a_submit_has_a_timeout_of_its_own() -> None:
    async def work() -> None:
        gated = GatedStore(MemoryStore())
        limits: dict[str, Any] = {
            "max_buffered_bytes": 3000,
            "max_batch_bytes": 3000,
            "append_timeout": 3600.0,
        }
        async with logstore.aio.open(gated, compression="none", **limits) as store:
            log = (await store.create_topic("t")).partition(0)
            await log.append(b"opens the writer")
            with gated.hold("put", suffix=".seg") as gate:
                first = await log.submit(b"x" * 2000)
                await asyncio.to_thread(gate.wait_held)
                with pytest.raises(logstore.BufferFull):
                    await log.submit(b"y" * 2000, timeout=0.0)
            assert (await first).offset == 1

    run(work())


def test_L04_a_buffered_receipt_is_awaited_until_it_is_durable_and_the_loop_goes_on() -> None:
    async def work() -> None:
        gated = GatedStore(MemoryStore())
        async with logstore.aio.open(gated, flush_interval=3600) as store:
            log = (await store.create_topic("t")).partition(0)
            await log.append(b"opens the writer")
            receipt = await log.append(b"quick", ack="buffered")
            with pytest.raises(logstore.AppendTimeout, match="offsets 1 to 1"):
                await log.wait_durable(receipt, timeout=0)
            assert receipt.durability == "buffered"
            with gated.hold("put", suffix=".seg") as gate:
                waiting = asyncio.create_task(log.wait_durable(receipt))
                flush = asyncio.create_task(log.flush())
                await asyncio.to_thread(gate.wait_held)
                assert not waiting.done()
                gate.open()
                await asyncio.gather(waiting, flush)
            assert (receipt.durability, log.durable_high_watermark) == ("durable", 2)
            await log.wait_durable(receipt)  # at once, now
            assert store.metrics()["put"].requests > 0
            assert [writer.partition for writer in store.writer_metrics()] == [0]

    run(work())


def test_L10_a_receipt_is_awaited_at_the_log_that_gave_it() -> None:
    """Through a log that was reopened since, and in another process, where nobody can."""

    async def work() -> None:
        async with logstore.aio.open(MemoryStore(), flush_interval=3600) as store:
            log = (await store.create_topic("t")).partition(0)
            receipt = await log.append(b"x", ack="buffered")
            fresh = await log.reopen()
            await fresh.wait_durable(receipt, timeout=5)
            assert receipt.durability == "durable"
            sent = pickle.loads(pickle.dumps(await fresh.append(b"y", ack="buffered")))
            with pytest.raises(logstore.Closed, match="t/0: offset 1 was appended in another process"):
                await fresh.wait_durable(sent)

    run(work())


def test_L07_waits_that_are_given_up_are_not_kept_for_as_long_as_an_outage_lasts() -> None:
    async def work() -> None:
        async with logstore.aio.open(MemoryStore(), flush_interval=3600) as store:
            log = (await store.create_topic("t")).partition(0)
            receipt = await log.append(b"quick", ack="buffered")
            for _ in range(1000):
                with pytest.raises(logstore.AppendTimeout):
                    await log.wait_durable(receipt, timeout=0)
            assert len(log.blocking._internal.open_writer().durable_waiters) < 200  # type: ignore[attr-defined]

    run(work())


def test_L03_many_appends_of_which_one_fails_say_so_when_all_have_ended() -> None:
    """One partition was taken over elsewhere; what went to the other is stored. No error is left that nobody saw."""

    async def work() -> None:
        unseen: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
        objects = MemoryStore()
        async with logstore.aio.open(objects) as store:
            topic = await store.create_topic("t", partitions=2)
            await topic.append_many([b"0"], partition=0)
            await topic.append_many([b"0"], partition=1)
            with logstore.open(objects) as other:
                other.topic("t").partition(0).append(b"taken over")
            records = [logstore.Record(b"a", key=key) for key in (b"a", b"b", b"c", b"d")]
            assert {topic.blocking._internal.pick(record.key) for record in records} == {0, 1}
            with pytest.raises(logstore.Fenced):
                await topic.append_many(records)
            assert topic.partition(1).durable_high_watermark > 1
            assert await topic.append_many([]) == []
        gc.collect()
        await asyncio.sleep(0)
        assert unseen == []

    run(work())
