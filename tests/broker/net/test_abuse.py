"""B10: junk, huge frames, half requests, slow readers, a thousand connections: bounded memory, others unharmed."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_shim.net.request_memory import RequestMemory
from broker_shim.wire import messages, primitives
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import MalformedRequest
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker.harness import BrokerProcess, LocalBroker, Wire, produce_body
from tests.support.broker.steps import batch, make_topic, owned, read_all, values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
MIB = 1 << 20


def raw(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def serves(broker: LocalBroker) -> bool:
    with Wire(broker.port) as client:
        answer = client.ask(Api.API_VERSIONS, 3, client_software_name="t", client_software_version="1")
        return bool(answer.error_code == 0)


@pytest.mark.parametrize(
    "junk",
    [
        struct.pack(">i", 0x7FFFFFFF),
        struct.pack(">i", -1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 3 * MIB) + struct.pack(">hhi", Api.METADATA, 9, 1),
        struct.pack(">i", 20) + os.urandom(20),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">i", 14) + struct.pack(">hhih", 999, 0, 1, 4) + b"test",
        struct.pack(">i", 14) + struct.pack(">hhih", Api.METADATA, 77, 1, 4) + b"test",
        struct.pack(">i", 14) + struct.pack(">hhih", Api.METADATA, 1, 1, 400) + b"test",
        struct.pack(">i", 18) + struct.pack(">hhih", Api.METADATA, 1, 1, 4) + b"test" + b"\x7f\xff\xff\xff",
    ],
    ids=[
        "2GiB",
        "negative",
        "tiny",
        "large-control",
        "random",
        "http",
        "api",
        "version",
        "client-id",
        "array",
    ],
)
def test_B10_bytes_that_make_no_sense_close_that_connection_only(broker: LocalBroker, junk: bytes) -> None:
    with Wire(broker.port) as client:
        owned(client, broker)
        with raw(broker.port) as bad:
            bad.sendall(junk)
            assert is_closed(bad)
        assert client.produce("t", batch(b"fine")).base_offset == 1
    assert serves(broker)


def test_B10_an_unknown_version_of_api_versions_gets_version_0_and_error_35(broker: LocalBroker) -> None:
    with raw(broker.port) as client:
        body = struct.pack(">hhih", Api.API_VERSIONS, 99, 5, 4) + b"test" + b"\0" + os.urandom(10)
        client.sendall(struct.pack(">i", len(body)) + body)
        size, correlation, code, count = struct.unpack(">iihi", client.recv(14))
        assert (correlation, code, count) == (5, 35, len(Api))
        assert size == 4 + 2 + 4 + 6 * count


def test_B10_api_versions_tells_the_truth(broker: LocalBroker) -> None:
    """Every version that is offered is answered, or refused by an error code: none hangs up."""
    with Wire(broker.port) as client:
        make_topic(client)
    skipped = {Api.PRODUCE, Api.FETCH, Api.JOIN_GROUP, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}
    for api in Api:
        for version in range(api.low, api.high + 1):
            if api not in skipped:
                with Wire(broker.port) as client:
                    correlation = client.send(api, version, messages.encode_request(api, version, {}))
                    assert client.answer(api, version, correlation) is not None, (api, version)


@pytest.mark.parametrize("seed", range(4))
def test_B10_random_requests_never_break_the_broker(broker: LocalBroker, seed: int) -> None:
    """Well-formed headers, random bodies, bodies with a bit flipped: an answer or a closed connection, nothing else."""
    rng = random.Random(seed)
    with Wire(broker.port) as client:
        make_topic(client)
    body = produce_body("t", batch(b"x" * 50), 0, -1, 9, 1000)
    for _ in range(150):
        api = rng.choice(list(Api))
        version = rng.randint(api.low, api.high)
        sent = rng.randbytes(rng.randrange(60))
        if rng.random() < 0.3:
            api, version = Api.PRODUCE, 9
            place = rng.randrange(len(body))
            sent = body[:place] + bytes([body[place] ^ (1 << rng.randrange(8))]) + body[place + 1 :]
        if api in (Api.JOIN_GROUP, Api.FETCH, Api.SYNC_GROUP):
            continue  # these may rightly wait for others
        with Wire(broker.port) as client:
            client.send(api, version, sent)
            client.receive()
    assert serves(broker)
    with Wire(broker.port) as client:
        assert client.produce("t", batch(b"good")).error_code == Code.NONE


def test_B10_no_decoder_raises_anything_but_malformed_request() -> None:
    rng = random.Random(7)
    for _ in range(20_000):
        api = rng.choice(list(Api))
        version = rng.randint(api.low, api.high)
        body = rng.choice(
            [
                rng.randbytes(rng.randrange(60)),
                b"\x7f\xff\xff\xff" * 5,
                b"\xff\xff\xff\xff\x07" * 5,
                bytes(40),
            ]
        )
        with contextlib.suppress(MalformedRequest):
            messages.decode(api, version, body, 0)


def test_B10_the_number_of_elements_in_a_request_is_bounded() -> None:
    """One byte can announce one element, and an element becomes an object: two megabytes must not become gigabytes."""
    many = primitives.MAX_ELEMENTS + 1
    body = struct.pack(">i", many) + bytes(many * 2)
    with pytest.raises(MalformedRequest, match="elements"):
        messages.decode(Api.DESCRIBE_GROUPS, 0, body, 0)


def test_B10_half_a_frame_is_dropped_after_a_while_and_holds_up_nobody(start_broker: Start) -> None:
    broker = start_broker(stall_timeout=0.4)
    with raw(broker.port) as half, raw(broker.port) as less, Wire(broker.port) as client:
        half.sendall(struct.pack(">ihhi", 50 * MIB, Api.PRODUCE, 9, 1) + b"the beginning")
        less.sendall(b"\0\0")
        owned(client, broker)
        assert is_closed(half)
        assert is_closed(less)
        assert client.produce("t", batch(b"x")).base_offset == 1
    broker.until(lambda: broker.server._memory.used == 0)


def test_B10_large_requests_wait_for_memory_in_turn(start_broker: Start) -> None:
    """Three 3 MiB requests, room for two: the third is not read until one is done, and none is lost."""
    limit = 8 * MIB
    settings = {"max_request_memory": limit, "max_frame_bytes": limit, "max_message_bytes": 4 * MIB}
    store = GatedStore(MemoryStore())
    broker = start_broker(store, **settings)
    big = batch(os.urandom(3 * MIB))
    with Wire(broker.port) as client:
        owned(client, broker)
    clients = [Wire(broker.port) for _ in range(3)]
    try:
        with store.hold("put", suffix=".seg") as gate:
            for client in clients:
                body = produce_body("t", big, 0, -1, 9, 20_000)
                frame = struct.pack(">hhih", Api.PRODUCE, 9, 1, 4) + b"test\0" + body
                client.socket.setblocking(False)
                client.unsent = memoryview(struct.pack(">i", len(frame)) + frame)
            deadline = time.monotonic() + PATIENCE_S
            while broker.server._memory.waiting == 0:
                assert time.monotonic() < deadline
                push(clients)
            gate.wait_held()
            assert broker.server._memory.used <= limit
            gate.open()
            while any(client.unsent for client in clients):
                push(clients)
        offsets = set()
        for client in clients:
            client.socket.settimeout(PATIENCE_S)
            offsets.add(client.produced(9, 1).base_offset)
        assert offsets == {1, 2, 3}
        assert broker.call(lambda: broker.server._memory.used) == 0
    finally:
        for client in clients:
            client.socket.close()


def push(clients: list[Wire]) -> None:
    for client in clients:
        with contextlib.suppress(BlockingIOError):
            client.unsent = (
                client.unsent[client.socket.send(client.unsent) :] if client.unsent else client.unsent
            )


def test_B10_request_memory_serves_in_order_and_forgets_who_left() -> None:
    class Borrower:
        granted = False

        def memory_granted(self) -> None:
            self.granted = True

    memory = RequestMemory(100)
    one, two, three = Borrower(), Borrower(), Borrower()
    assert memory.reserve(80, one)
    assert not memory.reserve(60, two)
    assert not memory.reserve(10, three), "who came later does not overtake"
    assert memory.forget(two) == 60
    assert three.granted
    memory.release(80)
    memory.release(10)
    assert memory.used == 0
    assert memory.reserve(500, one), "alone, even too large a request is served"


def test_B10_a_client_that_does_not_read_is_dropped_and_costs_little(start_broker: Start) -> None:
    broker = start_broker(answer_timeout=0.4, max_message_bytes=MIB)
    with Wire(broker.port) as client:
        make_topic(client)
        for _ in range(8):
            client.produce("t", batch(os.urandom(900_000)))
        slow = Wire(broker.port)
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(20):
            slow.send_fetch("t", 0, max_bytes=8 * MIB, partition_bytes=8 * MIB)
        broker.until(lambda: len(broker.server._connections) == 1)
        slow.socket.close()
        assert client.produce("t", batch(b"fine")).error_code == Code.NONE


def test_B10_answers_keep_the_order_of_requests_when_the_first_one_takes_longest(start_broker: Start) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store)
    with Wire(broker.port) as client, Wire(broker.port) as other:
        owned(client, broker)
        with store.hold("put", suffix=".seg") as gate:
            first = client.send(Api.PRODUCE, 9, produce_body("t", batch(b"slow"), 0, -1, 9, 20_000))
            second = client.send(Api.PRODUCE, 9, produce_body("nowhere", batch(b"x"), 0, -1, 9, 20_000))
            third = client.send(Api.METADATA, 9, messages.encode_request(Api.METADATA, 9, {"topics": []}))
            gate.wait_held()
            assert values(other.fetch("t", 0)) == [(0, b"first")], "another connection is served meanwhile"
            gate.open()
        assert client.produced(9, first).base_offset == 1
        assert client.produced(9, second).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert client.answer(Api.METADATA, 9, third).brokers[0].node_id == 1


def test_B10_too_many_connections_are_turned_away(start_broker: Start) -> None:
    broker = start_broker(max_connections=5)
    held = [Wire(broker.port) for _ in range(5)]
    broker.until(lambda: len(broker.server._connections) == 5)
    with raw(broker.port) as extra:
        assert is_closed(extra)
    held.pop().socket.close()
    broker.until(lambda: len(broker.server._connections) == 4)
    assert serves(broker)
    for client in held:
        client.socket.close()


@pytest.mark.parametrize(
    ("idle", "busy"),
    [(200, 10), pytest.param(1000, 50, marks=[pytest.mark.soak, pytest.mark.timeout(300)])],
    ids=lambda n: str(n),
)
def test_B10_idle_connections_and_busy_ones(tmp_path: Path, idle: int, busy: int) -> None:
    """Many who only stay, some who work: the workers are served and the rest costs next to nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    rounds = 20
    with BrokerProcess(f"file://{tmp_path}/store", "--flush-on-ack", "false", log=tmp_path / "log") as broker:
        with Wire(broker.port) as client:
            make_topic(client, partitions=4)
            for index in range(4):
                client.produce("t", batch(b"take"), partition=index)
        before = broker.memory_bytes()
        sleepers = [raw(broker.port) for _ in range(idle)]
        for sleeper in sleepers[::2]:
            sleeper.sendall(
                struct.pack(">ihh", 90 * MIB, Api.PRODUCE, 9)
            )  # and half of them sent half a frame
        workers = [Wire(broker.port) for _ in range(busy)]
        for number in range(rounds):
            sent = [
                worker.send(
                    Api.PRODUCE, 9, produce_body("t", batch(b"%d" % number), place % 4, -1, 9, 20_000)
                )
                for place, worker in enumerate(workers)
            ]
            for worker, correlation in zip(workers, sent, strict=True):
                assert worker.produced(9, correlation).error_code == Code.NONE
        found = sum(len(read_all(workers[0], partition=index)) for index in range(4))
        assert found == busy * rounds + 4
        assert broker.memory_bytes() - before < 60 * MIB
        for sleeper in sleepers:
            sleeper.close()
        for worker in workers:
            worker.socket.close()
