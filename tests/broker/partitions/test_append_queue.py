"""B10: a large compressed batch is unpacked beside the event loop, and order and idempotence survive the detour."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from broker_shim.partitions.append import APART_FROM_BYTES
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.engine.partition.internal import Partition
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.record import Record
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker.harness import LocalBroker, Wire, produce_body
from tests.support.broker.steps import make_topic, read_all
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
PID = 42


def batch(sequence: int, *, large: bool, pid: int = PID) -> bytes:
    """One record; a large one is compressed and stays above the limit."""
    noise = b"".join(b"%d " % (i * 7919 % 100_003) for i in range(20_000)) if large else b""
    raw, _ = encode_batch(
        [Record(b"%d:" % sequence + noise, b"k", (), 1)],
        now_ms=1,
        codec_id=CODEC_IDS["zstd"] if large else 0,
        producer_id=pid,
        producer_epoch=0 if pid >= 0 else -1,
        base_sequence=sequence if pid >= 0 else -1,
    )
    assert (len(raw) >= APART_FROM_BYTES) is large
    return raw


def send(client: Wire, raw: bytes) -> int:
    return client.send(Api.PRODUCE, 9, produce_body("t", raw, 0, -1, 9, 20_000))


def numbers(client: Wire) -> list[int]:
    return [int((value or b"").partition(b":")[0]) for _, value in read_all(client)]


@pytest.mark.parametrize("pid", [PID, -1], ids=["idempotent", "plain"])
def test_B10_large_and_small_batches_keep_their_order(broker: LocalBroker, pid: int) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        sent = [send(client, batch(n, large=n % 3 == 0, pid=pid)) for n in range(30)]
        answers = [client.produced(9, correlation) for correlation in sent]
        assert [(a.error_code, a.base_offset) for a in answers] == [(Code.NONE, n) for n in range(30)]
        assert numbers(client) == list(range(30))


def test_B10_the_event_loop_serves_others_while_a_batch_is_unpacked(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacking, go_on = threading.Event(), threading.Event()
    real = Partition.submit_batches

    def held(self: Partition, raw: bytes, **options: object) -> object:
        if len(raw) >= APART_FROM_BYTES:
            unpacking.set()
            assert go_on.wait(PATIENCE_S)
        return real(self, raw, **options)  # type: ignore[arg-type]

    with Wire(broker.port) as client, Wire(broker.port) as other:
        make_topic(client)
        client.produce("t", batch(0, large=False))
        monkeypatch.setattr(Partition, "submit_batches", held)
        first = send(client, batch(1, large=True))
        assert unpacking.wait(PATIENCE_S)
        behind = send(client, batch(2, large=False))
        assert other.ask(Api.METADATA, 9, topics=[{"name": "t"}]).topics[0].error_code == Code.NONE
        go_on.set()
        assert client.produced(9, first).base_offset == 1
        assert client.produced(9, behind).base_offset == 2


@pytest.mark.parametrize("codec", ["zstd", "gzip", "lz4"])
@pytest.mark.parametrize("place", [0, 1])
def test_B10_a_small_batch_that_holds_much_is_unpacked_beside_the_event_loop(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, codec: str, place: int
) -> None:
    """Also as the second batch of a record set, behind a plain one."""
    value = b"z" * 3_000_000
    packed, _ = encode_batch([Record(value, b"k", (), 1)], now_ms=1, codec_id=CODEC_IDS[codec])
    plain, _ = encode_batch([Record(b"plain", b"k", (), 1)], now_ms=1, codec_id=0)
    assert len(packed) < APART_FROM_BYTES
    threads: list[int] = []
    real = Partition.submit_batches

    def noting(self: Partition, raw: bytes, **options: object) -> object:
        threads.append(threading.get_ident())
        return real(self, raw, **options)  # type: ignore[arg-type]

    with Wire(broker.port) as client:
        make_topic(client)
        monkeypatch.setattr(Partition, "submit_batches", noting)
        assert client.produce("t", plain).base_offset == 0
        assert client.produce("t", plain + packed if place else packed).base_offset == 1
        loop_thread = broker.call(threading.get_ident)
        assert [thread == loop_thread for thread in threads] == [True, False]
        expected = [b"plain", b"plain", value] if place else [b"plain", value]
        assert [each for _, each in read_all(client)] == expected


def test_B10_a_large_batch_that_finds_the_buffer_full_goes_first_when_there_is_room(
    start_broker: Start,
) -> None:
    size = len(batch(0, large=True))
    store = GatedStore(MemoryStore())
    broker = start_broker(
        store, max_buffered_bytes=int(size * 1.5), max_message_bytes=int(size * 1.2), flush_interval=0.01
    )
    with Wire(broker.port) as client:
        make_topic(client)
        assert client.produce("t", batch(0, large=True)).base_offset == 0
        with store.hold("put", suffix=".seg") as gate:
            sent = [send(client, batch(n, large=n != 3)) for n in range(1, 6)]
            gate.wait_held()
            gate.open()
        answers = [client.produced(9, correlation) for correlation in sent]
        assert [(a.error_code, a.base_offset) for a in answers] == [(Code.NONE, n) for n in range(1, 6)]
        assert numbers(client) == list(range(6))


def test_B10_a_compressed_batch_that_is_damaged_is_refused_and_the_next_one_goes_on(
    broker: LocalBroker,
) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        good = batch(0, large=True)
        bad = good[:-9] + bytes([good[-9] ^ 1]) + good[-8:]
        assert client.produce("t", bad).error_code == Code.CORRUPT_MESSAGE
        assert client.produce("t", good).base_offset == 0


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often another thread wakes it, and for what."""

    def __init__(self) -> None:
        super().__init__()
        self.woken_for: list[str] = []

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        self.woken_for.append(getattr(callback, "__qualname__", repr(callback)))
        return super().call_soon_threadsafe(callback, *arguments, **options)


def test_one_upload_that_acks_many_appends_wakes_the_loop_once() -> None:
    producers = 16
    store, loop = GatedStore(MemoryStore()), CountingLoop()
    with LocalBroker(store, loop_factory=lambda: loop) as broker, ExitStack() as open_clients:
        clients = [open_clients.enter_context(Wire(broker.port)) for _ in range(producers)]
        make_topic(clients[0])
        assert clients[0].produce("t", batch(0, large=False, pid=-1)).base_offset == 0
        with store.hold("put", suffix=".seg") as gate:
            held = send(clients[0], batch(1, large=False, pid=-1))
            gate.wait_held()
            # These wait for the upload after the one that is held, and are all in it.
            sent = [send(client, batch(n, large=False, pid=-1)) for n, client in enumerate(clients[1:], 2)]
            broker.until(lambda: broker.log("t")._internal.health()["next_offset"] == producers + 1)
            stored, is_held, go_on = threading.Event(), threading.Event(), threading.Event()
            log = broker.log("t")
            # Listeners are told after the appends: then every ack has been handed over, and none was heard.
            log._internal.add_listener(
                lambda: stored.set() if log.durable_high_watermark > producers else None
            )
            loop.call_soon_threadsafe(lambda: is_held.set() or go_on.wait(PATIENCE_S))
            assert is_held.wait(PATIENCE_S)
            loop.woken_for.clear()
            gate.open()
            try:
                assert stored.wait(PATIENCE_S)
                assert loop.woken_for.count("AppendQueue._drain") == 1
            finally:
                go_on.set()
        assert clients[0].produced(9, held).base_offset == 1
        answers = [client.produced(9, each) for client, each in zip(clients[1:], sent, strict=True)]
        assert sorted(answer.base_offset for answer in answers) == list(range(2, producers + 1))
