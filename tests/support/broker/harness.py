"""Brokers for tests: one in this process, on a loop and thread of its own, or a real one in another process.

The first lets a test hold or fail the store's calls; the second can be killed.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from broker_shim.config import BrokerConfig
from broker_shim.server import Server
from broker_shim.wire import messages, primitives
from broker_shim.wire.apis import Api
from broker_shim.wire.messages import Message
from logstore import PartitionLog
from logstore.objects import ObjectStore
from tests.support.cpu_clock import cpu_seconds_of
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

T = TypeVar("T")


class LocalBroker:
    """A broker on a thread of its own, over any object store. `loop_factory` picks the event loop."""

    def __init__(
        self,
        objects: ObjectStore,
        *,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
        **settings: Any,
    ) -> None:
        defaults = {
            "store": "memory://unused",
            "listen": "127.0.0.1:0",
            "group_initial_rebalance_delay": 0.05,
            "group_min_session_timeout": 0.5,
        }
        self.config = BrokerConfig(**{**defaults, **settings})
        self.server = Server(self.config, objects)
        self._loop = loop_factory()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-broker")

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.server.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.server.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()

    def run(self, work: Awaitable[T]) -> T:
        """Run a coroutine on the broker's loop and wait for it."""

        async def await_it() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(await_it(), self._loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the broker's loop: what it sees is consistent."""
        done: Future[T] = Future()

        def carry_out() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(carry_out)
        return done.result(PATIENCE_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let the broker's loop turn until the condition holds there."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    await asyncio.sleep(0.002)

        self.run(wait())

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        """The partition's log, as the broker holds it."""
        return self.server.store.topic(topic).partition(partition)


def as_users_have_it(module: str) -> list[str]:
    """`python -m module`, without hypothesis: kio teaches it its types wherever it can import it, which takes a fifth of a
    broker's start."""
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"import runpy, sys; sys.modules['hypothesis'] = None; {run}"]


class BrokerProcess:
    """`python -m broker_shim` as a user starts it."""

    def __init__(self, store: str, *flags: str, port: int | None = None, log: Path | None = None) -> None:
        self.port = port if port is not None else free_port()
        self._flags = flags
        self._store = store
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.metrics_port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> Self:
        command = [*as_users_have_it("broker_shim"), "--store", self._store, "--listen", self.address]
        stderr = self._log.open("ab") if self._log is not None else subprocess.DEVNULL
        self.process = subprocess.Popen([*command, *self._flags], stdout=subprocess.PIPE, stderr=stderr)
        if self._log is not None:
            stderr.close()  # type: ignore[union-attr]
        line = self._first_line()
        if not line.startswith("ready on port"):
            self.kill()
            why = self._log.read_text(errors="replace")[-2000:] if self._log is not None else "it kept no log"
            raise AssertionError(f"the broker said {line!r} where it says that it is ready: {why}")
        self.metrics_port = int(line.split()[-1])
        return self

    def _first_line(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            in_time = selector.select(PATIENCE_S)
        return self.process.stdout.readline().decode() if in_time else "nothing"

    def kill(self) -> None:
        """Kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._close()

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self._close()
        return code

    def _close(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.stdout.close()

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self.pid)

    def memory_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()


class Wire:
    """A client without opinions: it sends exactly what a test says."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.unsent = memoryview(b"")
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api: Api, version: int, body: bytes) -> int:
        self._correlation += 1
        header = struct.pack(">hhi", api, version, self._correlation) + primitives.string("test", False)
        if version >= api.flexible_from:
            header += b"\0"
        frame = header + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        return self._correlation

    def receive(self) -> bytes:
        """The next answer, whole; an empty one means that the broker has hung up."""
        head = self._exactly(4)
        return self._exactly(struct.unpack(">i", head)[0]) if head else b""

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return b""
            if not piece:
                return b""
            data += piece
        return bytes(data)

    def ask(self, api: Api, version: int, **values: Any) -> Message:
        """One request by schema, one answer by schema."""
        correlation = self.send(api, version, messages.encode_request(api, version, values))
        return self.answer(api, version, correlation)

    def answer(self, api: Api, version: int, correlation: int) -> Message:
        frame = self.receive()
        assert frame, "the broker has hung up"
        assert struct.unpack_from(">i", frame)[0] == correlation, "answers come in the order of requests"
        start = 4 + (1 if version >= api.flexible_from and api is not Api.API_VERSIONS else 0)
        return messages.decode_response(api, version, frame, start)

    def produce(
        self,
        topic: str,
        records: bytes,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = 9,
        timeout: int = 10_000,
    ) -> Any:
        """Produce one record set and return the partition's answer; None for acks=0."""
        correlation = self.send(
            Api.PRODUCE, version, produce_body(topic, records, partition, acks, version, timeout)
        )
        if acks == 0:
            return None
        return self.produced(version, correlation)

    def produced(self, version: int, correlation: int) -> Any:
        response = self.answer(Api.PRODUCE, version, correlation)
        return response.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, partition: int = 0, version: int = 11, **options: Any) -> Any:
        """Fetch one partition and return its answer."""
        correlation = self.send_fetch(topic, offset, partition=partition, version=version, **options)
        return self.fetched(version, correlation)

    def send_fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int = 11,
        wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_bytes: int = 1 << 20,
        isolation: int = 0,
        leader_epoch: int = -1,
    ) -> int:
        values = {
            "max_wait": wait_ms,
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "isolation_level": isolation,
            "session_epoch": -1,
            "rack_id": "",
            "topics": [
                {
                    "topic": topic,
                    "partitions": [
                        {
                            "partition": partition,
                            "current_leader_epoch": leader_epoch,
                            "fetch_offset": offset,
                            "partition_max_bytes": partition_bytes,
                        }
                    ],
                }
            ],
        }
        return self.send(Api.FETCH, version, messages.encode_request(Api.FETCH, version, values))

    def fetched(self, version: int, correlation: int) -> Any:
        response = self.answer(Api.FETCH, version, correlation)
        return response.responses[0].partitions[0]


def produce_body(topic: str, records: bytes, partition: int, acks: int, version: int, timeout: int) -> bytes:
    values = {
        "transactional_id": None,
        "acks": acks,
        "timeout": timeout,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
    }
    return messages.encode_request(Api.PRODUCE, version, values)
