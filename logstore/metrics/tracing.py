"""Spans for what a store does: append → flush → put, and read, with the names of OpenTelemetry's messaging conventions.

An append is a span of its caller's trace (`send orders`), and its context goes along in the record's headers, where whoever
reads the record finds it (`logstore.metrics.context_of`). A flush (`flush orders`) runs later, for many appends at once, so
it is a trace of its own that links to them; the requests it makes are its children. What goes through a lane is stored for
many partitions at a time: `flush lane` is the upload, with its requests and a `flush orders` for each partition below it. A
read (`receive orders`) has the requests that it makes as its children.

A partition is traced by replacing the methods of that one object: where nobody traces, an append does not even ask. What is
remembered until the next flush is bounded: at most `LINKS_MAX` appends for each partition.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from time import time_ns
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from logstore.engine.host.counters import UNOBSERVED, Flush, FlushDone
from logstore.engine.memory.results import Receipt
from logstore.engine.partition.internal import Partition
from logstore.engine.write.admission import Run
from logstore.errors import RecordTooLarge
from logstore.format.batches.record import Header, Record
from logstore.objects.wrappers.metered import Request

LINKS_MAX = 128
_TRACED = (
    "append_one",
    "begin_append",
    "begin_checked",
    "begin_append_batches",
    "submit_batches",
    "finish_append",
    "read",
)

Appended = deque[tuple[Receipt, SpanContext]]


def extract(record: Record) -> Context:
    """The context in a record's headers."""
    carrier = {name: value.decode("latin-1") for name, value in record.headers if value is not None}
    return propagate.extract(carrier)


class StoreTracing:
    """All traced partitions of a store. `stop` gives every method back."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._partitions: dict[tuple[str, int], _TracedPartition] = {}
        self._lock = threading.Lock()  # guards the entries
        self._entries: dict[str, SpanContext] = {}
        """The last `LINKS_MAX` uploads of lanes, by key."""

    def opened(self, partition: Partition) -> None:
        """From now on its appends and reads are spans."""
        key = partition.topic, partition.partition
        known = self._partitions.get(key)
        appended: Appended = deque(maxlen=LINKS_MAX) if known is None else known.appended
        self._partitions[key] = _TracedPartition(partition, self._tracer, appended)

    def stop(self) -> None:
        for traced in self._partitions.values():
            traced.stop()
        self._partitions.clear()
        self._entries.clear()

    @contextmanager
    def flush(self, topic: str, partition: int) -> Iterator[Flush]:
        """Around one upload. Its span ends with it, whatever becomes of it."""
        attributes = _attributes(topic, partition, "flush")
        # A trace of its own: what it stores is of many traces, which it links to.
        with self._tracer.start_as_current_span(
            f"flush {topic}", Context(), SpanKind.INTERNAL, attributes, set_status_on_exception=True
        ) as span:
            traced = self._partitions.get((topic, partition))
            yield _TracedFlush(span, traced.appended if traced is not None else deque())

    @contextmanager
    def flush_entry(self, key: str) -> Iterator[Flush]:
        """Around one upload of a lane's entry."""
        with self._tracer.start_as_current_span(
            "flush lane",
            Context(),
            attributes={"messaging.system": "logstore", "logstore.key": key},
            set_status_on_exception=True,
        ) as span:
            with self._lock:
                self._entries[key] = span.get_span_context()
                if len(self._entries) > LINKS_MAX:
                    del self._entries[next(iter(self._entries))]
            yield UNOBSERVED

    def stored_in_entry(self, topic: str, partition: int, done: FlushDone, key: str) -> None:
        """What of this partition was in an upload of a lane: a child of that."""
        with self._lock:
            uploaded = self._entries.get(key)
        above = Context() if uploaded is None else set_span_in_context(NonRecordingSpan(uploaded), Context())
        now = time_ns()
        began = now - int((done.seconds or 0.0) * 1e9)
        attributes = _attributes(topic, partition, "flush")
        span = self._tracer.start_span(f"flush {topic}", above, attributes=attributes, start_time=began)
        traced = self._partitions.get((topic, partition))
        _TracedFlush(span, traced.appended if traced is not None else deque()).done(done)
        span.end(now)

    def requested(self, request: Request) -> None:
        """A request that was made inside of a flush or a read is a child of that."""
        if not trace.get_current_span().is_recording():
            return
        now = time_ns()
        span = self._tracer.start_span(
            f"{request.operation} object",
            kind=SpanKind.CLIENT,
            start_time=now - int(request.seconds * 1e9),
            attributes={
                "logstore.operation": request.operation,
                "logstore.key": request.key,
                "logstore.bytes": request.bytes,
            },
        )
        if request.error is not None:
            span.record_exception(request.error)
            span.set_status(Status(StatusCode.ERROR, type(request.error).__name__))
        span.end(now)


class _TracedFlush(Flush):
    def __init__(self, span: Span, appended: Appended) -> None:
        self._span = span
        self._appended = appended

    def done(self, flushed: FlushDone) -> None:
        """Links to those appends whose records it has stored; what came before it is forgotten, too."""
        for _ in range(len(self._appended)):
            receipt, context = self._appended.popleft()
            if receipt.offset >= flushed.end_offset or receipt.offset < 0:
                self._appended.append((receipt, context))
            elif receipt.offset >= flushed.base_offset:
                self._span.add_link(context)
        self._span.set_attributes(
            {
                "logstore.offset.first": flushed.base_offset,
                "logstore.offset.end": flushed.end_offset,
                "logstore.bytes": flushed.size,
                "messaging.batch.message_count": flushed.end_offset - flushed.base_offset,
            }
        )

    def failed(self, error: Exception) -> None:
        _failed(self._span, error)


class _TracedPartition:
    """Replaces methods of one `Partition` object by traced ones."""

    def __init__(self, partition: Partition, tracer: Tracer, appended: Appended) -> None:
        self.appended = appended
        self._partition = partition
        self._tracer = tracer
        self._one = threading.local()  # the span of the append that this thread is inside of
        self._was: dict[str, Callable[..., Any]] = {name: getattr(partition, name) for name in _TRACED}
        for name in _TRACED:
            setattr(partition, name, getattr(self, name))

    def stop(self) -> None:
        for name in _TRACED:
            vars(self._partition).pop(name, None)

    def _span(self, what: str, kind: SpanKind) -> Span:
        partition = self._partition
        attributes = _attributes(partition.topic, partition.partition, what)
        return self._tracer.start_span(f"{what} {partition.topic}", kind=kind, attributes=attributes)

    # Appending

    def append_one(
        self, value: object, key: object, headers: Any, timestamp_ms: object, ack: object, timeout: object
    ) -> Receipt:
        span = self._span("send", SpanKind.PRODUCER)
        with trace.use_span(span, end_on_exit=True):
            self._one.span = span
            try:
                receipt: Receipt = self._was["append_one"](
                    value, key, (*headers, *_context_headers()), timestamp_ms, ack, timeout
                )
            finally:
                self._one.span = None
            _acked(span, receipt)
            if receipt.durability == "buffered":
                self.appended.append((receipt, span.get_span_context()))
            return receipt

    def finish_append(self, begun: tuple[tuple[Receipt, Future[Receipt] | None], float]) -> Receipt:
        """What an append that waits calls: it has its place by now, and the flush that stores it is not over. What was
        begun apart is remembered already."""
        span: Span | None = getattr(self._one, "span", None)
        if span is not None:
            self.appended.append((begun[0][0], span.get_span_context()))
        receipt: Receipt = self._was["finish_append"](begun)
        return receipt

    def begin_append(self, records: Any, **options: Any) -> Any:
        span = self._span("send", SpanKind.PRODUCER)
        with trace.use_span(span):
            return self._began(span, self._was["begin_append"], _with_context(records), **options)

    def begin_checked(self, checked: list[Run], **options: Any) -> Any:
        span = self._span("send", SpanKind.PRODUCER)
        with trace.use_span(span):
            records = [record for run in checked for record in run.records]
            with suppress(RecordTooLarge):  # it fits without the context, so it goes without
                checked = self._partition.check_records(_with_context(records))
            return self._began(span, self._was["begin_checked"], checked, **options)

    def begin_append_batches(self, raw: object, **options: Any) -> Any:
        span = self._span("send", SpanKind.PRODUCER)
        with trace.use_span(span):
            return self._began(span, self._was["begin_append_batches"], raw, **options)

    def submit_batches(self, raw: object, **options: Any) -> Future[Receipt]:
        span = self._span("send", SpanKind.PRODUCER)
        with trace.use_span(span):
            try:
                future: Future[Receipt] = self._was["submit_batches"](raw, **options)
            except BaseException:
                span.end()
                raise
            self._end_with(span, future)
            return future

    def _began(self, span: Span, call: Callable[..., Any], what: object, **options: Any) -> Any:
        """The append has its place; its span ends with its ack."""
        try:
            begun = call(what, **options)
        except BaseException:
            span.end()
            raise
        (receipt, future), _ = begun
        self.appended.append((receipt, span.get_span_context()))
        if future is None:
            _acked(span, receipt)
            span.end()
        else:
            self._end_with(span, future)
        return begun

    def _end_with(self, span: Span, future: Future[Receipt]) -> None:
        def ended(done: Future[Receipt]) -> None:
            if done.cancelled():
                span.set_status(Status(StatusCode.ERROR, "nobody waits for the ack any longer"))
            elif (error := done.exception()) is not None:
                _failed(span, error)
            else:
                _acked(span, done.result())
            span.end()

        future.add_done_callback(ended)

    # Reading

    def read(self, offset: int, *args: Any, **options: Any) -> Any:
        span = self._span("receive", SpanKind.CONSUMER)
        with trace.use_span(span, end_on_exit=True):
            span.set_attribute("logstore.offset.first", offset)
            result = self._was["read"](offset, *args, **options)
            span.set_attributes(
                {
                    "logstore.offset.end": result.next_offset,
                    "logstore.bytes": len(result.raw),
                    "logstore.source": result.source,
                }
            )
            return result


def _with_context(records: Any) -> Any:
    """The same records with the current context in their headers. What is none is left to be refused as it is."""
    more = _context_headers()
    if isinstance(records, Record | bytes | bytearray | memoryview):
        return _one_with(records, more)
    if isinstance(records, str):
        return records
    try:
        return [_one_with(record, more) for record in records]
    except TypeError:
        return records


def _one_with(record: Any, more: tuple[Header, ...]) -> Any:
    if isinstance(record, bytes | bytearray | memoryview):
        return Record(bytes(record), headers=more)
    if isinstance(record, Record):
        return record._replace(headers=(*record.headers, *more))
    return record


def _context_headers() -> tuple[Header, ...]:
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple((name, value.encode("latin-1")) for name, value in carrier.items())


def _attributes(topic: str, partition: int, operation: str) -> dict[str, str]:
    found = {
        "messaging.system": "logstore",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
        "messaging.operation.name": operation,
    }
    if operation != "flush":  # which is none of the conventions' types
        found["messaging.operation.type"] = operation
    return found


def _acked(span: Span, receipt: Receipt) -> None:
    span.set_attributes(
        {
            "logstore.offset.first": receipt.offset,
            "logstore.offset.end": receipt.last_offset + 1,
            "logstore.durability": receipt.durability,
        }
    )


def _failed(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
