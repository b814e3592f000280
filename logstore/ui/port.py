"""HTTP for the page: one file, three questions, and a stream of server-sent events. GET only, loopback or a token.

Without a token only a browser on this machine may ask, and only by a name of this machine: a page from elsewhere whose name
points here (DNS rebinding) is refused. With one, every request must carry it.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

from logstore.errors import LogStoreError
from logstore.metrics.numbers import Lags, Tracked
from logstore.store import Store
from logstore.ui.refresher import Asked
from logstore.ui.view import View

EVERY_S = 1.0
FIRST_S = 0.05
"""Between the first two events; then twice that, up to `EVERY_S`, so that what is first asked of the store is soon shown."""
TOLD_MAX = 4
ASKED_MAX = 8
"""Threads, for what is told from memory and for what is asked of the store: no question waits for one."""
HEAD_MAX = 8192
HEAD_TIMEOUT_S = 5.0
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TEXT = "text/plain; charset=utf-8"
Answer = tuple[str, str, str]
"""Status, content type and body."""


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Page:
    """Answers what belongs to the page; `owns` says what does. `token`: None on loopback."""

    def __init__(self, view: View, token: str | None) -> None:
        self._view = view
        self._token = token
        self._html = files("logstore.ui").joinpath("page.html").read_bytes()
        # Two, so that questions which wait for a store that hangs leave a thread to those that are told from memory.
        self._telling = ThreadPoolExecutor(TOLD_MAX, "logstore-ui-telling")
        self._asking = ThreadPoolExecutor(ASKED_MAX, "logstore-ui-asking")
        self._asked = 0

    def close(self) -> None:
        """What still waits for the store ends by itself."""
        self._telling.shutdown(wait=False)
        self._asking.shutdown(wait=False)

    def owns(self, path: str) -> bool:
        return path in ("/", "/events") or path.startswith("/api/")

    async def respond(self, target: str, head: str, writer: asyncio.StreamWriter) -> None:
        """Answer one request; a stream of events ends when its reader has gone."""
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        refused = self._refused(query, head)
        if refused is not None:
            _send(writer, "403 Forbidden", TEXT, refused.encode())
        elif parts.path == "/":
            _send(writer, "200 OK", "text/html; charset=utf-8", self._html)
        elif parts.path == "/events":
            await self._events(query, writer)
            return
        else:
            status, body = await self._answer(parts.path, query)
            _send(writer, status, "application/json", json.dumps(body).encode())
        await writer.drain()

    def _refused(self, query: dict[str, str], head: str) -> str | None:
        if self._token is not None:
            given = query.get("token", "")
            return (
                None
                if hmac.compare_digest(given.encode(), self._token.encode())
                else "the token is missing or wrong\n"
            )
        for line in head.split("\r\n")[1:]:
            name, _, value = line.partition(":")
            if name.strip().lower() == "host":
                host = value.strip().rpartition(":")[0] or value.strip()
                return None if is_loopback(host) else "ask by 127.0.0.1 or localhost\n"
        return "a request names its host\n"

    async def _events(self, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        topic, first = query.get("topic"), _number(query.get("first"))
        topics: object = None
        pause = FIRST_S
        while not writer.is_closing():
            state = await asyncio.get_running_loop().run_in_executor(
                self._telling, self._view.now, topic, first
            )
            if state["topics"] == topics:  # it may be long, and hardly ever changes
                del state["topics"]
            else:
                topics = state["topics"]
            writer.write(b"data: " + json.dumps(state).encode() + b"\n\n")
            await writer.drain()
            await asyncio.sleep(pause)
            pause = min(2 * pause, EVERY_S)

    async def _answer(self, path: str, query: dict[str, str]) -> tuple[str, object]:
        loop = asyncio.get_running_loop()
        if path == "/api/now":
            topic, first = query.get("topic") or None, _number(query.get("first"))
            return "200 OK", await loop.run_in_executor(self._telling, self._view.now, topic, first)
        if self._asked >= ASKED_MAX:
            return "503 Service Unavailable", {"error": f"{ASKED_MAX} questions wait for the store already"}
        self._asked += 1
        try:
            return await loop.run_in_executor(self._asking, self._ask, path, query)
        finally:
            self._asked -= 1

    def _ask(self, path: str, query: dict[str, str]) -> tuple[str, object]:
        topic, partition = query.get("topic", ""), _number(query.get("partition"))
        try:
            if path == "/api/segments":
                return "200 OK", self._view.segments(topic, partition)
            if path == "/api/records":
                offset, count = _number(query.get("offset")), _number(query.get("count"), 20)
                return "200 OK", self._view.records(topic, partition, offset, count)
        except (LogStoreError, OSError, ValueError) as error:
            return "400 Bad Request", {"error": f"{type(error).__name__}: {error}"}
        return "404 Not Found", {"error": "/api/now, /api/segments or /api/records"}


def _number(text: str | None, default: int = 0) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else default


def _send(writer: asyncio.StreamWriter, status: str, content: str, body: bytes) -> None:
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {len(body)}\r\nCache-Control: no-store\r\n"
        f"Content-Security-Policy: {_POLICY}\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
        "Connection: close\r\n\r\n".encode()
        + body
    )


class HttpPort:
    """GET only, one request for a connection, everything else is refused. `answer` says what there is at a path that the
    `page` does not own; `page` is None where there is no page. Runs on the event loop."""

    def __init__(self, answer: Callable[[str], Answer], page: Page | None) -> None:
        self._answer = answer
        self._page = page
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Returns the port that it listens on."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_MAX)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._page is not None:
            self._page.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._tasks.add(task)
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, _, rest = head.partition(" ")
            target = rest.split(" ")[0]
            path = urlsplit(target).path
            if method != "GET":
                _send(writer, "405 Method Not Allowed", TEXT, b"GET only\n")
            elif self._page is not None and self._page.owns(path):
                await self._page.respond(target, head, writer)
            else:
                status, content, body = self._answer(path)
                _send(writer, status, content, body.encode())
            await writer.drain()
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a browser or a probe that went away, or no HTTP at all: nobody is left to tell
        except asyncio.CancelledError:
            pass  # the server ends: this is the end of the task, and nobody waits for it
        finally:
            self._tasks.discard(task)
            writer.close()


class Served:
    """A page that is being served, from a thread of its own. `url` is where; `close()` ends it. A context manager."""

    def __init__(self, page: Page, view: View, host: str, port: int, token: str | None) -> None:
        self._port = HttpPort(lambda path: ("404 Not Found", TEXT, "the page is at /\n"), page)
        self._view = view
        self._loop = asyncio.new_event_loop()
        bound: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(host, port, bound), name="logstore-ui-port", daemon=True
        )
        self._thread.start()
        try:
            self.port = bound.result()
        except Exception:
            page.close()
            view.stop()
            raise
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/" + (f"?token={token}" if token else "")

    def _run(self, host: str, port: int, bound: Future[int]) -> None:
        try:
            bound.set_result(self._loop.run_until_complete(self._port.start(host, port)))
        except Exception as error:  # a port that is taken, and what is no port or host at all
            self._loop.close()
            bound.set_exception(error)
            return
        self._loop.run_forever()
        self._loop.run_until_complete(self._port.stop())
        self._loop.close()

    def close(self) -> None:
        """A second call does nothing."""
        if not self._loop.is_closed():
            with suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._view.stop()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    store: Store,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    token: str | None = None,
    readers: Mapping[str, Callable[[], Lags]] | None = None,
    trackers: Mapping[str, Tracked] | None = None,
    groups: Asked | None = None,
) -> Served:
    """Serve the page of an open store, read-only. `port` 0 takes a free one: `url` says which.

    Anywhere but on loopback it takes a `token`, without which nobody gets an answer: the page shows records. `readers` and
    `trackers`: as for `logstore.metrics.collector`. `groups` asks the store for its groups of readers while somebody looks.
    """
    if token is None and not is_loopback(host):
        raise ValueError(
            f"host={host!r} can be reached from elsewhere, and the page shows records: pass a token"
        )
    view = View(store, readers, trackers, groups)
    return Served(Page(view, token), view, host, port, token)


def page_of(
    store: Store, host: str, token: str | None, groups: Asked, transactions: Asked
) -> tuple[Page, View] | None:
    """The page for a port that serves other things, too; None if it is open to others and there is no token."""
    if token is None and not is_loopback(host):
        return None
    view = View(store, groups=groups, transactions=transactions)
    return Page(view, token), view
