"""What the page shows, as plain values for JSON: from memory, so that it can be told also while the store hangs.

Only the segments of a partition and its records, which somebody asks for by hand, are read from the store.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from logstore.cost.prices import GB, STANDARD
from logstore.engine.partition.health import PartitionHealth
from logstore.engine.partition.internal import Partition
from logstore.metrics.numbers import Lags, Sample, Sources, Tracked, families
from logstore.store import Store
from logstore.ui.refresher import Asked, Known, Refresher

PARTITIONS_MAX = 50
RECORDS_MAX = 100
SEGMENTS_MAX = 2000
_VALUE_MAX = 4096
_RARELY = 20
_READ_BYTES = 1 << 20
_SUMS = [
    "appended_records_total",
    "appended_bytes_total",
    "flushed_records_total",
    "flushes_total",
    "requests_total",
    "cost_dollars_total",
    "durable_lag_records",
    "flush_failures_total",
    "fenced_total",
    "races_lost_total",
    "request_retries_total",
]


class View:
    """One store, and what was handed in: lags of readers, flush trackers, both by name, and who knows groups and
    transactions."""

    def __init__(
        self,
        store: Store,
        readers: Mapping[str, Callable[[], Lags]] | None = None,
        trackers: Mapping[str, Tracked] | None = None,
        groups: Asked | None = None,
        transactions: Asked | None = None,
    ) -> None:
        self._store = store
        self._sources = Sources(store, "topic", readers or {}, trackers or {})
        self._refresher = Refresher(store, groups, transactions)
        self._counting = threading.Lock()  # guards the two fields below, and is held while all is counted
        self._counted: dict[str, list[Sample]] = {}
        self._count_again_at = float("-inf")

    def stop(self) -> None:
        self._refresher.stop()

    def now(self, topic: str | None = None, first: int = 0) -> dict[str, Any]:
        """Everything that moves: the store, its topics, and up to `PARTITIONS_MAX` partitions of one topic."""
        known = self._refresher.known()
        health = self._store._health_report(with_partitions=False)
        numbers = self._numbers()
        sums = {name: sum(sample.value for sample in numbers.get(name, [])) for name in _SUMS}
        lag = max((sample.value for sample in numbers.get("durable_lag_seconds", [])), default=0.0)
        chosen = next((entry for entry in known.topics or () if entry[0] == topic), None)
        reasons = [reason for reason in (health.degraded, known.trouble) if reason]
        return {
            "at_ms": time.time_ns() // 1_000_000,
            "store": repr(self._store.objects),
            "writer": self._store.config.writer,
            "health": "stalled" if health.stalled else "degraded" if reasons else "well",
            "reasons": reasons,
            "buffered_bytes": health.buffered_bytes,
            "buffered_bytes_limit": health.buffered_bytes_limit,
            "cached_bytes": health.cached_bytes,
            "sums": sums | {"durable_lag_seconds": lag},
            "topics": None
            if known.topics is None
            else [
                {
                    "name": name,
                    "partitions": partitions,
                    "retention_seconds": config.retention_seconds if config else None,
                    "retention_bytes": config.retention_bytes if config else None,
                }
                for name, partitions, config in known.topics
            ],
            "topic": topic if chosen else None,
            "first": first,
            "partitions": self._partitions(chosen[0], chosen[1], first) if chosen else [],
            "lanes": self._lanes(known),
            "readers": [
                {**sample.labels, "lag": sample.value} for sample in numbers.get("reader_lag_records", [])
            ]
            + known.groups,
            "transactions": known.transactions,
            "trackers": [
                {"name": name, "explained": str(tracker.explain())}
                for name, tracker in sorted(self._sources.trackers.items())
            ],
        }

    def _numbers(self) -> dict[str, list[Sample]]:
        """Of all that is open, which may be ten thousand partitions: so they are as old as lets this take a twentieth of the
        time at the most, whoever looks."""
        with self._counting:
            began = time.monotonic()
            if began >= self._count_again_at:
                self._counted = {
                    family.name.removeprefix("logstore_"): samples
                    for family, samples in families(self._sources)
                }
                ended = time.monotonic()
                self._count_again_at = ended + _RARELY * (ended - began)
            return self._counted

    def _lanes(self, known: Known) -> list[dict[str, Any]]:
        """Those of this process, as they are now, and those of others through which a partition that is looked at writes."""
        here = self._store._lanes.overviews()
        names = {lane.name for lane in here}
        mine = [lane._asdict() | {"is_here": True, "owner": "this process"} for lane in here]
        others = [
            lane._asdict() | {"is_here": False, "owner": lane.owner or known.owners.get(lane.name, "")}
            for lane in known.lanes
            if lane.name not in names
        ]
        return mine + others

    def _partitions(self, topic: str, count: int, first: int) -> list[dict[str, Any]]:
        shown = range(max(0, first), min(count, max(0, first) + PARTITIONS_MAX))
        self._refresher.want(topic, shown)
        found = [
            _partition(partition, partition.health_report())
            for partition in self._store._all_logs()
            if partition.topic == topic and partition.partition in shown
        ]
        return sorted(found, key=lambda each: each["partition"])

    def segments(self, topic: str, partition: int) -> dict[str, Any]:
        """The objects of a partition, oldest first: where they are, how large and how old. Asks the store."""
        refs = self._store.topic(topic).partition(partition).segments()
        size = sum(ref.size for ref in refs)
        return {
            "count": len(refs),
            "bytes": size,
            "dollars_a_month": size / GB * STANDARD.storage_gb_month,
            "left_out": max(0, len(refs) - SEGMENTS_MAX),
            "segments": [
                {
                    "key": ref.key,
                    "merged": "/merged/" in ref.key,
                    "lane": ref.key.split("/")[1] if ref.key.startswith("lanes/") else None,
                    "base": ref.base_offset,
                    "end": ref.end_offset,
                    "bytes": ref.size,
                    "newest_ms": ref.max_timestamp_ms,
                }
                for ref in refs[-SEGMENTS_MAX:]
            ],
        }

    def records(self, topic: str, partition: int, offset: int, count: int) -> dict[str, Any]:
        """Records from `offset` on, as base64; long values are cut."""
        log = self._store.topic(topic).partition(partition)
        low, _, high = log.marks()
        start = min(max(offset, low), high)
        found: list[dict[str, Any]] = []
        for record in log.read(start, _READ_BYTES).records():
            if len(found) >= min(count, RECORDS_MAX):
                break
            found.append(
                {
                    "offset": record.offset,
                    "timestamp_ms": record.timestamp_ms,
                    "key": _bytes(record.key),
                    "value": _bytes(record.value),
                    "size": len(record.value or b""),
                    "headers": [[name, _bytes(value)] for name, value in record.headers],
                }
            )
        return {"low": low, "high": high, "records": found}


def _partition(partition: Partition, health: PartitionHealth) -> dict[str, Any]:
    told = health.as_dict()
    told.pop("topic")
    loaded = partition._loaded
    if loaded is not None:
        state = loaded[0]
        windows = state.windows
        told["window_end"] = windows[-1].header.end_offset if windows else told["durable_high_watermark"]
        told["bytes"] = sum(state.segments.table.size)
        told["lane"], told["owner"] = partition.lane_name, partition.owner_name
        told["mode"] = told.get("mode", state.tail.mode.name.lower() if state.tail.next_seq else "none")
    return told


def _bytes(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data[:_VALUE_MAX]).decode()
