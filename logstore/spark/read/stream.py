"""`spark.readStream.format("logstore")`: micro-batches between two sets of offsets, read by executors.

The offsets are the JSON of Spark's Kafka source. The same two sets always mean the same records, so a batch that
is run again after a restart gives the same rows. The head of each partition is followed with one small request, at
most once in `pollInterval`; Spark asks far more often than that. Spark does not always call `stop()`: nothing here
needs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from logstore.arrow.plan.heads import Heads
from logstore.arrow.plan.log_partitions import LogPartition, open_store, subscribed, warn_if_nothing
from logstore.arrow.plan.planner import check_named, plan, plan_tasks, start_offset, within
from logstore.arrow.plan.positions import Offsets, from_json, to_json
from logstore.arrow.plan.rate import Key, limited
from logstore.arrow.plan.request import ReadOptions
from logstore.arrow.plan.splits import Range, limited_by_bytes
from logstore.errors import LogStoreError, UnknownTopic
from logstore.objects import ObjectStore
from logstore.spark.read.batch import SplitPartition
from logstore.spark.read.views import rows_of_task, scan_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark before 4.2: no admission control, and AvailableNow is one batch
    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = ReadMinRows = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for the mixin that this Spark does not know."""


logger = logging.getLogger(__name__)

_FIRST = 0
"""Where a partition that comes later starts. The offsets in the checkpoint do not say it, so it must be the same whenever it
is asked for: what retention has taken from such a partition before its first micro-batch was read is lost."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one driver process for the length of a query; a copy of it, without its state, reads on executors."""

    def __init__(
        self, options: ReadOptions, schema: StructType, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._scan = scan_of(options, schema)
        self._opened: tuple[ObjectStore, Heads] | None = None
        self._target: dict[Key, int] | None = None
        self._held: dict[Key, int] = {}
        self._begun: dict[Key, int] = {}
        self._clock = clock
        self._triggered_at = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None, "_target": None, "_held": {}, "_begun": {}}

    def initialOffset(self) -> dict[str, Any]:
        store, heads = self._open()
        # A topic that is named must be there when a stream begins, whatever may happen to it later.
        warn_if_nothing(store, self._options.subscription, subscribed(store, self._options.subscription))
        current = heads.current()
        check_named(self._options, current)
        starts = {key: start_offset(store, self._options, found) for key, found in current.items()}
        self._begun = starts
        # Of the first micro-batch Spark notes the end alone, and asks here again if it has to be run again. The latest
        # offset is another one by then, so a partition that begins at its end has no part in that batch.
        self._held = {key: offset for key, offset in starts.items() if offset >= current[key].end}
        return _packed(starts)

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        """How far the next micro-batch goes. Spark before 4.2 passes neither argument: then there is no limit."""
        _, heads = self._open()
        current = heads.current()
        ends = self._target if self._target is not None else self._ends(current)
        held, self._held = self._held, {}
        if start is None:
            return _packed(ends | held)
        begun = self._begun = self._still_there(_unpacked(start), current)
        ends = {key: end for key, end in ends.items() if key in current}
        fail = self._options.fail_on_data_loss
        starts = {key: within(current[key], begun.get(key, _FIRST), fail) for key in ends}
        ends |= {key: offset for key, offset in held.items() if starts.get(key) == offset}
        if not isinstance(limit, ReadAllAvailable):
            if self._waits_for_more(starts, ends):
                return _packed(begun)
            ends = self._limited(starts, ends, current, getattr(limit, "max_rows", None))
        return _packed(begun | ends)

    def getDefaultReadLimit(self) -> Any:
        """Spark hands one limit back, and several may be set: any of them stands for all of ours. A trigger that takes
        everything hands over another."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def _waits_for_more(self, starts: Mapping[Key, int], ends: Mapping[Key, int]) -> bool:
        """As Spark's Kafka source: fewer than the least number wait, and not for long. A run that ends by itself waits for
        nothing."""
        least, now = self._options.min_offsets_per_trigger, self._clock()
        if least is None or self._target is not None:
            return False
        waiting = sum(max(0, end - starts[key]) for key, end in ends.items())
        if waiting < least and now - self._triggered_at < self._options.max_trigger_delay_s:
            return True
        self._triggered_at = now
        return False

    def _limited(
        self,
        starts: Mapping[Key, int],
        ends: Mapping[Key, int],
        current: Mapping[Key, LogPartition],
        max_rows: int | None,
    ) -> dict[Key, int]:
        most = self._options.max_offsets_per_trigger if max_rows is None else max_rows
        found = dict(ends) if most is None else limited(starts, ends, most)
        if self._options.max_bytes_per_trigger is not None:
            keys = sorted(found)
            ranges = [Range(current[key], starts[key], max(starts[key], found[key])) for key in keys]
            found = dict(
                zip(keys, limited_by_bytes(ranges, self._options.max_bytes_per_trigger), strict=True)
            )
        return found

    def reportLatestOffset(self) -> dict[str, Any]:
        """What is there, whatever the limit: a query's progress shows how far behind it is."""
        return _packed(self._ends(self._open()[1].current()))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends(self._open()[1].current())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        # Spark asks for the start of the first batch once more when it runs it: only what it asks next was to be held back.
        self._held = {}
        begun, ends = _unpacked(start), _unpacked(end)
        self._begun = begun | ends
        found = self._open()[1].covering(ends.items())
        fail = options.fail_on_data_loss
        # Where Spark asks for the latest offset without saying where the batch starts, what is lost shows here first. Of
        # the first batch the start is asked for again, so it may know of partitions that the end does not.
        self._still_there(begun, found.keys() | ends.keys())
        ranges = []
        for key, stop in sorted(ends.items()):
            if key in begun and stop <= begun[key]:
                if key in found:
                    within(found[key], begun[key], fail)
                continue
            if key not in found:
                lost = f"{key[0]}/{key[1]} is gone, and its offsets up to {stop} are still to be read"
                if fail:
                    raise UnknownTopic(f"{lost}; set failOnDataLoss to false to go on without")
                logger.warning("%s; failOnDataLoss is false: going on without", lost)
                continue
            if found[key].end < stop <= found[key].durable_end:
                raise LogStoreError(
                    f"{key[0]}/{key[1]}: the micro-batch ends at {stop}, and a transaction that began at {found[key].end} "
                    "has not ended. It was planned with visibility=durable: go on so, or try again when it has"
                )
            first = within(found[key], begun.get(key, _FIRST), fail)
            ranges.append(Range(found[key], first, within(found[key], stop, fail)))
        return [SplitPartition(task) for task in plan_tasks(options, plan(options, ranges))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of_task(self._scan, partition.value)

    def _still_there(self, begun: dict[Key, int], current: Collection[Key]) -> dict[Key, int]:
        """The offsets of partitions that exist. One whose topic was deleted may have had records that nobody read."""
        gone = sorted(begun.keys() - set(current))
        if not gone:
            return begun
        names = ", ".join(
            f"{topic}/{partition} (read up to {begun[topic, partition]})" for topic, partition in gone
        )
        if self._options.fail_on_data_loss:
            raise UnknownTopic(
                f"{names}: deleted while the stream reads it, and records that it had not read may be lost; "
                "set failOnDataLoss to false to go on without"
            )
        logger.warning(
            "%s: deleted while the stream reads it; failOnDataLoss is false: going on without", names
        )
        return {key: offset for key, offset in begun.items() if key in current}

    def _ends(self, partitions: Mapping[Key, LogPartition]) -> dict[Key, int]:
        """Never before where the stream has come to: it may have begun behind the last stable offset."""
        return {
            key: max(found.end, min(self._begun.get(key, 0), found.durable_end))
            for key, found in partitions.items()
        }

    def _open(self) -> tuple[ObjectStore, Heads]:
        if self._opened is None:
            store = open_store(self._options.path)
            options = self._options
            heads = Heads(
                store,
                options.subscription,
                options.poll_interval_s,
                missing_ok=not options.fail_on_data_loss,
                visibility=options.visibility,
            )
            self._opened = store, heads
        return self._opened


def _packed(offsets: Mapping[Key, int]) -> dict[str, Any]:
    by_topic: Offsets = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, {})[partition] = offset
    return to_json(by_topic)


def _unpacked(offsets: Mapping[str, Any]) -> dict[Key, int]:
    return {
        (topic, partition): offset
        for topic, partitions in from_json(offsets).items()
        for partition, offset in partitions.items()
    }
