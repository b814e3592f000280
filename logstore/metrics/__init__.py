"""The numbers of an open store, for Prometheus and for OpenTelemetry, and traces.

`collector(store)` is for `prometheus_client`, `instrument(store)` for OpenTelemetry; both read the same families
(`numbers.families`), whose names are in one table (`catalogue`). Counters are read when somebody asks; latencies are
observed once for each flush and request, never for each record.

May import: `store`, `cost` and what lies below; needs the extra `metrics`. Called by users, `logstore.ui` and the
broker, which serves the same families at its metrics port; `import logstore` does not import it.

>>> import logstore
>>> from prometheus_client import CollectorRegistry, generate_latest
>>> registry = CollectorRegistry()
>>> with logstore.open("memory://metrics-docs") as store:
...     _ = collector(store, registry=registry)
...     _ = store.create_topic("t").append(b"x")
...     b'logstore_appended_records_total{ack="durable",topic="t"} 1.0' in generate_latest(registry)
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from logstore.errors import needs
from logstore.metrics.catalogue import FAMILIES, Family
from logstore.metrics.numbers import Lags, Sources, Tracked, families
from logstore.store import Store

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from logstore.format.batches.record import Record
    from logstore.metrics.opentelemetry import Instrumentation
    from logstore.metrics.prometheus import StoreCollector

__all__ = ["FAMILIES", "Family", "collector", "context_of", "families", "instrument"]

Lag = Callable[[], Lags]
"""Of one reader or group: by how many records each partition is ahead of it. It is called at each scrape."""


def collector(
    store: Store | Mapping[str, Store],
    *,
    registry: CollectorRegistry | None = None,
    by: Literal["topic", "partition"] = "topic",
    readers: Mapping[str, Lag] | None = None,
    trackers: Mapping[str, Tracked] | None = None,
    storage: Literal["standard", "express"] = "standard",
) -> StoreCollector:
    """A collector for `prometheus_client`, registered with `registry` if one is given. It asks the store's memory when it is
    scraped, and nobody else. Several stores of a process go into one: `{"orders": store, "audit": other}`; the label `store`
    then says whose a sample is. Who closes a store unregisters its collector: a registry takes one.

    `by`: one sample a topic (sums, and the worst of lags), or one a partition, with the watermarks. `readers`: names and
    their lag, `{"mailer": group.lag}`. `trackers`: names and the flush trackers of an ingest. `storage`: whose prices
    the bill is in.
    """
    with needs("metrics"):
        from logstore.metrics.prometheus import StoreCollector

    stores = {"": store} if isinstance(store, Store) else store
    sources = [Sources(each, by, storage=storage, name=name) for name, each in stores.items()]
    # What is handed in is of no one store, and told once.
    sources[0] = replace(sources[0], readers=readers or {}, trackers=trackers or {})
    made = StoreCollector(sources)
    if registry is not None:
        try:
            registry.register(made)
        except ValueError as error:
            raise ValueError(
                "the registry has metrics of these names already: `registry.unregister` the collector of a store that is "
                'closed; several stores of a process go into one, `collector({"orders": store, "audit": other})`'
            ) from error
    return made


def instrument(
    store: Store,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    *,
    by: Literal["topic", "partition"] = "topic",
    readers: Mapping[str, Lag] | None = None,
    trackers: Mapping[str, Tracked] | None = None,
    storage: Literal["standard", "express"] = "standard",
    name: str = "",
) -> Instrumentation:
    """OpenTelemetry: the same numbers on a meter, and spans for appends, flushes, requests and reads on a tracer; on the
    global providers if none are given. A record that is appended carries its context in its headers.

    What it gives has `stop()`; closing the store does not stop it. `name`: the attribute `store` of all its numbers, where a
    process has several. The other arguments: as for `collector`.
    """
    with needs("metrics"):
        from logstore.metrics.opentelemetry import Instrumentation

    sources = Sources(store, by, readers or {}, trackers or {}, storage, name)
    return Instrumentation(sources, meter_provider, tracer_provider)


def context_of(record: Record) -> Context:
    """The trace context that a record carries in its headers: the parent, or a link, for a span of whoever works on it."""
    with needs("metrics"):
        from logstore.metrics.tracing import extract

    return extract(record)
