"""The numbers of a store at one moment, by family: from memory alone, it asks nobody and never blocks.

How much was appended is stored + held + dropped, so an append pays nothing for being counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple, Protocol

from logstore.cost.bill import dollars_so_far
from logstore.cost.prices import CLASSES
from logstore.engine.host.counters import Histogram, PartitionCounters
from logstore.engine.partition.health import PartitionHealth, StoreHealth
from logstore.engine.write.writer_health import WriterHealth
from logstore.metrics.catalogue import FAMILIES, Family
from logstore.objects.wrappers.metered import LATENCY_BOUNDS_S
from logstore.store import Store

Labels = dict[str, str]
BOUNDS = (*(f"{bound:g}" for bound in LATENCY_BOUNDS_S), "+Inf")


class PartitionLag(Protocol):
    """What a group says of one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def records(self) -> int: ...


Lags = Mapping[tuple[str, int], int] | Iterable[PartitionLag]
"""By how many records each partition is ahead of a reader or a group."""


class _Holder(Protocol):
    @property
    def owed_for_s(self) -> float: ...


class _Explanation(Protocol):
    @property
    def held_by(self) -> Sequence[_Holder]: ...


class Tracked(Protocol):
    """What is asked of a `FlushTracker`."""

    @property
    def outstanding(self) -> int: ...
    def explain(self, limit: int = 10) -> _Explanation: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """What is measured, and how it is cut: see `logstore.metrics.collector`."""

    store: Store
    by: Literal["topic", "partition"] = "topic"
    readers: Mapping[str, Callable[[], Lags]] = field(default_factory=dict)
    trackers: Mapping[str, Tracked] = field(default_factory=dict)
    storage: Literal["standard", "express"] = "standard"
    name: str = ""

    @property
    def own_labels(self) -> Labels:
        """Of every number of this store, where a process has several."""
        return {"store": self.name} if self.name else {}

    def __post_init__(self) -> None:
        if self.by not in ("topic", "partition"):
            raise ValueError(f"by={self.by!r}: it is topic or partition")
        if self.storage not in CLASSES:
            raise ValueError(f"storage={self.storage!r}: it is one of {', '.join(CLASSES)}")


class Sample(NamedTuple):
    """One number. A histogram is one sample: its cumulative `buckets` by `BOUNDS`, and the sum of seconds as its value."""

    labels: Labels
    value: float
    buckets: tuple[int, ...] = ()


Numbers = dict[str, list[Sample]]


def families(sources: Sources) -> Iterator[tuple[Family, list[Sample]]]:
    """Every family that has something to say, in the catalogue's order."""
    found = _Found(sources).numbers
    for name, family in FAMILIES.items():
        if name in found:
            yield family, found[name]


class _Found:
    """One scrape."""

    def __init__(self, sources: Sources) -> None:
        self.numbers: Numbers = defaultdict(list)
        self._sources = sources
        self._own_labels: Labels = {}
        self._handed_in()  # of no one store
        self._own_labels = sources.own_labels
        store = sources.store
        health = store._health_report()
        self._store(store, health)
        self._requests(store)
        self._partitions(store, health)

    def _add(self, name: str, value: float, **labels: str) -> None:
        self.numbers[f"logstore_{name}"].append(Sample(self._own_labels | labels, value))

    def _histogram(self, name: str, counts: Sequence[int], seconds: float, **labels: str) -> None:
        self.numbers[f"logstore_{name}"].append(
            Sample(self._own_labels | labels, seconds, tuple(accumulate(counts)))
        )

    def _store(self, store: Store, health: StoreHealth) -> None:
        from logstore import __version__

        runtime = store._runtime
        oldest = store._metered.oldest()
        self._add("info", 1, version=__version__, writer=store.config.writer)
        self._add("buffered_bytes", health.buffered_bytes)
        self._add("buffered_bytes_limit", health.buffered_bytes_limit)
        self._add("buffer_waits_total", runtime.budget.waits)
        self._add("buffer_wait_seconds_total", runtime.budget.waited_s)
        self._add("buffer_full_total", runtime.budget.refused)
        self._add("cached_bytes", health.cached_bytes)
        self._add("cache_hits_total", runtime.cache.hits)
        self._add("cache_misses_total", runtime.cache.misses)
        self._add("store_reachable", health.store_reachable)
        self._add("store_degraded", health.degraded is not None)
        self._add("store_stalled", health.stalled)
        self._add("unanswered_seconds", 0.0 if oldest is None else oldest[2])
        self._add("request_retries_total", store._retrying.retries)

    def _requests(self, store: Store) -> None:
        counted = store.metrics()
        dollars = dollars_so_far(counted, CLASSES[self._sources.storage])
        for operation, stats in sorted(counted.items()):
            self._add(
                "requests_total",
                stats.requests - sum(stats.errors.values()),
                operation=operation,
                outcome="ok",
            )
            for error, count in sorted(stats.errors.items()):
                self._add("requests_total", count, operation=operation, outcome=error)
            self._add("request_bytes_total", stats.bytes, operation=operation)
            self._add("cost_dollars_total", dollars[operation], operation=operation)
            self._histogram("request_seconds", stats.latency_buckets, stats.seconds, operation=operation)

    def _partitions(self, store: Store, health: StoreHealth) -> None:
        cut = self._sources.by
        healths: dict[tuple[str, ...], list[PartitionHealth]] = defaultdict(list)
        counts: dict[tuple[str, ...], list[PartitionCounters]] = defaultdict(list)
        for each in health.partitions:
            healths[_place(cut, each.topic, each.partition)].append(each)
        for topic, partition, counted in store._runtime.counters.all():
            counts[_place(cut, topic, partition)].append(counted)
        for place in sorted(healths.keys() | counts.keys()):
            labels = dict(zip(("topic", "partition"), place, strict=False))
            self._appended(labels, healths[place], counts[place])
            self._now(labels, healths[place])
            self._so_far(labels, counts[place])
        if cut == "partition":
            for each in health.partitions:
                self._marks(each)

    def _appended(
        self, labels: Labels, healths: list[PartitionHealth], counts: list[PartitionCounters]
    ) -> None:
        """Those that asked for a durable or a local ack were counted; the rest asked for none but the buffer's."""
        writers = [each.writer for each in healths if each.writer is not None]
        records = sum(count.stored_records + count.dropped_records for count in counts)
        records += sum(writer.unflushed_records for writer in writers)
        durable = sum(count.durable_records for count in counts)
        local = sum(count.local_records for count in counts)
        for ack, value in (
            ("durable", durable),
            ("local", local),
            ("buffered", max(0, records - durable - local)),
        ):
            self._add("appended_records_total", value, **labels, ack=ack)
        charged = sum(count.stored_charged + count.dropped_charged for count in counts)
        self._add(
            "appended_bytes_total", charged + sum(writer.unflushed_bytes for writer in writers), **labels
        )

    def _now(self, labels: Labels, healths: list[PartitionHealth]) -> None:
        writers = [each.writer for each in healths if each.writer is not None]
        self._add("durable_lag_records", sum(writer.unflushed_records for writer in writers), **labels)
        self._add(
            "durable_lag_seconds",
            max((writer.unflushed_seconds for writer in writers), default=0.0),
            **labels,
        )
        states: dict[str, int] = defaultdict(int)
        for each in healths:
            states[each.state] += 1
        for state, count in sorted(states.items()):
            self._add("partitions", count, **labels, state=state)
        lags = [writer.lag for each in healths for writer in _writers(each)]
        self._add("writer_lag", max(lags, default=0), **labels)
        self._add("segments", sum(each.overview.segments for each in healths if each.overview), **labels)

    def _so_far(self, labels: Labels, counts: list[PartitionCounters]) -> None:
        for name, counter in (
            ("flushes_total", "flushes"),
            ("flushed_records_total", "stored_records"),
            ("flushed_bytes_total", "stored_bytes"),
            ("flush_failures_total", "failures"),
            ("fenced_total", "fenced"),
            ("races_lost_total", "races_lost"),
            ("dropped_records_total", "dropped_records"),
        ):
            self._add(name, sum(getattr(count, counter) for count in counts), **labels)
        for name, counter in (
            ("flush_seconds", "flush_seconds"),
            ("durable_ack_seconds", "durable_ack"),
            ("local_ack_seconds", "local_ack"),
        ):
            several: list[Histogram] = [getattr(count, counter) for count in counts]
            summed = [sum(column) for column in zip(*(each.counts for each in several), strict=True)]
            if any(summed):
                self._histogram(name, summed, sum(each.seconds for each in several), **labels)

    def _marks(self, each: PartitionHealth) -> None:
        if each.overview is None:
            return
        labels, marks = {"topic": each.topic, "partition": str(each.partition)}, each.overview.marks
        self._add("writer_epoch", each.overview.epoch, **labels)
        self._add("low_watermark", marks.low, **labels)
        self._add("durable_high_watermark", marks.durable, **labels)
        self._add("buffered_high_watermark", marks.buffered, **labels)

    def _handed_in(self) -> None:
        for reader, lag in sorted(self._sources.readers.items()):
            for (topic, partition), behind in sorted(_lags(lag())):
                self._add("reader_lag_records", behind, reader=reader, topic=topic, partition=str(partition))
        for name, tracker in sorted(self._sources.trackers.items()):
            self._add("tracker_outstanding", tracker.outstanding, tracker=name)
            oldest = max((holder.owed_for_s for holder in tracker.explain(1).held_by), default=0.0)
            self._add("tracker_oldest_seconds", oldest, tracker=name)


def _lags(told: Lags) -> Iterator[tuple[tuple[str, int], int]]:
    if isinstance(told, Mapping):
        yield from told.items()
    else:
        for each in told:
            yield (each.topic, each.partition), each.records


def _place(cut: str, topic: str, partition: int) -> tuple[str, ...]:
    return (topic,) if cut == "topic" else (topic, str(partition))


def _writers(each: PartitionHealth) -> tuple[WriterHealth, ...]:
    return each.replicated if each.writer is None else (each.writer, *each.replicated)
