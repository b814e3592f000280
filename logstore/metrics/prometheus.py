"""The families as `prometheus_client` wants them. Nothing is kept: each scrape asks the store's memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from logstore.metrics.catalogue import FAMILIES, Family
from logstore.metrics.numbers import BOUNDS, Sample, Sources, families


class StoreCollector(Collector):
    """Get it from `logstore.metrics.collector`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for family, samples in families(self._sources):
            yield _metric(family, samples)

    def describe(self) -> Iterable[Metric]:
        """The names, so that registering asks the store for nothing."""
        return [_metric(family, []) for family in FAMILIES.values()]


def _metric(family: Family, samples: list[Sample]) -> Metric:
    metric: Metric
    if family.kind == "histogram":
        metric = HistogramMetricFamily(family.name, family.help)
        for labels, seconds, buckets in samples:
            for bound, count in zip(BOUNDS, buckets, strict=True):
                metric.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
            metric.add_sample(f"{family.name}_count", labels, buckets[-1])
            metric.add_sample(f"{family.name}_sum", labels, seconds)
        return metric
    if family.kind == "counter":
        metric = CounterMetricFamily(family.name.removesuffix("_total"), family.help)
    else:
        metric = GaugeMetricFamily(family.name, family.help)
    for labels, value, _ in samples:
        metric.add_sample(family.name, labels, value)
    return metric
