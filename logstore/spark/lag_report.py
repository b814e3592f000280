"""How far behind a stream is: from its progress, in records as Spark's Kafka source counts them, and in seconds if the store
may be asked.

Spark has no place for a Python source's own metrics in a query's progress (4.3), and its description there is the name of a
Java object. So this reads the offsets that are there.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from logstore.arrow.plan.log_partitions import LogPartition, load, open_store, subscribed
from logstore.arrow.plan.request import Subscription
from logstore.errors import LogStoreError
from logstore.objects.closing import closing_store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lag:
    """Of all partitions that a query reads from log stores, at the end of its last micro-batch."""

    behind: Mapping[tuple[str, int], int]
    """For each topic and partition, how many offsets were stored and not yet read."""
    seconds: float | None = None
    """The age of the oldest segment that holds an unread record, by its first timestamp; 0 if there is none. None if the
    store was not asked."""

    @property
    def total(self) -> int:
        """Offsets behind, over all partitions."""
        return sum(self.behind.values())

    @property
    def metrics(self) -> dict[str, str]:
        """Under the names, and in the form, of the progress of Spark's Kafka source."""
        counts = list(self.behind.values()) or [0]
        return {
            "minOffsetsBehindLatest": str(min(counts)),
            "avgOffsetsBehindLatest": str(sum(counts) / len(counts)),
            "maxOffsetsBehindLatest": str(max(counts)),
        }

    def __str__(self) -> str:
        """`orders: 120 records behind in 4 partitions, at most 80 in one, 3.2 s`"""
        topics = ", ".join(sorted({topic for topic, _ in self.behind})) or "nothing"
        said = (
            f"{topics}: {self.total} records behind in {len(self.behind)} partitions, "
            f"at most {max(self.behind.values(), default=0)} in one"
        )
        return said if self.seconds is None else f"{said}, {self.seconds:.1f} s"


def lag(progress: Any, url: str | None = None, *, clock: Callable[[], float] = time.time) -> Lag | None:
    """How far behind a query is, from `query.lastProgress` or the progress of a listener's event.

    With `url` the manifests of the partitions that are behind are asked how old the segment is in which unread records
    begin. None where the progress says nothing about a log store: before the first micro-batch, and with Spark
    before 4.2, which does not ask a source for its latest offset.
    """
    behind: dict[tuple[str, int], int] = {}
    reached: dict[tuple[str, int], int] = {}
    for source in _field(progress, "sources") or []:
        ends, latest = _offsets(source, "endOffset"), _offsets(source, "latestOffset")
        if ends is None or latest is None:
            continue
        for key, head in latest.items():
            reached[key] = ends.get(key, 0)
            behind[key] = max(0, head - reached[key])
    if not behind:
        return None
    if url is None:
        return Lag(behind)
    return Lag(behind, _seconds(url, {key: reached[key] for key, count in behind.items() if count}, clock))


class LagListener(StreamingQueryListener):
    """`spark.streams.addListener(LagListener())`: after each micro-batch, hands the query's name, or its id, and its `Lag`
    to `report`; if there is none, writes a line to the log at INFO."""

    def __init__(self, report: Callable[[str, Lag], None] | None = None, url: str | None = None) -> None:
        self._report = report or (
            lambda name, found: logger.info(
                "query %s%s: %s", name, "" if url is None else f" on {url}", found
            )
        )
        self._url = url

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:
        """A failure to ask is logged: it must not end the query."""
        progress = event.progress
        try:
            found = lag(progress, self._url)
        except LogStoreError as error:
            logger.warning("how far query %s is behind cannot be told: %s", progress.id, error)
            return
        if found is not None:
            self._report(progress.name or str(progress.id), found)

    def onQueryIdle(self, event: Any) -> None:
        """Then nothing waits."""

    def onQueryTerminated(self, event: Any) -> None:
        """What was last reported stands."""


def _field(holder: Any, name: str) -> Any:
    """Of a dict, or of an object: Spark's progress has been both."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _offsets(source: Any, name: str) -> dict[tuple[str, int], int] | None:
    """None if it is not our JSON: another source, or nothing was asked."""
    given = _field(source, name)
    try:
        found = json.loads(given) if isinstance(given, str) else given
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in found.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        return None


def _seconds(url: str, waiting: Mapping[tuple[str, int], int], clock: Callable[[], float]) -> float:
    if not waiting:
        return 0.0
    with closing_store(open_store(url)) as store:
        names = tuple(sorted({topic for topic, _ in waiting}))
        wanted = subscribed(store, Subscription(topics=names), missing_ok=True)
        found = load(
            store, [paths for paths in wanted if (paths.topic, paths.partition) in waiting], missing_ok=True
        )
        stamps = [_waits_since(partition, waiting[partition.topic, partition.number]) for partition in found]
        oldest = min((stamp for stamp in stamps if stamp is not None), default=None)
        return 0.0 if oldest is None else max(0.0, clock() - oldest / 1000)


def _waits_since(partition: LogPartition, offset: int) -> int | None:
    """The least timestamp of the first segment that holds something unread: the manifest tells it, and no record is read."""
    segments = partition.view.segments
    row = segments.row_at(offset)
    return segments.ref(row).min_timestamp_ms if row < len(segments) else None
