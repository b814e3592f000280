"""Requests to other brokers: one connection for each, many requests on their way, answers in their order.

A request fails with OSError or EOFError if the connection does, and the next one opens another. What became of a request
without an answer nobody knows: callers ask again, and what they ask for may be done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from broker_shim.wire import messages, primitives
from broker_shim.wire.apis import Api
from broker_shim.wire.messages import Message

CONNECT_PATIENCE_S = 5.0
MAX_ANSWER_BYTES = 16 << 20
_HEAD = struct.Struct(">hhi")
_I32 = struct.Struct(">i")
Address = tuple[str, int]


class Login(NamedTuple):
    """How a broker proves to another who it is: SASL PLAIN."""

    username: str
    password: str


def login_from(file: str) -> Login | None:
    """`{"username": …, "password": …}`; no file, no login."""
    return Login(**json.loads(Path(file).read_text())) if file else None


def tls_of(cert: str, key: str, authorities: str) -> ssl.SSLContext | None:
    """The other brokers are set up as this one: with TLS if it has a certificate, which it shows them."""
    if not cert:
        return None
    context = ssl.create_default_context(cafile=authorities or None)
    context.load_cert_chain(cert, key)
    return context


class Peers:
    def __init__(self, name: str, tls: ssl.SSLContext | None = None, login: Login | None = None) -> None:
        """`name`: what the other's log calls us."""
        self._name = name
        self._tls = tls
        self._login = login
        self._links: dict[Address, _Link] = {}

    async def ask(self, address: Address, api: Api, version: int, values: Mapping[str, Any]) -> Message:
        link = self._links.get(address)
        if link is None or link.is_broken:
            link = self._links[address] = _Link(address, self._name, self._tls, self._login)
        return await link.ask(api, version, values)

    def close(self) -> None:
        for link in self._links.values():
            link.close()


class _Link:
    def __init__(self, address: Address, name: str, tls: ssl.SSLContext | None, login: Login | None) -> None:
        self._address, self._name, self._tls, self._login = address, name, tls, login
        self._connecting: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._correlation = 0
        self.is_broken = False

    async def ask(self, api: Api, version: int, values: Mapping[str, Any]) -> Message:
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())
        try:
            await asyncio.wait_for(asyncio.shield(self._connecting), CONNECT_PATIENCE_S)
        except (OSError, TimeoutError):
            self.close()
            raise
        return await self._ask(api, version, values)

    async def _connect(self) -> None:
        reader, self._writer = await asyncio.open_connection(*self._address, ssl=self._tls)
        self._reading = asyncio.ensure_future(self._read(reader))
        if self._login is not None:
            await self._log_in(self._login)

    async def _log_in(self, login: Login) -> None:
        await self._ask(Api.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        proof = f"\0{login.username}\0{login.password}".encode()
        answer = await self._ask(Api.SASL_AUTHENTICATE, 0, {"auth_bytes": proof})
        if answer.error_code:
            raise PermissionError(f"{self._address[0]}:{self._address[1]} does not know {login.username}")

    async def _ask(self, api: Api, version: int, values: Mapping[str, Any]) -> Message:
        if self._writer is None or self.is_broken:
            raise ConnectionError("the connection was lost")
        self._correlation += 1
        head = _HEAD.pack(api, version, self._correlation) + primitives.string(self._name, False)
        flexible = version >= api.flexible_from
        frame = head + (b"\0" if flexible else b"") + messages.encode_request(api, version, values)
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._correlation, answered))
        self._writer.write(_I32.pack(len(frame)) + frame)
        answer = await answered
        return messages.decode_response(api, version, answer, 5 if flexible else 4)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand answers out until the connection ends."""
        why: BaseException = ConnectionError("the connection was closed")
        try:
            while True:
                (size,) = _I32.unpack(await reader.readexactly(4))
                if not 4 <= size <= MAX_ANSWER_BYTES:
                    raise ConnectionError(f"an answer of {size} bytes")
                frame = await reader.readexactly(size)
                number, answered = self._waiting.popleft()
                if _I32.unpack_from(frame)[0] != number:
                    raise ConnectionError("an answer to another question")
                if not answered.done():
                    answered.set_result(frame)
        except (OSError, EOFError, IndexError) as error:
            why = error
        finally:
            self.close(why)

    def close(self, why: BaseException | None = None) -> None:
        self.is_broken = True
        for task in (self._connecting, self._reading):
            if task is not None and not task.done() and task is not _current_task():
                task.cancel()
        if self._writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.close()
        waiting, self._waiting = self._waiting, deque()
        for _, answered in waiting:
            if not answered.done():
                answered.set_exception(why if isinstance(why, OSError) else ConnectionError(str(why)))


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
