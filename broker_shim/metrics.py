"""What a broker counts, and the small HTTP port that tells it: /healthz, /readyz, /metrics (Prometheus text), and / is the
page of `logstore.ui`, where only this machine can ask or a token is set.

healthz: the process answers. readyz: it accepts clients, and the store answered when last asked. The counters
are plain integers on the event loop: one addition for each request, no lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from broker_shim.wire.apis import BY_KEY
from logstore.metrics.numbers import BOUNDS, Lags, Sources, families
from logstore.store import Store
from logstore.ui.port import TEXT, Answer
from logstore.writers import WriterMetrics

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Sample = tuple[str, dict[str, str], float]


class Counters:
    """Requests by API, errors by code, bytes in and out, and produce latency as a histogram."""

    def __init__(self) -> None:
        self.requests: dict[int, int] = defaultdict(int)
        self.errors: dict[str, int] = defaultdict(int)
        self.bytes_in = 0
        self.bytes_out = 0
        self.produce_seconds = 0.0
        self._buckets = [0] * (len(LATENCY_BUCKETS_S) + 1)

    def produced(self, seconds: float) -> None:
        self.produce_seconds += seconds
        for place, limit in enumerate(LATENCY_BUCKETS_S):
            if seconds <= limit:
                self._buckets[place] += 1
                return
        self._buckets[-1] += 1

    def samples(self) -> Iterable[Sample]:
        for api, count in sorted(self.requests.items()):
            yield "broker_shim_requests_total", {"api": BY_KEY[api].name}, count
        for code, count in sorted(self.errors.items()):
            yield "broker_shim_errors_total", {"code": code}, count
        yield "broker_shim_produced_bytes_total", {}, self.bytes_in
        yield "broker_shim_fetched_bytes_total", {}, self.bytes_out
        total = 0
        for limit, count in zip((*map(str, LATENCY_BUCKETS_S), "+Inf"), self._buckets, strict=True):
            total += count
            yield "broker_shim_produce_seconds_bucket", {"le": limit}, total
        yield "broker_shim_produce_seconds_sum", {}, self.produce_seconds
        yield "broker_shim_produce_seconds_count", {}, total


def writer_samples(writers: Iterable[WriterMetrics]) -> Iterable[Sample]:
    """What `Store.writer_metrics` says. `…_stalled` is 1 beside the offset that holds the writer."""
    for each in writers:
        labels = {"topic": each.topic, "partition": str(each.partition), "mode": each.mode}
        if each.writer:
            labels["writer"] = each.writer
        yield "broker_shim_writer_epoch", labels, each.epoch
        yield "broker_shim_writer_frontier", labels, each.frontier
        yield "broker_shim_writer_lag", labels, each.lag
        yield "broker_shim_writer_dropped_below_upper_total", labels, each.dropped_below_upper
        yield "broker_shim_writer_races_lost_total", labels, each.races_lost
        yield "broker_shim_writer_last_progress_seconds", labels, each.last_progress_seconds_ago
        yield "broker_shim_writer_stopped", labels, each.state == "stopped"
        yield "broker_shim_writer_stalled", labels, each.stalled_at is not None
        if each.stalled_at is not None:
            yield "broker_shim_writer_stalled_at_offset", labels, each.stalled_at


def store_samples(store: Store, readers: Mapping[str, Callable[[], Lags]]) -> Iterable[Sample]:
    """The families of `logstore.metrics`, the same as an embedded store has."""
    for family, samples in families(Sources(store, readers=readers)):
        for labels, value, buckets in samples:
            if family.kind != "histogram":
                yield family.name, labels, value
                continue
            for bound, count in zip(BOUNDS, buckets, strict=True):
                yield f"{family.name}_bucket", {**labels, "le": bound}, count
            yield f"{family.name}_sum", labels, value
            yield f"{family.name}_count", labels, buckets[-1]


def render(samples: Iterable[Sample]) -> str:
    """Prometheus text format: the samples of one metric stand together, below its type."""
    families: dict[str, list[str]] = {}
    for name, labels, value in samples:
        inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
        # Every digit: a counter that is rounded to six of them stands still, then jumps.
        number = f"{value:d}" if isinstance(value, int) else repr(value)
        family, kind = _family(name)
        lines = families.setdefault(family, [f"# TYPE {family} {kind}"])
        lines.append(f"{name}{{{inside}}} {number}" if inside else f"{name} {number}")
    return "\n".join(line for lines in families.values() for line in lines) + "\n"


def _family(name: str) -> tuple[str, str]:
    """The metric that a sample is part of, and its type: its name says both."""
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix):
            return name.removesuffix(suffix), "histogram"
    return name, "counter" if name.endswith("_total") else "gauge"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def answer(path: str, ready: Callable[[], str | None], samples: Callable[[], Iterable[Sample]]) -> Answer:
    """What the port says of a path that is not the page's. `ready` gives None or a reason."""
    if path == "/healthz":
        return "200 OK", TEXT, "ok\n"
    if path == "/readyz":
        reason = ready()
        return (
            ("200 OK", TEXT, "ready\n")
            if reason is None
            else ("503 Service Unavailable", TEXT, f"{reason}\n")
        )
    if path == "/metrics":
        return "200 OK", "text/plain; version=0.0.4; charset=utf-8", render(samples())
    why = "/healthz, /readyz or /metrics; the page at / needs a loopback address or --ui-token\n"
    return "404 Not Found", TEXT, why
