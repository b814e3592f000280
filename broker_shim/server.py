"""The listener: accepts clients, watches over them, drains on the way out.

Stopping: accept nobody, finish the requests that are being served (fetches answer at once with what they have,
joins with where to go instead), close the connections, make every record durable, sign off. A second signal does not
wait.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time

import logstore
from broker_shim.broker import Broker
from broker_shim.config import BrokerConfig, parse_address
from broker_shim.metrics import Sample, answer
from broker_shim.net.connection import Connection
from broker_shim.net.request_memory import RequestMemory
from broker_shim.partitions.cluster import Node, new_incarnation
from logstore.objects import ObjectStore
from logstore.store import Store
from logstore.ui.port import Answer, HttpPort, page_of
from logstore.ui.view import View

log = logging.getLogger(__name__)
SWEEP_EVERY_S = 5.0
HANDSHAKE_TIMEOUT_S = 15.0
BACKLOG = 1024
RECEIVE_BUFFER_BYTES = 256 << 10


class Server:
    """One broker on one port. `await start()`, then `await stop()`; `port` is where it listens."""

    def __init__(self, config: BrokerConfig, objects: ObjectStore | None = None) -> None:
        """`objects`: a store to use in place of the one that `config.store` names (tests count its requests)."""
        self.config = config
        self._objects = objects
        self._connections: set[Connection] = set()
        self._memory = RequestMemory(config.max_request_memory)
        self._received = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._listener: asyncio.Server | None = None
        self._http: HttpPort | None = None
        self._page: View | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._draining = False
        self.store: Store
        self.broker: Broker
        self.port = 0
        self.metrics_port = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        config = self.config
        where = self._objects if self._objects is not None else config.store
        self.store = await loop.run_in_executor(None, self._open_store, where)
        host, port = parse_address(config.listen)
        # The port must be known before clients are told of it, so sockets are bound first and served last.
        self._listener = await loop.create_server(
            self._new_connection,
            host,
            port,
            ssl=_tls(config),
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if config.tls_cert else None,
            backlog=BACKLOG,
            start_serving=False,
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        shown, shown_port = parse_address(config.advertise) if config.advertise else (host, 0)
        started_ms = int(time.time() * 1000)
        me = Node(config.node_id, shown, shown_port or self.port, new_incarnation(), started_ms, config.rack)
        self.broker = Broker(self.store, config, me, loop)
        # Before others learn of this broker: one that cannot start must not be left standing there as alive.
        if config.metrics:
            known = self.broker.coordinated
            found = page_of(
                self.store,
                parse_address(config.metrics)[0],
                config.ui_token or None,
                known.groups,
                known.transactions,
            )
            self._page = None if found is None else found[1]
            self._http = HttpPort(self._answer, None if found is None else found[0])
            self.metrics_port = await self._http.start(*parse_address(config.metrics))
        await self.broker.start()
        await self._listener.start_serving()
        self._sweeper = loop.create_task(self._sweep())
        log.info("listening on %s:%d, store %s", host, self.port, config.store)

    def _open_store(self, where: str | ObjectStore) -> Store:
        config = self.config
        return logstore.open(
            where,
            flush_interval=config.flush_interval,
            lanes=config.lanes,
            durable_linger=config.durable_linger,
            flush_bytes=config.flush_bytes,
            max_buffered_bytes=config.max_buffered_bytes,
            cache_bytes=config.cache_bytes,
            # What a topic may set its own limit to; the broker's default is kept in front of the log.
            max_batch_bytes=max(
                config.max_message_bytes, min(config.max_frame_bytes, config.max_buffered_bytes)
            ),
            # Appends are handed over on the event loop: a full buffer is an error at once, and the queue in
            # front of the partition waits for room.
            append_timeout=0.0,
            # Which broker owns which partition is the brokers' business: one that takes it was asked to.
            take_over=True,
        )

    def _new_connection(self) -> Connection:
        connection = Connection(
            self.broker,
            self.config,
            self._memory,
            self._connections,
            asyncio.get_running_loop(),
            self._received,
        )
        if len(self._connections) >= self.config.max_connections or self._draining:
            connection.turn_away()
        return connection

    async def _sweep(self) -> None:
        """Close who sends half a request, does not read, or has been silent for long."""
        loop = asyncio.get_running_loop()
        config = self.config
        every = min(SWEEP_EVERY_S, config.stall_timeout / 2, config.answer_timeout / 2)
        while True:
            await asyncio.sleep(every)
            now = loop.time()
            slow: list[tuple[int, Connection]] = []
            unsent = 0
            for connection in tuple(self._connections):
                waiting = connection.look(now)
                unsent += waiting.unsent_bytes
                if waiting.half_frame_s > config.stall_timeout:
                    connection.close("half a request, and no more of it came")
                elif waiting.unread_s > config.answer_timeout:
                    connection.close("it does not read its answers")
                elif waiting.idle_s > config.idle_timeout:
                    connection.finish()
                elif waiting.unread_s > 0:
                    slow.append((waiting.unsent_bytes, connection))
            self._shed(unsent, slow)

    def _shed(self, unsent: int, slow: list[tuple[int, Connection]]) -> None:
        """Too much is held for clients that do not read: drop those who hold most."""
        for size, connection in sorted(slow, key=lambda entry: entry[0], reverse=True):
            if unsent <= self.config.max_unsent_bytes:
                return
            connection.close(f"{size} bytes of answers unread, and memory is short")
            unsent -= size

    async def stop(self) -> bool:
        """Drain and close. Safe to call once; what is not durable in time is logged, and makes it False."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.config.drain_timeout
        self._draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._listener is not None:
            self._listener.close()
        self.broker.begin_drain()
        for connection in tuple(self._connections):
            connection.stop_reading()
        while any(each.is_busy for each in self._connections) and loop.time() < deadline:
            await asyncio.sleep(0.01)
            self.broker.begin_drain()
        for connection in tuple(self._connections):
            connection.finish()
        clean = await self.broker.stop(max(1.0, deadline - loop.time()))
        if self._http is not None:
            await self._http.stop()
        if self._page is not None:
            self._page.stop()
        log.info("stopped")
        return clean

    def _not_ready(self) -> str | None:
        if self._sweeper is None:
            return "starting"
        return "stopping" if self._draining else self.broker.problem

    def _answer(self, path: str) -> Answer:
        return answer(path, self._not_ready, self._samples)

    def _samples(self) -> list[Sample]:
        own: list[Sample] = [
            ("broker_shim_connections", {}, len(self._connections)),
            ("broker_shim_request_memory_bytes", {}, self._memory.used),
        ]
        return [*own, *self.broker.samples()]


def _tls(config: BrokerConfig) -> ssl.SSLContext | None:
    if not config.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except OSError as error:  # it does not say which file
        raise OSError(f"--tls-cert {config.tls_cert}, --tls-key {config.tls_key}: {error}") from error
    if config.tls_client_ca:
        try:
            context.load_verify_locations(config.tls_client_ca)
        except OSError as error:
            raise OSError(f"--tls-client-ca {config.tls_client_ca}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
