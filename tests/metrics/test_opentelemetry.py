"""The same numbers on an OpenTelemetry meter, and traces: append → flush → put, read, and nothing left behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import logstore
from logstore.engine.partition.internal import Partition
from logstore.metrics import FAMILIES, context_of, instrument
from logstore.metrics.numbers import Sources, families
from logstore.metrics.tracing import LINKS_MAX
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore


class Otel:
    """A meter and a tracer that keep what they hear."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))

    def numbers(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]


@pytest.fixture
def otel() -> Iterator[Otel]:
    made = Otel()
    yield made
    made.meters.shutdown()


def test_O01_a_meter_has_the_numbers_that_a_collector_has(otel: Otel) -> None:
    with logstore.open(MemoryStore()) as store:
        instrument(store, otel.meters, otel.tracers)
        topic = store.create_topic("t")
        topic.append(b"x")
        topic.append(b"y")
        shown = otel.numbers()
        asked = dict(families(Sources(store)))
    by_name = {family.dotted: family for family in FAMILIES.values()}
    assert set(shown) <= set(by_name)
    for family, samples in asked.items():
        if family.kind != "histogram":
            points = {tuple(sorted(point.attributes.items())): point.value for point in shown[family.dotted]}
            assert points == {tuple(sorted(labels.items())): value for labels, value, _ in samples}
        elif "request" not in family.name:  # opening the store was over before anybody listened
            assert sum(point.count for point in shown[family.dotted]) == sum(
                sample.buckets[-1] for sample in samples
            )


def test_O01_every_store_is_told_on_one_meter_also_one_that_is_opened_again(otel: Otel) -> None:
    """A meter drops the callbacks of a second instrument of the same name."""
    with logstore.open(MemoryStore()) as before:
        before.create_topic("before").append(b"x")
        instrument(before, otel.meters, otel.tracers).stop()
    with logstore.open(MemoryStore()) as orders, logstore.open(MemoryStore()) as audit:
        for name, store in (("orders", orders), ("audit", audit)):
            instrument(store, otel.meters, otel.tracers, name=name)
            store.create_topic("t").append(b"x")
        numbers = otel.numbers()
        for metric in ("logstore.flushes", "logstore.flush_seconds", "logstore.buffered_bytes_limit"):
            assert {point.attributes["store"] for point in numbers[metric]} == {"orders", "audit"}, metric
        assert {point.value for point in numbers["logstore.flushes"]} == {1}


def test_O01_an_append_is_followed_through_flush_and_put_to_whoever_reads_it(otel: Otel) -> None:
    tracer = otel.tracers.get_tracer("test")
    with logstore.open(MemoryStore()) as store:
        instrument(store, otel.meters, otel.tracers)
        topic = store.create_topic("orders")
        topic.partition(0).open_writer()
        otel.spans.clear()
        with tracer.start_as_current_span("checkout") as checkout:
            topic.append(b"paid", headers=[("source", b"web")])
        (sent,) = otel.named("send orders")
        assert sent.parent is not None
        assert sent.parent.span_id == checkout.get_span_context().span_id
        assert sent.attributes is not None
        assert sent.attributes["messaging.destination.name"] == "orders"
        assert sent.attributes["messaging.operation.type"] == "send"
        assert sent.attributes["logstore.offset.first"] == 0
        store.close()
    (flush,) = otel.named("flush orders")
    assert [link.context.span_id for link in flush.links] == [sent.context.span_id]
    (upload,) = [span for span in otel.named("flush lane") if span.context == flush.parent]
    (put,) = [span for span in otel.named("put object") if span.parent == upload.context]
    assert put.attributes is not None
    assert upload.attributes is not None
    assert put.attributes["logstore.key"] == upload.attributes["logstore.key"]
    with logstore.open(store.objects, writer="read_only", cache_bytes=0) as reader:
        instrument(reader, otel.meters, otel.tracers)
        (record,) = reader.topic("orders").partition(0).records()
        assert dict(record.headers)["source"] == b"web"
        found = trace.get_current_span(context_of(record)).get_span_context()
    assert (found.trace_id, found.span_id) == (sent.context.trace_id, sent.context.span_id)
    (received,) = otel.named("receive orders")
    assert any(span.parent == received.context for span in otel.named("get object"))


def test_O01_every_way_to_append_carries_its_context(otel: Otel) -> None:
    with logstore.open(MemoryStore()) as store:
        instrument(store, otel.meters, otel.tracers)
        topic = store.create_topic("t")
        log = topic.partition(0)
        topic.append(b"one", ack="buffered")
        log.append([b"list", logstore.Record(b"of two", key=b"k")])
        topic.append_many([b"many"])
        log.submit(b"submitted").result()
        log.append(bytearray(b"a bytearray"))  # type: ignore[arg-type]
        contexts = [trace.get_current_span(context_of(record)).get_span_context() for record in log.records()]
        values = [record.value for record in log.records()]
        with pytest.raises(logstore.InvalidRecord):
            log.append("text")  # type: ignore[arg-type]
        with pytest.raises(logstore.InvalidRecord):
            log.append([b"good", 7])  # type: ignore[list-item]
    assert values == [b"one", b"list", b"of two", b"many", b"submitted", b"a bytearray"]
    sent = {span.context.span_id for span in otel.named("send t")}
    assert all(context.span_id in sent for context in contexts)


def test_O01_a_record_that_has_no_room_for_its_context_goes_without(otel: Otel) -> None:
    with logstore.open(MemoryStore(), max_batch_bytes=300) as store:
        instrument(store, otel.meters, otel.tracers)
        topic = store.create_topic("t")
        (receipt,) = topic.append_many([b"x" * 200])
        (record,) = topic.partition(0).records()
    assert receipt.offset == 0
    assert record.headers == ()


def test_O01_failed_uploads_are_spans_with_an_error(otel: Otel) -> None:
    objects = FaultyStore(MemoryStore(), seed=1)
    with logstore.open(objects, probe_interval=0.01) as store:
        instrument(store, otel.meters, otel.tracers)
        log = store.create_topic("t").partition(0)
        log.append(b"x")
        objects.fail("put", with_=Fault.UNAVAILABLE)
        log.append(b"y")
    failed = [span for span in otel.named("flush lane") if not span.status.is_ok and span.events]
    assert len(failed) == 1


def test_O01_appends_through_a_lane_are_linked_to_the_flush_that_stored_them(otel: Otel) -> None:
    with logstore.open(MemoryStore(), lanes=1) as store:
        instrument(store, otel.meters, otel.tracers)
        topic = store.create_topic("t", partitions=2)
        for number in (0, 1):
            topic.append(b"x", partition=number)
    sent = {span.context.span_id for span in otel.named("send t")}
    linked = {link.context.span_id for span in otel.named("flush t") for link in span.links}
    assert linked == sent
    points = {point.attributes["topic"]: point.count for point in otel.numbers()["logstore.flush_seconds"]}
    assert points["t"] >= 2


@pytest.mark.parametrize("writer", ["exclusive", "shared"])
def test_O01_nothing_leaks_every_span_ends_and_nothing_is_remembered(otel: Otel, writer: Any) -> None:
    began: list[str] = []
    otel.tracers.add_span_processor(Starts(began))
    with logstore.open(MemoryStore(), writer=writer) as store:
        instrumentation = instrument(store, otel.meters, otel.tracers)
        log = store.create_topic("t").partition(0)
        for _ in range(3 * LINKS_MAX):
            log.append(b"x")
        futures = [log.submit(b"y") for _ in range(3 * LINKS_MAX)]
        for future in futures:
            future.result()
        store.flush()
        remembered = [len(traced.appended) for traced in instrumentation._tracing._partitions.values()]
        assert sum(remembered) <= LINKS_MAX
        assert len(instrumentation._tracing._entries) <= LINKS_MAX
        log.append(b"the last one")
        instrumentation.stop()
        instrumentation.stop()
        assert not instrumentation._tracing._partitions
        assert not set(vars(log._internal)) & {"append_one", "read", "begin_append", "finish_append"}
        heard = len(otel.spans.get_finished_spans())
        log.append(b"nobody listens")
        assert len(otel.spans.get_finished_spans()) == heard
    assert len(otel.spans.get_finished_spans()) == len(began), "each span that began has ended"


def test_O01_a_store_that_is_instrumented_can_be_freed(otel: Otel) -> None:
    gc.collect()
    before = sum(isinstance(each, Partition) for each in gc.get_objects())
    for _ in range(5):
        with logstore.open(MemoryStore()) as store:
            instrumentation = instrument(store, None, otel.tracers)
            store.create_topic("t").append(b"x")
            instrumentation.stop()
        del store, instrumentation
    gc.collect()
    assert sum(isinstance(each, Partition) for each in gc.get_objects()) == before


class Starts(SimpleSpanProcessor):
    """Notes what begins."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(InMemorySpanExporter())
        self._names = names

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._names.append(span.name)
