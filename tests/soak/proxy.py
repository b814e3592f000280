"""An S3 gateway that misbehaves: a TCP proxy on loopback between processes and a server.

It knows just enough HTTP to tell requests and answers apart, and passes their bytes through unchanged, so signatures stay
valid. Each client has a port of its own, so it is known whose request it is. What it does to a request:

    cut before      the connection breaks and the server never learns of it
    cut after       it is carried out, and the connection breaks before the answer
    cut answer      half of the answer arrives
    repeat          it is sent twice, and the client gets the second answer: "done, but 412" for a conditional put
    repeat late     the client has its answer, and the same request is carried out again some seconds later
    late            the connection breaks, and the request is carried out some seconds later
    stall           no answer until the client has given up; carried out after that
    slow            it waits a while on its way to the server
    500, 503, 409   that answer, although it was carried out; or, with "not done", without that

Which one is drawn from a seeded rng. (The same seed gives the same draws, not the same run: processes race.)
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Self

HEAD_MAX = 1 << 16
WRITES = ("PUT", "POST", "DELETE")
WRITE_FAULTS = (
    "cut before",
    "cut after",
    "repeat",
    "repeat late",
    "late",
    "stall",
    "slow",
    "500 done",
    "500 not done",
    "503 done",
    "503 not done",
    "409 done",
    "409 not done",
)
READ_FAULTS = ("cut before", "cut after", "cut answer", "slow", "500 not done", "503 not done", "stall")
RARE = ("stall",)  # each takes as long as the client's patience
LATE_MAX_S = 4.0
SLOW_MAX_S = 0.5
_REASONS = {
    "500": (500, "Internal Server Error", "InternalError"),
    "503": (503, "Service Unavailable", ""),  # a gateway's own: it says nothing of what became of the request
    "409": (409, "Conflict", "ConditionalRequestConflict"),
}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    raw: bytes = field(repr=False)
    conditional: bool


@dataclass(frozen=True)
class Answer:
    status: int
    raw: bytes = field(repr=False)
    closes: bool


@dataclass(frozen=True)
class Doom:
    """What happens to a client at its next write: `act` is called before the server has it, or after it was carried out and
    before the answer. `hold_s`: how long the request waits on its way after that."""

    moment: Literal["before", "after"]
    act: Callable[[], None]
    hold_s: float = 0.0


class Proxy:
    """A context manager. `port(client)` opens a way to the server for it; `calm()` ends the mischief."""

    def __init__(
        self,
        host: str,
        port: int,
        seed: int,
        *,
        writes: float = 0.15,
        reads: float = 0.03,
        late_max_s: float = LATE_MAX_S,
    ) -> None:
        """`writes`, `reads`: how many of them are mistreated, from 0 to 1."""
        self.counts: Counter[str] = Counter()
        self._upstream = (host, port)
        self._rng = Random(seed)
        self._writes = writes
        self._reads = reads
        self._late_max_s = late_max_s
        self._calm = False
        self._dooms: dict[str, Doom] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="soak-proxy", daemon=True)
        self._late: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def port(self, client: str) -> int:
        """A port of loopback for that client."""
        port: int = self._run(self._listen(client))
        return port

    def doom(self, client: str, doom: Doom) -> None:
        self._dooms[client] = doom

    def spare(self, client: str) -> bool:
        """Take a doom back. False if it has come to pass, or there was none."""
        return self._dooms.pop(client, None) is not None

    def calm(self) -> None:
        """From now on every request is carried out once, and answered."""

        async def calm() -> None:  # in the loop: no doom comes to pass once this has returned
            self._calm = True
            self._dooms.clear()

        self._run(calm())

    def deliver_late_ones(self) -> None:
        """Wait until every request that was held back has reached the server."""
        self._run(self._delivered())

    # In the loop

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self, client: str) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._clients.add(task)
            try:
                await self._serve(client, reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass  # the client, or the server, is gone
            finally:
                self._clients.discard(task)
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=HEAD_MAX)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for task in (*self._clients, *self._late):
            task.cancel()
        await asyncio.gather(*self._clients, *self._late, return_exceptions=True)

    async def _delivered(self) -> None:
        while self._late:
            await asyncio.gather(*self._late, return_exceptions=True)

    async def _serve(self, client: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await _read_request(reader, writer)) is not None:
            answer = await self._through(client, request, reader)
            if answer is None:
                writer.transport.abort()  # a reset, not an orderly end
                return
            writer.write(answer.raw)
            await writer.drain()
            if answer.closes:
                return

    async def _through(self, client: str, request: Request, reader: asyncio.StreamReader) -> Answer | None:
        """What the client gets; None for a broken connection."""
        self.counts["requests"] += 1
        write = request.method in WRITES
        doom = self._dooms.pop(client, None) if write else None
        if doom is not None and doom.moment == "before":
            doom.act()
            await asyncio.sleep(doom.hold_s)
        fault = None if doom is not None else self._draw(write)
        if fault is not None:
            self.counts[fault] += 1
        answer = await self._faulty(fault, request, reader) if fault else await self._forward(request)
        if doom is not None and doom.moment == "after" and not self._calm:
            doom.act()
            await asyncio.sleep(doom.hold_s)
        return answer

    def _draw(self, write: bool) -> str | None:
        if self._calm or self._rng.random() >= (self._writes if write else self._reads):
            return None
        kinds = WRITE_FAULTS if write else READ_FAULTS
        return self._rng.choices(kinds, [0.3 if kind in RARE else 1.0 for kind in kinds])[0]

    async def _faulty(self, fault: str, request: Request, reader: asyncio.StreamReader) -> Answer | None:
        if fault == "cut before":
            return None
        if fault == "late":
            self._later(request, self._rng.uniform(0.05, self._late_max_s))
            return None
        if fault == "stall":
            await reader.read(1)  # it sends nothing before it has an answer: this is its end
            self._later(request, self._rng.uniform(0.0, self._late_max_s))
            return None
        if fault.endswith("not done"):
            return _made_up(fault[:3], request, slow_down=fault.startswith("503"))
        if fault == "slow":
            await asyncio.sleep(self._rng.uniform(0.0, SLOW_MAX_S))
        answer = await self._forward(request)
        if fault == "cut after":
            return None
        if fault == "cut answer":
            return Answer(answer.status, answer.raw[: len(answer.raw) // 2], closes=True)
        if fault == "repeat late":
            self._later(request, self._rng.uniform(0.05, self._late_max_s))
        if fault == "repeat":
            first, answer = answer, await self._forward(request)
            if first.status == 200 and answer.status == 412:
                self.counts["done, but 412"] += 1
        if fault.endswith(" done"):
            return _made_up(fault[:3], request)
        return answer

    def _later(self, request: Request, seconds: float) -> None:
        async def deliver() -> None:
            await asyncio.sleep(seconds)
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._forward(request)

        task = self._loop.create_task(deliver())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _forward(self, request: Request) -> Answer:
        reader, writer = await asyncio.open_connection(*self._upstream, limit=HEAD_MAX)
        try:
            writer.write(request.raw)
            await writer.drain()
            return await _read_answer(reader, request.method)
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, fields = _fields(head)
    if "expect" in fields:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await _read_body(reader, fields)
    method, path, _ = first.split(" ", 2)
    return Request(method, path, head + (body or b""), "if-none-match" in fields or "if-match" in fields)


async def _read_answer(reader: asyncio.StreamReader, method: str) -> Answer:
    status = 100
    while status < 200:
        head = await reader.readuntil(b"\r\n\r\n")
        first, fields = _fields(head)
        version, code = first.split(" ")[:2]
        status = int(code)
    closes = version == "HTTP/1.0" or fields.get("connection", "").lower() == "close"
    if method == "HEAD" or status in (204, 304):
        return Answer(status, head, closes)
    body = await _read_body(reader, fields)
    if body is None:  # it ends with the connection
        return Answer(status, head + await reader.read(-1), closes=True)
    return Answer(status, head + body, closes)


def _fields(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes | None:
    """None if neither its length nor its pieces are told."""
    if "chunked" in fields.get("transfer-encoding", "").lower():
        parts = []
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            parts += [line, await reader.readexactly(size + 2)] if size else [line]
            if not size:
                while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
                    parts.append(trailer)
                return b"".join([*parts, b"\r\n"])
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    return None


def _made_up(kind: str, request: Request, *, slow_down: bool = False) -> Answer:
    """`slow_down`: S3's own 503, which says that nothing was done."""
    status, reason, code = _REASONS[kind]
    code = "SlowDown" if slow_down else code
    body = f"<Error><Code>{code}</Code><Message>made up</Message></Error>" if code else "<html>made up</html>"
    sent = "" if request.method == "HEAD" else body
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/xml\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    return Answer(status, (head + sent).encode(), closes=False)
