"""From options to ranges of offsets: what a batch read means at the moment it is planned, and how data loss is
judged.

Data loss is an offset that was asked for and is not there: below the low watermark, because retention has passed
it, or above the end, because the topic was recreated. `failOnDataLoss` decides whether that is an error or the
nearest offset is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from logstore.arrow.plan.bounds import EVERYTHING, Bounds
from logstore.arrow.plan.committed import CommittedEnds
from logstore.arrow.plan.entry_runs import TASK_BYTES, Task, over_entries
from logstore.arrow.plan.log_partitions import LogPartition, load, side_by_side, subscribed, warn_if_nothing
from logstore.arrow.plan.positions import EARLIEST, LATEST, Bound
from logstore.arrow.plan.request import ReadOptions
from logstore.arrow.plan.splits import Range, Split, cut
from logstore.config import MIB
from logstore.errors import LogStoreError, OffsetOutOfRange, UnknownTopic
from logstore.objects import ObjectStore

logger = logging.getLogger(__name__)

_WHOLE_PARTITIONS = 1 << 62
_PARTITIONS_NAMED = 8


def plan_batch(store: ObjectStore, options: ReadOptions, bounds: Bounds = EVERYTHING) -> list[Split]:
    """The splits of a batch read: a snapshot, because segments never change and the end is fixed now."""
    partitions = select(store, options, bounds)
    if options.visibility == "committed":
        CommittedEnds().look(store, partitions)
    return plan(options, _ranges(store, options, partitions), bounds)


def plan(options: ReadOptions, ranges: list[Range], bounds: Bounds = EVERYTHING) -> list[Split]:
    """The splits of these ranges, as the options want them cut; and a line in the log that says what they are."""
    if options.view == "latest":
        splits = cut(ranges, max_bytes=_WHOLE_PARTITIONS, bounds=bounds)
    else:
        splits = cut(
            ranges,
            max_bytes=options.max_bytes_per_partition,
            max_records=options.max_records_per_partition,
            min_splits=options.min_partitions,
            bounds=bounds,
        )
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", summary(options.path, ranges, splits))
    return splits


def plan_tasks(options: ReadOptions, splits: list[Split]) -> list[Task]:
    """What each task reads: its split, or, where partitions lie together in lanes and nobody asked for a number of
    tasks, all that is in a run of entries."""
    asked = options.min_partitions is not None or options.max_records_per_partition is not None
    if asked or options.view != "log":
        return list(splits)
    tasks = over_entries(splits, min(options.max_bytes_per_partition, TASK_BYTES))
    if len(tasks) != len(splits):
        logger.info("%d splits lie together in lanes: they are %d tasks", len(splits), len(tasks))
    return tasks


def summary(path: str, ranges: Sequence[Range], splits: Sequence[Split]) -> str:
    """What a plan reads and what it leaves out: tasks, segments, stored bytes, offsets."""
    kept = {ref.key: ref.size for split in splits for ref in split.refs}
    tables = [wanted.partition.view.segments.table for wanted in ranges]
    bounds = [
        f"{wanted.partition.paths} [{wanted.start}, {wanted.stop})" for wanted in ranges[:_PARTITIONS_NAMED]
    ]
    if len(ranges) > _PARTITIONS_NAMED:
        bounds.append(f"and {len(ranges) - _PARTITIONS_NAMED} more partitions")
    return (
        f"planned {len(splits)} tasks in {path}: {len(kept)} of {sum(map(len, tables))} segments, "
        f"{sum(kept.values()) / MIB:.1f} of {sum(sum(table.size) for table in tables) / MIB:.1f} MiB, "
        f"offsets {', '.join(bounds) or 'none'}"
    )


def select(store: ObjectStore, options: ReadOptions, bounds: Bounds = EVERYTHING) -> list[LogPartition]:
    """The partitions that the options mean and the bounds leave, loaded."""
    wanted = subscribed(store, options.subscription)
    warn_if_nothing(store, options.subscription, wanted)
    check_named(options, {(paths.topic, paths.partition) for paths in wanted})
    return load(store, [paths for paths in wanted if bounds.takes(paths.topic, paths.partition)])


def check_named(options: ReadOptions, known: Collection[tuple[str, int]]) -> None:
    """Offsets for a partition that is not read are a mistake, and not nothing."""
    for bound in (options.start, options.end):
        for topic, partition in bound.named():
            if (topic, partition) not in known:
                raise UnknownTopic(
                    f"offsets are given for partition {partition} of {topic!r}, which is not read: "
                    "fix the offsets or the subscription"
                )


def _ranges(store: ObjectStore, options: ReadOptions, partitions: list[LogPartition]) -> list[Range]:
    """Only a timestamp has to be looked up in the store."""
    if options.start.has_timestamps or options.end.has_timestamps:
        return side_by_side(lambda partition: _range(store, options, partition), partitions)
    return [_range(store, options, partition) for partition in partitions]


def _range(store: ObjectStore, options: ReadOptions, partition: LogPartition) -> Range:
    start = start_offset(store, options, partition)
    stop = _resolve(store, options.end, partition, LATEST, options.fail_on_data_loss)
    return Range(partition, start, max(start, min(stop, partition.end)))


def start_offset(store: ObjectStore, options: ReadOptions, partition: LogPartition) -> int:
    """Where a read of the partition starts."""
    missing = LATEST if options.start_falls_to_latest else None
    return _resolve(store, options.start, partition, missing, options.fail_on_data_loss)


def _resolve(
    store: ObjectStore, bound: Bound, partition: LogPartition, no_such_time: int | None, fail: bool
) -> int:
    timestamp_ms = bound.timestamp_of(partition.topic, partition.number)
    if timestamp_ms is not None:
        found = partition.first_at(store, timestamp_ms)
        if found is not None:
            return found
        if no_such_time is None:
            raise LogStoreError(
                f"{partition.paths}: no record has a timestamp of {timestamp_ms} ms or later; set "
                "startingOffsetsByTimestampStrategy to latest to start at the end there"
            )
        return partition.end
    offset = bound.offset_of(partition.topic, partition.number)
    if offset == EARLIEST:
        return partition.low
    if offset == LATEST:
        return partition.end
    return within(partition, offset, fail)


def within(partition: LogPartition, offset: int, fail: bool) -> int:
    """`offset` if the partition has it; else the nearest one it has, or `OffsetOutOfRange`."""
    nearest = min(max(offset, partition.low), partition.durable_end)
    if nearest != offset:
        loss = OffsetOutOfRange(partition.low, partition.durable_end, offset, str(partition.paths))
        if fail:
            raise loss
        logger.warning("%s; failOnDataLoss is false: going on at %d", loss, nearest)
    return nearest
