"""C11: a store that hangs is seen, in `health()` and in the log, whichever way the partition is written; and `close` ends.

The store is held at a gate and the clock is moved by hand: nothing here waits for a timeout to pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future

import pytest

import logstore
from logstore import aio
from logstore.engine.host.stall_watch import StallWatch
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import OutcomeUnknown, StoreUnavailable
from logstore.objects import MemoryStore
from logstore.process import at_exit
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background, open_store, partition, running, until
from tests.support.patience import PATIENCE_S

WATCH = "logstore.engine.host.stall_watch"


def feed(log: PartitionLog, mode: str, number: int) -> Future[object]:
    """One record for the log, without waiting for it."""
    if mode == "replicated":
        return log.replicated("mine").submit([b"x"], number, number + 1)  # type: ignore[return-value]
    return log.submit(b"x", ack="durable")  # type: ignore[return-value]


def seen(store: logstore.Store, mode: str) -> dict[str, object]:
    """What `health()` says of the writer."""
    (health,) = store.health()["partitions"]
    found: dict[str, object] = health["replicated"][0] if mode == "replicated" else health
    return found


def opened(objects: GatedStore | FaultyStore, clock: ManualClock, mode: str) -> logstore.Store:
    return open_store(objects, clock, writer="shared" if mode == "shared" else "exclusive", stall_after=60.0)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records if record.name == WATCH]


@pytest.mark.parametrize("mode", ["exclusive", "shared", "replicated"])
def test_C11_a_store_that_hangs_is_seen(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, WATCH)
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    with opened(gated, clock, mode) as store:
        log = partition(store)
        feed(log, mode, 0).result(PATIENCE_S)
        clock.advance(1000.0)  # idle for long is no stall
        assert (seen(store, mode)["stalled"], seen(store, mode)["unanswered_seconds"]) == (False, None)
        for turn in (1, 2):  # and once more: each stall has its own two lines
            with gated.hold("put", suffix=".seg") as gate:
                waiting = feed(log, mode, turn)
                gate.wait_held()
                clock.advance(59.0)
                found = seen(store, mode)
                assert (found["state"], found["stalled"], found["unanswered_seconds"]) == (
                    "writing",
                    False,
                    59.0,
                )
                assert (store.health()["store_reachable"], store.health()["stalled"]) == (True, False)
                clock.advance(2.0)
                found = seen(store, mode)
                assert (found["state"], found["stalled"], found["unanswered_seconds"]) == (
                    "stalled",
                    True,
                    61.0,
                )
                health = store.health()
                assert (health["store_reachable"], health["stalled"]) == (False, True)
                assert health["unanswered_seconds"] == 61.0
                until(lambda turn=turn: told(caplog) == ["WARNING", "INFO"] * (turn - 1) + ["WARNING"])  # type: ignore[misc]
                clock.advance(600.0)
            waiting.result(PATIENCE_S)
            until(lambda turn=turn: told(caplog) == ["WARNING", "INFO"] * turn)  # type: ignore[misc]
            assert (seen(store, mode)["state"], seen(store, mode)["unanswered_seconds"]) == ("writing", None)
            assert (store.health()["store_reachable"], store.health()["stalled"]) == (True, False)


def test_C11_partitions_that_wait_for_the_upload_that_hangs_are_stalled_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What they have is in no upload yet: theirs begins when the one that hangs has ended."""
    caplog.set_level(logging.INFO, WATCH)
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    with open_store(gated, clock, stall_after=60.0) as store:
        topic = store.create_topic("t", partitions=8)
        logs = [topic.partition(number) for number in range(8)]
        for log in logs:
            log.append(b"x")
        with gated.hold("put", suffix=".seg") as gate:
            waiting = [logs[0].submit(b"y")]
            gate.wait_held()
            for log in logs[1:]:
                clock.advance(10.0)
                waiting.append(log.submit(b"y"))
            until(lambda: told(caplog) == ["WARNING"])
            clock.advance(100.0)
            assert len(gate.held) == 1
            assert all(each["stalled"] for each in store.health()["partitions"])
            gate.release()
            assert waiting[0].result(PATIENCE_S).offset == 1
            gate.wait_held()
            assert not any(each["stalled"] for each in store.health()["partitions"])
        for future in waiting:
            assert future.result(PATIENCE_S).offset == 1
        until(lambda: told(caplog) == ["WARNING", "INFO"])


def test_C11_many_partitions_that_hang_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Each in an upload of its own."""
    caplog.set_level(logging.INFO, WATCH)
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    with open_store(gated, clock, stall_after=60.0, lanes=0) as store:
        topic = store.create_topic("t", partitions=8)
        logs = [topic.partition(number) for number in range(8)]
        for log in logs:
            log.append(b"x")
        with gated.hold("put", suffix=".seg") as gate:
            waiting = []
            for number, log in enumerate(logs):  # all threads that upload are taken
                waiting.append(log.submit(b"y"))
                gate.wait_held(count=number + 1)
                clock.advance(10.0)
            until(lambda: told(caplog) == ["WARNING"])
            clock.advance(100.0)
            assert all(each["stalled"] for each in store.health()["partitions"])
            gate.release(7)
            for future in waiting[:7]:
                future.result(PATIENCE_S)
            assert told(caplog) == ["WARNING"]
        waiting[7].result(PATIENCE_S)
        until(lambda: told(caplog) == ["WARNING", "INFO"])


@pytest.mark.parametrize("mode", ["exclusive", "shared", "replicated"])
def test_C11_attempts_that_fail_are_no_answer(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each request ends, after a timeout of its own; the upload has been without an answer all the time."""
    caplog.set_level(logging.INFO, WATCH)
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    with opened(gated, clock, mode) as store:
        log = partition(store)
        feed(log, mode, 0).result(PATIENCE_S)
        with gated.hold("put", suffix=".seg") as gate:
            waiting = feed(log, mode, 1)
            for _ in range(2):
                gate.wait_held()
                clock.advance(31.0)
                gate.fail(StoreUnavailable("it took 31 s and nothing came"))
                while not gate.held:  # a pause, before it is tried again
                    clock.advance(0.1)
                    until_any(lambda: bool(gate.held))
            assert seen(store, mode)["stalled"]
            until(lambda: told(caplog) == ["WARNING"])
        waiting.result(PATIENCE_S)
        until(lambda: told(caplog) == ["WARNING", "INFO"])


def until_any(condition: Callable[[], bool]) -> None:
    """Give another thread a moment to get there."""
    try:
        background(until, condition).result(0.02)
    except TimeoutError:
        return


def test_C11_a_writer_that_cannot_be_opened_is_seen_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, WATCH)
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    with open_store(gated, clock, stall_after=60.0) as store:
        log = partition(store)
        with gated.hold("put", suffix=".seg") as gate:
            waiting = background(log.append, b"x", timeout=1e6)
            gate.wait_held()
            until(lambda: store.health()["unanswered_seconds"] is not None)  # another thread claims
            clock.advance(61.0)
            assert (store.health()["stalled"], store.health()["store_reachable"]) == (True, False)
            until(lambda: told(caplog) == ["WARNING"])
        waiting.result(PATIENCE_S)
        assert store.health()["unanswered_seconds"] is None


def test_C11_records_that_wait_for_their_flush_interval_are_no_stall() -> None:
    clock = ManualClock()
    with running(MemoryStore(), clock, ack="buffered", stall_after=60.0) as store:
        partition(store).append(b"x")
        clock.advance(3000.0)
        (health,) = store.health()["partitions"]
        assert (health["state"], health["unflushed_records"], health["unanswered_seconds"]) == (
            "writing",
            1,
            None,
        )


def test_C11_L22_after_the_last_upload_there_is_no_timer_left() -> None:
    clock = ManualClock()
    with running(MemoryStore(), clock, stall_after=60.0) as store:
        partition(store).append(b"x")
        timer = store._runtime.watch._timer
        clock.advance(61.0)
        until(lambda: not timer._due and not timer._heap)
        clock.advance(1000.0)
        assert not timer._due


@pytest.mark.parametrize("mode", ["exclusive", "shared", "replicated"])
@pytest.mark.parametrize("timeout", [None, 3.0])
def test_C11_close_ends_within_its_deadline_and_names_what_is_not_stored(
    mode: str, timeout: float | None
) -> None:
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    store = opened(gated, clock, mode)
    log = partition(store)
    feed(log, mode, 0).result(PATIENCE_S)
    with gated.hold("*") as gate:
        waiting = feed(log, mode, 1)
        gate.wait_held()
        closing = background(store.close, timeout)
        until(lambda: log._internal.closed)
        clock.advance((timeout or logstore.StoreConfig().close_timeout) - 0.5)
        assert not closing.done()
        clock.advance(0.6)  # and no further
        with pytest.raises(
            OutcomeUnknown, match=r"offsets (1 to 1 are not in|from 1 on are not stored)"
        ) as raised:
            closing.result(PATIENCE_S)
        assert "not answer" in str(raised.value)
        with pytest.raises(logstore.LogStoreError):
            waiting.result(PATIENCE_S)


def test_C11_the_default_leaves_time_before_a_platform_kills() -> None:
    assert logstore.StoreConfig().close_timeout <= 20.0
    with pytest.raises(ValueError, match="close_timeout"):
        logstore.StoreConfig(close_timeout=-1)


def test_C11_close_waits_for_all_threads_together_and_not_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads, reads ahead and a writer that is being opened all hang: they share what is left of the deadline."""
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    store = open_store(gated, clock)
    log = partition(store)
    log.append(b"x")
    given: list[float] = []
    for part in (
        store._runtime.disk,
        store._runtime.task_pool,
        store._runtime.upkeep,
        store._runtime.watch,
    ):
        monkeypatch.setattr(part, "close", lambda left: (given.append(left), clock.advance(left))[0] or False)
    assert not store._runtime.close(5.0)
    assert given == [5.0, 0.0, 0.0, 0.0]
    at_exit.forget(store)


def test_C11_asyncio_sees_it_and_its_close_ends_too() -> None:
    clock, gated = ManualClock(), GatedStore(MemoryStore())

    async def main() -> None:
        store = await aio.open(gated, clock=clock, stall_after=60.0, flush_interval=3600.0)
        log = (await store.create_topic("t")).partition(0)
        await log.append(b"x")
        with gated.hold("put", suffix=".seg") as gate:
            waiting = asyncio.ensure_future(log.append(b"y", timeout=1e6))
            await asyncio.to_thread(gate.wait_held)
            clock.advance(61.0)
            (health,) = store.health()["partitions"]
            assert (health["stalled"], health["unanswered_seconds"]) == (True, 61.0)
            closing = asyncio.ensure_future(store.close(timeout=3.0))
            await asyncio.to_thread(until, lambda: log.blocking._internal.closed)
            await asyncio.to_thread(until_any, lambda: False)
            while not closing.done():
                clock.advance(0.5)
                await asyncio.to_thread(until_any, closing.done)
            with pytest.raises(OutcomeUnknown, match="offsets 1 to 1 are not in the store"):
                await closing
            with pytest.raises(OutcomeUnknown):
                await waiting

    asyncio.run(main())


def test_C11_many_that_ask_together_are_watched_and_end_together(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    watch = StallWatch(clock, 60.0)
    try:
        watch.all_began(["t/0", "t/1"])
        clock.advance(1.0)
        watch.all_began(["t/1", "t/2"])  # the one waits since the first time
        assert [watch.seconds(who) for who in ("t/0", "t/1", "t/2")] == [1.0, 1.0, 0.0]
        clock.advance(59.0)
        until(lambda: "t/0: the store has not answered an upload for 60.0 s (of 3" in caplog.text)
        with caplog.at_level(logging.INFO, logger=WATCH):
            watch.all_ended(["t/0", "t/1", "never asked"])
        assert "t/1: the store answers again, after 60.0 s" in caplog.text
        assert watch.oldest() == 1.0
        watch.all_ended(["t/2"])
        assert watch.oldest() is None
    finally:
        watch.close(PATIENCE_S)


def test_C11_a_wait_whose_length_rounds_to_less_than_the_limit_is_late_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """69.37276790362019 + 60 is rounded down, and the difference is less than 60 then: the timer was set to now for ever."""

    class Rounding(ManualClock):
        seconds = 69.37276790362019

        def monotonic(self) -> float:
            return self.seconds

    clock = Rounding()
    watch = StallWatch(clock, 60.0)
    try:
        watch.began("somebody", "t/0")
        clock.seconds += 60.0
        assert clock.seconds - 69.37276790362019 < 60.0
        watch.run()
        assert "t/0" in caplog.text
    finally:
        watch.close(PATIENCE_S)
