"""L07 without a deadline: `inf`, and anything longer than the operating system can wait, is a timeout like any other.

On the real clock, because that is what could not wait so long; nothing here waits for time to pass.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest

import logstore
from logstore.engine.partition.partition_log import PartitionLog
from logstore.ingest import Collector
from logstore.objects import MemoryStore
from logstore.testing import GatedStore
from tests.support.engine.harness import background, until
from tests.support.patience import PATIENCE_S

ENDLESS = (math.inf, 1e10, 1e300)

WAITS: dict[str, Callable[[PartitionLog, float], object]] = {
    "append": lambda log, timeout: log.append(b"x", timeout=timeout),
    "submit": lambda log, timeout: log.submit(b"x", timeout=timeout).result(PATIENCE_S),
    "flush": lambda log, timeout: (log.submit(b"x"), log.flush(timeout)),
    "wait_durable": lambda log, timeout: log.append(b"x", ack="buffered", timeout=timeout).wait_durable(
        timeout
    ),
    "read": lambda log, timeout: (log.submit(b"x"), log.read(1, wait=timeout)),
}


@pytest.mark.parametrize("timeout", ENDLESS)
@pytest.mark.parametrize("wait", WAITS)
def test_L07_a_wait_without_an_end_ends_with_what_it_waits_for(wait: str, timeout: float) -> None:
    objects = GatedStore(MemoryStore())
    with logstore.open(objects, flush_interval=0.0) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"opens the writer")
        with objects.hold("put", suffix=".seg") as gate:
            waiting = background(WAITS[wait], log, timeout)
            gate.wait_held()
            assert not waiting.done()
        waiting.result(PATIENCE_S)
        assert [record.value for record in log.records()] == [b"opens the writer", b"x"]


@pytest.mark.parametrize("timeout", ENDLESS)
def test_L06_a_close_without_an_end_leaves_no_thread_behind(timeout: float) -> None:
    before = set(threading.enumerate())
    objects = GatedStore(MemoryStore())
    store = logstore.open(objects)
    log = store.create_topic("t").partition(0)
    log.append(b"opens the writer")
    with objects.hold("put", suffix=".seg") as gate:
        log.submit(b"x")
        gate.wait_held()
        closing = background(store.close, timeout)
        until(lambda: log._internal.closed)
        gate.release()
        until(lambda: bool(gate.held) and gate.held[0].key.startswith("lanes/"))  # the end of its lane
        gate.release()
        closing.result(PATIENCE_S)
    until(lambda: not set(threading.enumerate()) - before)
    with logstore.open(objects.inner, writer="read_only") as again:
        assert again.topic("t").partition(0).durable_high_watermark == 2


@pytest.mark.parametrize("timeout", ENDLESS)
def test_L08_an_append_waits_for_room_without_an_end(timeout: float) -> None:
    objects = GatedStore(MemoryStore())
    with logstore.open(objects, max_buffered_bytes=10_000, append_timeout=timeout) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"opens the writer")
        with objects.hold("put", suffix=".seg") as gate:
            first = log.submit(bytes(6_000))
            gate.wait_held()
            second = background(log.append, bytes(6_000))
            gate.release()
        assert (first.result(PATIENCE_S).offset, second.result(PATIENCE_S).offset) == (1, 2)


@pytest.mark.parametrize("timeout", ENDLESS)
def test_L05_a_flush_interval_without_an_end_kills_no_flusher(
    timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    with logstore.open(MemoryStore(), flush_interval=timeout, ack="buffered") as store:
        log = store.create_topic("t").partition(0)
        for n in range(20):
            assert log.append(b"x").offset == n
            assert log.flush() == n + 1
    assert not failures


@pytest.mark.parametrize("timeout", ENDLESS)
def test_W07_replicated_writers_and_collectors_wait_without_an_end(timeout: float) -> None:
    with logstore.open(MemoryStore(), append_timeout=timeout) as store:
        writer = store.create_topic("mirror").partition(0).replicated("a")
        assert writer.compare_and_append([b"x"], 0, 1).by == "us"
        with Collector(store, lambda change: [change], print, source="s") as collector:  # type: ignore[var-annotated]
            collector.begin(position=1, txid="1")
            collector.changes([("orders", b"k", b"v")])
            collector.commit(boundary=2)
            collector.flush(timeout)
