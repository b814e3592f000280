"""Every metric of an embedded store: its name, kind, labels and meaning. docs/metrics.md is compared with this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """`name`: as Prometheus shows it; a counter's ends with `_total`. `labels`: all that a sample may have. `whole`:
    only with `by="partition"`. OpenTelemetry's name has dots and no `_total`: see `dotted`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    whole: bool = False

    @property
    def dotted(self) -> str:
        return self.name.removesuffix("_total").replace("logstore_", "logstore.", 1)

    @property
    def unit(self) -> str:
        """UCUM's, for OpenTelemetry."""
        for word, unit in (
            ("seconds", "s"),
            ("bytes", "By"),
            ("records", "{record}"),
            ("dollars", "{dollar}"),
        ):
            if word in self.name:
                return unit
        return "1"


_TOPIC = ("topic",)
_PLACE = ("topic", "partition")

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "logstore_info",
            "gauge",
            "1; the labels say which version and which kind of writer",
            ("version", "writer"),
        ),
        # appends
        Family(
            "logstore_appended_records_total",
            "counter",
            "records taken, by the ack that was asked for",
            ("topic", "ack"),
        ),
        Family(
            "logstore_appended_bytes_total",
            "counter",
            "bytes of the records taken, as charged to the buffer",
            _TOPIC,
        ),
        Family(
            "logstore_durable_ack_seconds",
            "histogram",
            "from append to durable, of the oldest record of each flush",
            _TOPIC,
        ),
        Family(
            "logstore_local_ack_seconds",
            "histogram",
            "from append to the local ack, of the oldest record of each fsync",
            _TOPIC,
        ),
        # memory
        Family(
            "logstore_buffered_bytes", "gauge", "bytes that wait to be stored, uploads under way included"
        ),
        Family("logstore_buffered_bytes_limit", "gauge", "max_buffered_bytes"),
        Family("logstore_buffer_waits_total", "counter", "appends that had to wait for room in the buffer"),
        Family("logstore_buffer_wait_seconds_total", "counter", "for how long they waited, in all"),
        Family(
            "logstore_buffer_full_total",
            "counter",
            "appends that were refused with BufferFull for want of room",
        ),
        Family("logstore_cached_bytes", "gauge", "segments in memory, for readers"),
        Family("logstore_cache_hits_total", "counter", "pieces of segments that a reader found in memory"),
        Family("logstore_cache_misses_total", "counter", "pieces of segments that had to be loaded"),
        # flushes
        Family(
            "logstore_durable_lag_records", "gauge", "records taken and not yet in the object store", _TOPIC
        ),
        Family("logstore_durable_lag_seconds", "gauge", "for how long the oldest of them has waited", _TOPIC),
        Family("logstore_flushes_total", "counter", "segments committed", _TOPIC),
        Family("logstore_flushed_records_total", "counter", "records in them", _TOPIC),
        Family("logstore_flushed_bytes_total", "counter", "bytes of these objects", _TOPIC),
        Family(
            "logstore_flush_seconds",
            "histogram",
            "from the start of a segment's upload to its commit",
            _TOPIC,
        ),
        Family("logstore_flush_failures_total", "counter", "uploads that failed and are tried again", _TOPIC),
        # writers
        Family("logstore_partitions", "gauge", "partitions in use, by state", ("topic", "state")),
        Family("logstore_fenced_total", "counter", "writers here that another one took over from", _TOPIC),
        Family(
            "logstore_races_lost_total",
            "counter",
            "commits of shared and replicated writers that came second",
            _TOPIC,
        ),
        Family(
            "logstore_dropped_records_total",
            "counter",
            "records that a writer held when it stopped for good",
            _TOPIC,
        ),
        Family("logstore_writer_lag", "gauge", "by how much the partition is ahead of a writer here", _TOPIC),
        Family("logstore_writer_epoch", "gauge", "the epoch of the last writer seen", _PLACE, whole=True),
        Family("logstore_low_watermark", "gauge", "the first offset there is", _PLACE, whole=True),
        Family(
            "logstore_durable_high_watermark", "gauge", "one past the last stored offset", _PLACE, whole=True
        ),
        Family(
            "logstore_buffered_high_watermark", "gauge", "one past the last acked offset", _PLACE, whole=True
        ),
        Family("logstore_segments", "gauge", "objects that hold a partition's records", _TOPIC),
        # the object store
        Family(
            "logstore_requests_total",
            "counter",
            "requests to the object store, by outcome: ok, or the error",
            ("operation", "outcome"),
        ),
        Family("logstore_request_bytes_total", "counter", "bytes that were put or got", ("operation",)),
        Family("logstore_request_seconds", "histogram", "how long a request took", ("operation",)),
        Family("logstore_request_retries_total", "counter", "requests that were made again after a failure"),
        Family(
            "logstore_cost_dollars_total",
            "counter",
            "what the requests have cost, at list prices; no storage",
            ("operation",),
        ),
        Family("logstore_store_reachable", "gauge", "1 if the store answered when it was last needed"),
        Family(
            "logstore_store_degraded", "gauge", "1 if a request has had no answer for 5 s, or uploads fail"
        ),
        Family("logstore_store_stalled", "gauge", "1 if an upload has had no answer for stall_after"),
        Family(
            "logstore_unanswered_seconds",
            "gauge",
            "for how long the oldest request has had no answer; 0 if none waits",
        ),
        # what is handed in
        Family(
            "logstore_reader_lag_records",
            "gauge",
            "records before a reader or group reaches the end",
            ("reader", "topic", "partition"),
        ),
        Family("logstore_tracker_outstanding", "gauge", "flushes that sinks of an ingest owe", ("tracker",)),
        Family(
            "logstore_tracker_oldest_seconds",
            "gauge",
            "for how long the oldest of these has been owed",
            ("tracker",),
        ),
    )
}
