"""The families as `prometheus_client` wants them. Nothing is kept: each scrape asks the store's memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from logstore.metrics.catalogue import FAMILIES, Family
from logstore.metrics.numbers import BOUNDS, Numbers, Sample, Sources, families


class StoreCollector(Collector):
    """Get it from `logstore.metrics.collector`."""

    def __init__(self, sources: Sequence[Sources]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        found: Numbers = defaultdict(list)
        for each in self._sources:
            for family, samples in families(each):
                found[family.name] += samples
        for name, family in FAMILIES.items():
            if name in found:
                yield _metric(family, found[name])

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
