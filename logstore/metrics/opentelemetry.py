"""The same numbers on an OpenTelemetry meter, and spans on a tracer.

Counters and gauges are observable: read when the reader collects, all of one collection from one look at the store.
OpenTelemetry has no observable histogram, so the latencies are recorded as they come: once for each flush, fsync and
request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.trace import TracerProvider

from logstore.engine.host.counters import Flush, FlushDone, Observer
from logstore.engine.partition.internal import Partition
from logstore.metrics.catalogue import FAMILIES
from logstore.metrics.numbers import Numbers, Sources, families
from logstore.metrics.tracing import StoreTracing
from logstore.objects.wrappers.metered import LATENCY_BOUNDS_S, Request
from logstore.objects.wrappers.slices import whole

_SAME_LOOK_S = 0.5
_SCOPE = "logstore"


_observed: WeakKeyDictionary[object, WeakSet[Instrumentation]] = WeakKeyDictionary()
_observing = threading.Lock()  # guards it


class _TheGlobalOne:
    """Stands for the global provider, which may be set later."""


_GLOBAL = _TheGlobalOne()


def _observed_on(meter: Meter, provider: MeterProvider | None) -> WeakSet[Instrumentation]:
    """Whose numbers the observable instruments of this meter tell; they are made if it has none.

    A meter keeps the callbacks of whoever names an instrument first, for ever, and drops those of all others: a second
    store, or one that was opened again, would be told by nobody. So callbacks hold no store, and ask all that are here.
    """
    whose = _GLOBAL if provider is None else provider
    with _observing:
        found = _observed.get(whose)
        if found is None:
            found = _observed[whose] = WeakSet()
            for family in FAMILIES.values():
                told = [_telling(family.name, found)]
                if family.kind == "counter":
                    meter.create_observable_counter(family.dotted, told, family.unit, family.help)
                elif family.kind == "gauge":
                    meter.create_observable_gauge(family.dotted, told, family.unit, family.help)
        return found


def _telling(
    name: str, observed: WeakSet[Instrumentation]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def tell(options: CallbackOptions) -> Iterator[Observation]:
        for each in list(observed):
            for labels, value, _ in each._numbers().get(name, []):
                yield Observation(value, labels)

    return tell


class Instrumentation(Observer):
    """Get it from `logstore.metrics.instrument`. `stop()` ends it: the store is as it was, and the meter gets no more."""

    def __init__(
        self, sources: Sources, meter_provider: MeterProvider | None, tracer_provider: TracerProvider | None
    ) -> None:
        from logstore import __version__

        self._sources = sources
        self._own_labels = sources.own_labels
        self._stopped = False
        self._looked: tuple[float, Numbers] = (float("-inf"), {})
        meter = metrics.get_meter(_SCOPE, __version__, meter_provider)
        tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider)
        self._observed = _observed_on(meter, meter_provider)
        self._observed.add(self)

        def histogram(name: str) -> metrics.Histogram:
            family = FAMILIES[name]
            return meter.create_histogram(
                family.dotted, family.unit, family.help, explicit_bucket_boundaries_advisory=LATENCY_BOUNDS_S
            )

        self._flush_seconds = histogram("logstore_flush_seconds")
        self._durable_ack_seconds = histogram("logstore_durable_ack_seconds")
        self._local_ack_seconds = histogram("logstore_local_ack_seconds")
        self._request_seconds = histogram("logstore_request_seconds")
        self._tracing = StoreTracing(tracer)
        store = sources.store
        self._before = store._runtime.observer
        store._runtime.observer = self
        store._metered.listeners = (*store._metered.listeners, self._requested)
        for partition in store._all_logs():
            self._tracing.opened(partition)

    def stop(self) -> None:
        """A second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self._observed.discard(self)
        store = self._sources.store
        store._runtime.observer = self._before
        store._metered.listeners = tuple(
            known for known in store._metered.listeners if known != self._requested
        )
        self._tracing.stop()

    # Asked

    def _numbers(self) -> Numbers:
        """One look serves all instruments of one collection, which come one after the other."""
        now = time.monotonic()
        looked, numbers = self._looked
        if now - looked > _SAME_LOOK_S:
            numbers = {family.name: samples for family, samples in families(self._sources)}
            self._looked = now, numbers
        return numbers

    # Told

    def opened(self, partition: object) -> None:
        if isinstance(partition, Partition):
            self._tracing.opened(partition)

    def flush(self, topic: str, partition: int) -> AbstractContextManager[Flush]:
        return self._tracing.flush(topic, partition)

    def _labels(self, topic: str, partition: int) -> dict[str, str]:
        place = (
            {"topic": topic} if self._sources.by == "topic" else {"topic": topic, "partition": str(partition)}
        )
        return self._own_labels | place

    def local_ack(self, topic: str, partition: int, seconds: float) -> None:
        self._local_ack_seconds.record(seconds, self._labels(topic, partition))

    def flush_entry(self, key: str) -> AbstractContextManager[Flush]:
        return self._tracing.flush_entry(key)

    def stored(self, topic: str, partition: int, done: FlushDone, slice_key: str | None = None) -> None:
        labels = self._labels(topic, partition)
        if slice_key is not None:
            self._tracing.stored_in_entry(topic, partition, done, whole(slice_key))
        if done.seconds is not None:
            self._flush_seconds.record(done.seconds, labels)
        if done.waited is not None:
            self._durable_ack_seconds.record(done.waited, labels)

    def _requested(self, request: Request) -> None:
        self._request_seconds.record(request.seconds, self._own_labels | {"operation": request.operation})
        self._tracing.requested(request)
