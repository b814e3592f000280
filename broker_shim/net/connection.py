"""One client: frames in, answers out, in the order of the requests, with a bound on everything.

* Requests are *started* in the order they came. Produce requests overlap (so that many share one upload), and so
  do questions about offsets, which change nothing; a member may leave while its join waits; any other request runs
  alone. So at most one fetch response of a client is ever held in memory.
* Answers leave in the order of the requests, whatever order they become ready in.
* Reading stops while too many requests wait, while the client does not read its answers, and while all
  connections together hold `max_request_memory`. TCP then slows the client down, and only this one.
* Small frames are cut out of one receive buffer that all connections of a loop share: a read and its processing
  happen in one step of the loop, so nobody else can be in it. A large frame gets a buffer of its own, which the
  socket fills directly; its pages are touched only as bytes arrive, so a length alone costs no memory.
* A connection whose bytes make no sense is closed. No other connection notices.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy

from broker_shim.wire import primitives
from broker_shim.wire.apis import Api
from broker_shim.wire.primitives import MalformedRequest, RequestHeader

if TYPE_CHECKING:
    from broker_shim.net.request_memory import RequestMemory

log = logging.getLogger(__name__)
_LENGTH = struct.Struct(">i")
MAX_BYTES_BEFORE_LOGIN = 64 << 10
"""A stranger needs room for his password, not for records."""
SMALL_BYTES = 4 << 10
"""A frame of this size is welcome whatever it is."""
Parts = Sequence[bytes | memoryview]


class Limits(Protocol):
    """The part of the configuration that a connection obeys."""

    @property
    def max_frame_bytes(self) -> int: ...
    @property
    def max_control_bytes(self) -> int: ...
    @property
    def max_inflight(self) -> int: ...


class Dispatcher(Protocol):
    """Who serves requests. `None`: there is no answer (acks=0)."""

    @property
    def needs_login(self) -> bool: ...

    def dispatch(
        self, connection: Connection, header: RequestHeader, frame: memoryview
    ) -> Parts | asyncio.Future[Parts] | None: ...


class Closing(Protocol):
    """What is kept for a client, by whoever serves it, until it goes."""

    def close(self) -> None: ...


class Waiting(NamedTuple):
    """For how long a client has sent half a frame, has left answers unread, has asked for nothing."""

    half_frame_s: float
    unread_s: float
    idle_s: float
    unsent_bytes: int


@dataclass(slots=True, eq=False)
class _Slot:
    """A request's place in the order of answers."""

    header: RequestHeader
    charged: int
    answer: Parts | None = None
    running: asyncio.Future[Parts] | None = None


class Connection(asyncio.BufferedProtocol):
    """`principal` is None until the client has proved who it is; `login_ends`: when it must have done so again; `closing` is
    set once it is on its way out."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        limits: Limits,
        memory: RequestMemory,
        registry: set[Connection],
        loop: asyncio.AbstractEventLoop,
        shared: memoryview,
    ) -> None:
        self._shared = shared
        self._dispatcher = dispatcher
        self._limits = limits
        self._memory = memory
        self._small = min(SMALL_BYTES, limits.max_control_bytes, limits.max_frame_bytes)
        self._registry = registry
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._partial = b""
        self._frame: memoryview | None = None
        self._filled = 0
        self._charged = 0
        self._waiting: deque[tuple[RequestHeader, memoryview, int]] = deque()
        self._slots: deque[_Slot] = deque()
        self._write_paused = False
        self._read_paused = False
        self._starved = False
        self._turned_away = False
        self._draining = False
        self.closing = False
        self.close_after_answer = False
        self.principal: str | None = None
        self.login_ends: float | None = None
        self.sasl: Any = None
        self.fetches: Closing | None = None
        self.peer = "?"
        self.last_activity = loop.time()
        self._unsent_before = 0
        self._stuck_since: float | None = None

    # ── the transport's side ─────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = client = cast(asyncio.Transport, transport)
        name = client.get_extra_info("peername")
        self.peer = str(name[0]) if name else "?"
        if self._turned_away:
            client.abort()
            return
        self._registry.add(self)

    def turn_away(self) -> None:
        """There are too many clients: this one is dropped before it can say anything."""
        self._turned_away = True

    def stop_reading(self) -> None:
        """The broker stops: what is here is still served, nothing more is taken."""
        self._draining = True
        self._regulate()

    def connection_lost(self, error: Exception | None) -> None:
        self.closing = True
        self._registry.discard(self)
        held = self._charged - self._memory.forget(self)
        held += sum(slot.charged for slot in self._slots)
        held += sum(charged for _, _, charged in self._waiting)
        self._memory.release(held)
        for slot in self._slots:
            # A fetch only waits, and nobody waits for it any more. Whatever changes something runs to its
            # end.
            if slot.running is not None and slot.header.api_key == Api.FETCH:
                slot.running.cancel()
        self._charged = 0
        self._slots.clear()
        self._waiting.clear()
        self._frame = None
        if self.fetches is not None:
            self.fetches.close()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._regulate()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._start_waiting()

    def get_buffer(self, hint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._shared

    def buffer_updated(self, count: int) -> None:
        self.last_activity = self._loop.time()
        if self._frame is None:
            self._cut(self._shared[:count])
            return
        self._filled += count
        if self._filled == len(self._frame):
            frame, charged = self._frame, self._charged
            self._frame, self._charged = None, 0
            self._arrived(frame, charged)

    # ── frames ───────────────────────────────────────────────────────────────────────────────────────────

    def _cut(self, data: memoryview) -> None:
        """Take whole frames out of the shared buffer; what is left over must be copied before we return."""
        if self._partial:
            data = memoryview(b"".join((self._partial, data)))
            self._partial = b""
        position, end = 0, len(data)
        while end - position >= 4 and not self.closing:
            size = _LENGTH.unpack_from(data, position)[0]
            start = position + 4
            if not 8 <= size <= self._small and not self._is_welcome(size, data[start : start + 2]):
                return
            if end - start < size:
                self._begin_large(size, data[start:end])
                return
            # A copy, because the log keeps a reference to what producers send and the buffer is used again.
            self._arrived(memoryview(bytes(data[start : start + size])), 0)
            position = start + size
        self._partial = bytes(data[position:end])

    def _is_welcome(self, size: int, api_key: memoryview) -> bool:
        """Is this a length that we accept? The API key may not have arrived yet: then the larger limit holds."""
        is_produce = len(api_key) < 2 or bytes(api_key) == b"\x00\x00"
        limit = self._limits.max_frame_bytes if is_produce else self._limits.max_control_bytes
        if self.principal is None and self._dispatcher.needs_login:
            limit = MAX_BYTES_BEFORE_LOGIN
        if 8 <= size <= limit:
            return True
        self.close(f"a frame of {size} bytes; at most {limit} are accepted")
        return False

    def _begin_large(self, size: int, start: memoryview) -> None:
        """`numpy.empty` and not `bytearray`: the latter would write zeros into every page at once."""
        self._frame = numpy.empty(size, numpy.uint8).data
        self._frame[: len(start)] = start
        self._filled = len(start)
        self._charged = size
        self._starved = not self._memory.reserve(size, self)
        self._regulate()

    def memory_granted(self) -> None:
        """The bytes that `_begin_large` asked for are ours."""
        self._starved = False
        self._regulate()

    def _arrived(self, frame: memoryview, charged: int) -> None:
        try:
            header = primitives.read_header(frame)
        except MalformedRequest as error:
            self._memory.release(charged)
            self.close(str(error))
            return
        if header.api_key != Api.PRODUCE and len(frame) > self._limits.max_control_bytes:
            self._memory.release(charged)
            self.close(f"a request of {len(frame)} bytes for API {header.api_key}")
            return
        self._waiting.append((header, frame, charged))
        self._start_waiting()

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────

    def _start_waiting(self) -> None:
        while self._waiting and not self._write_paused and not self.closing:
            header = self._waiting[0][0]
            if self._slots and not self._may_overlap(header):
                break
            _, frame, charged = self._waiting.popleft()
            self._start(header, frame, charged)
        self._regulate()

    def _may_overlap(self, header: RequestHeader) -> bool:
        """A produce behind produces whose records are in their queues already; a task may not have come so far.

        And a question about offsets behind others of its kind: librdkafka asks for each partition by itself, and each
        answer may need a partition to be opened. And who leaves a group need not wait until the others have joined.
        """
        last = self._slots[-1]
        if header.api_key == Api.LEAVE_GROUP and last.header.api_key in (Api.JOIN_GROUP, Api.SYNC_GROUP):
            return True
        if header.api_key != last.header.api_key or len(self._slots) >= self._limits.max_inflight:
            return False
        if header.api_key == Api.PRODUCE:
            return not isinstance(last.running, asyncio.Task)
        return header.api_key == Api.LIST_OFFSETS

    def _start(self, header: RequestHeader, frame: memoryview, charged: int) -> None:
        try:
            answer = self._dispatcher.dispatch(self, header, frame)
        except MalformedRequest as error:
            self._memory.release(charged)
            self.close(f"API {header.api_key} v{header.version}: {error}")
            return
        if answer is None:
            self._memory.release(charged)
            return
        slot = _Slot(header, charged)
        self._slots.append(slot)
        if isinstance(answer, asyncio.Future):
            slot.running = answer
            answer.add_done_callback(lambda done: self._finished(slot, done))
        else:
            slot.answer = answer
            self._send_ready()

    def _finished(self, slot: _Slot, done: asyncio.Future[Parts]) -> None:
        if self.closing or done.cancelled():
            return
        error = done.exception()
        if error is not None:
            header = slot.header
            self.close(f"API {header.api_key} v{header.version} failed: {error!r}")
            if not isinstance(error, MalformedRequest):
                self._loop.call_exception_handler({"message": "a request failed", "exception": error})
            return
        slot.answer = done.result()
        self._send_ready()
        self._start_waiting()

    def _send_ready(self) -> None:
        out: list[bytes | memoryview] = []
        while self._slots and self._slots[0].answer is not None:
            slot = self._slots.popleft()
            answer = slot.answer
            assert answer is not None
            header = slot.header
            if slot.charged:
                self._memory.release(slot.charged)
            if not answer:
                continue  # acks=0: the request is done, and there is nothing to say
            head = primitives.response_header(header.api_key, header.version, header.correlation_id)
            size = len(head) + sum(map(len, answer))
            out.append(_LENGTH.pack(size) + head)
            out.extend(answer)
        if out and self._transport is not None:
            self._transport.writelines(out)
        if self.close_after_answer:
            self.finish()

    # ── flow ─────────────────────────────────────────────────────────────────────────────────────────────

    def _regulate(self) -> None:
        """Read only while what we read can be served."""
        pause = self._write_paused or self._starved or self._draining or bool(self._waiting)
        if pause is self._read_paused or self._transport is None or self.closing:
            return
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
        self._read_paused = pause

    def look(self, now: float) -> Waiting:
        """The state of this client. Called once in a while: progress is measured since the last call."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if not self._write_paused or unsent < self._unsent_before:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        self._unsent_before = unsent
        half = (self._frame is not None or bool(self._partial)) and not self._read_paused
        return Waiting(
            half_frame_s=now - self.last_activity if half else 0.0,
            unread_s=now - self._stuck_since if self._stuck_since is not None else 0.0,
            idle_s=0.0 if self._slots or self._waiting else now - self.last_activity,
            unsent_bytes=unsent,
        )

    @property
    def is_busy(self) -> bool:
        return bool(self._slots or self._waiting)

    def close(self, why: str = "") -> None:
        """Drop the client. `why` is for the log: nothing is sent, since it would not be understood."""
        if self.closing or self._transport is None:
            return
        self.closing = True
        if why:
            log.warning("closing %s: %s", self.peer, why)
        self._transport.abort()

    def finish(self) -> None:
        """Close once everything written so far has left."""
        if not self.closing and self._transport is not None:
            self.closing = True
            self._transport.close()

    @property
    def tls_principal(self) -> str | None:
        """The subject of the client's certificate, if it showed one."""
        assert self._transport is not None
        certificate = self._transport.get_extra_info("peercert")
        return subject_name(certificate) if certificate else None


def subject_name(certificate: dict[str, Any]) -> str:
    """The subject as Kafka writes it: `CN=writer,O=Shop`, the most specific part first."""
    parts = [pair for group in certificate.get("subject", ()) for pair in group]
    return ",".join(f"{_SHORT.get(name, name)}={value}" for name, value in reversed(parts))


_SHORT = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
}
