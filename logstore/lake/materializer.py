"""Durable records into a table, each exactly once, by any number of processes that may die anywhere.

Nothing is remembered here. Where the table ends is in the table (`table_format`), so a step is always the same: load
it, write files with the records behind its end, commit both. Whoever loses a race, or does not learn how its commit
ended, starts with a new look. Files that were not committed are left where they are, invisible: to delete one that
may yet be committed would lose rows. The table's own vacuum takes them.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from logstore.arrow.plan.committed import CommittedEnds
from logstore.arrow.plan.entry_runs import in_order, over_entries
from logstore.arrow.plan.log_partitions import LogPartition, load
from logstore.arrow.plan.planner import within
from logstore.arrow.plan.splits import Range, cut, limited_by_bytes
from logstore.arrow.scan.fetch import fetching_threads
from logstore.arrow.scan.split_scan import Scan
from logstore.errors import LogStoreError, StoreUnavailable, UnknownTopic
from logstore.lake.parquet_files import FILE_BYTES, ParquetFiles
from logstore.lake.registration import named, register
from logstore.lake.rows import (
    LOG_COLUMNS,
    READ_COLUMNS,
    Schema,
    as_filed,
    covers,
    lake_rows,
    table_schema,
    typed_columns,
    values_of,
)
from logstore.lake.table_format import DataFile, Source, TableFormat, asked, bucket_of
from logstore.lake.target import open_target
from logstore.layout.catalog import Catalog, TopicDescriptor
from logstore.layout.paths import PartitionPaths
from logstore.objects import ObjectStore
from logstore.topic import Topic

logger = logging.getLogger(__name__)

HOLD_SECONDS = 7 * 24 * 3600.0
COMMIT_BYTES = 128 << 20
"""Stored bytes of the log in one commit: what a process that dies has to do again."""

_SPLIT_BYTES = 1 << 20
"""Stored bytes that are read ahead at once: a large segment is read in parts."""
_GROUP_BYTES = 4 << 20
"""The same of lanes' entries, in which many partitions lie together."""
_ATTEMPTS = 20


@dataclass(slots=True)
class Progress:
    """What a materializer has done since it was made, and how far its table is behind."""

    rows: int = 0
    """Committed by this one."""
    unparsed: int = 0
    """Of these, those whose value did not fit: it is in `value_raw`."""
    files: int = 0
    commits: int = 0
    conflicts: int = 0
    """Commits that somebody else was faster with, or whose end is not known."""
    lost: int = 0
    """Offsets that retention took before they were copied, with `on_lost="skip"`."""
    table_version: str = ""
    offsets: dict[int, int] = field(default_factory=dict)
    """For each partition, the first offset that the table does not have."""
    behind: int = 0
    """Durable offsets below the last stable one that the table does not have, over all partitions, at the last look."""
    behind_seconds: float = 0.0
    """The age of the oldest segment that is not wholly in the table, by its first timestamp; 0 if there is none."""


class Materializer:
    """Keeps the table `target` filled with the committed records of `topic`: all durable ones, but for those of Kafka's
    transactions that were aborted, up to the first that has not ended. Several may run at once, in any processes.

    `target` is `delta:URL` or `iceberg:[CATALOG/]NAMESPACE.TABLE[?property=value&…]`. Without a `schema` the table
    has the value as it is, in the binary column `value`. With one (a `pyarrow.Schema`, or `"infer"`) values are JSON
    objects and their fields become columns; with an `Avro` or a `Protobuf` they are decoded by it. A value that does not
    fit is in the column `value_raw`, and counted.
    `partition_by` is `"day"` or `"hour"`, by the records' timestamps. `interval`: seconds between two steps of `run`.

    Retention of the topic waits for the table: a record is kept for up to `hold_seconds` longer than it says; 0 holds
    nothing. If records are gone before they were copied, `run_once` raises `OffsetOutOfRange`; with `on_lost="skip"`
    it goes on behind them and counts them.
    """

    def __init__(
        self,
        topic: Topic,
        target: str,
        *,
        schema: Schema = None,
        partition_by: str | None = None,
        interval: float = 60.0,
        hold_seconds: float = HOLD_SECONDS,
        on_lost: Literal["raise", "skip"] = "raise",
        file_bytes: int = FILE_BYTES,
        commit_bytes: int = COMMIT_BYTES,
    ) -> None:
        if on_lost not in ("raise", "skip"):
            raise ValueError(f"on_lost={on_lost!r}: it is raise or skip")
        for name, given in (("interval", interval), ("hold_seconds", hold_seconds)):
            if not 0 <= given < math.inf:
                raise ValueError(f"{name}={given!r}: it is a number of seconds, at least 0")
        for name, size in (("file_bytes", file_bytes), ("commit_bytes", commit_bytes)):
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name}={size!r}: it is a whole number, at least 1")
        self._name = topic.name
        self._objects = topic.partition(0)._internal.objects
        self._catalog = Catalog(self._objects)  # asked each time: the topic may be recreated, or grow
        self._shown = named(target)
        self._partition_by = bucket_of(partition_by)
        self._table: TableFormat = open_target(target, self._partition_by)
        self._values = values_of(schema)
        self._interval = interval
        self._hold_seconds = hold_seconds
        self._skips = on_lost == "skip"
        self._file_bytes = file_bytes
        self._commit_bytes = commit_bytes
        self._progress = Progress()
        self._registered: tuple[str, Mapping[int, int]] | None = None
        self._committed = CommittedEnds()
        self._stop = threading.Event()

    def run_once(self, report: Callable[[Progress], None] | None = None) -> Progress:
        """Copy what is durable now, in as many commits as that takes. Safe to repeat after any error, and after a crash.
        `report` is told before each commit and at the end how far it is.

        Raises `UnknownTopic` if the topic was deleted; `OffsetOutOfRange` if retention was faster;
        `StoreUnavailable` if no commit goes through; and what reading the log raises.
        """
        while True:
            topic = self._catalog.find(self._name)
            try:
                return self._copied(topic, report)
            except UnknownTopic:
                if self._catalog.find(self._name).incarnation == topic.incarnation:
                    raise
                logger.info("%s was deleted and created again: copying the new one", topic.name)

    def _copied(self, topic: TopicDescriptor, report: Callable[[Progress], None] | None) -> Progress:
        objects = self._objects
        refused = 0
        goal: dict[int, int] | None = None
        while True:
            self._load_table()
            state = self._state(topic)
            partitions = self._partitions(topic)
            if goal is None:
                goal = {partition.number: partition.end for partition in partitions}
            self._note(objects, topic, partitions, state)
            if report is not None:
                report(self._progress)
            ranges = self._wanted(partitions, state, goal)
            if not ranges:
                return self._progress
            refused = 0 if self._step(objects, topic, ranges, state) else refused + 1
            if refused >= _ATTEMPTS:
                raise StoreUnavailable(
                    f"{self._shown}: {refused} commits in a row did not go through: nothing is lost, try again later"
                )

    def run(self, report: Callable[[Progress], None] | None = None) -> None:
        """`run_once` every `interval` seconds until `stop()`; `report` gets what each says. A failure that may pass is
        logged, and the next turn tries again."""
        while not self._stop.is_set():
            try:
                progress = self.run_once()
                if report is not None:
                    report(progress)
            except LogStoreError as error:
                if not error.retriable:
                    raise
                logger.warning("%s: %s; trying again in %s s", self._shown, error, self._interval)
            self._stop.wait(self._interval)

    def stop(self) -> None:
        """Let `run` return after the step that it is at."""
        self._stop.set()

    def progress(self) -> Progress:
        """How far the table is now, as the table and the log say."""
        objects, topic = self._objects, self._catalog.find(self._name)
        if asked(self._shown, self._table.load):
            self._note(objects, topic, self._partitions(topic), self._state(topic))
        return self._progress

    def compact(self) -> dict[str, int]:
        """Make few large files of many small ones, as the format's own tool does it; others may copy meanwhile."""
        if not asked(self._shown, self._table.load):
            raise ValueError(f"{self._shown}: there is no table yet")
        return asked(self._shown, self._table.compact)

    # -- one step ------------------------------------------------------------------------------------------------------

    def _load_table(self) -> None:
        if not asked(self._shown, self._table.load):
            encoding = self._values.encoding if self._values else "raw"
            asked(self._shown, lambda: self._table.create(table_schema(self._values), encoding))
            if not asked(self._shown, self._table.load):
                raise StoreUnavailable(f"{self._shown}: the table was made and is not there")
        missing = set(LOG_COLUMNS) - set(self._table.schema.names)
        if missing or (self._values is None) != ("value" in self._table.schema.names):
            raise ValueError(
                f"{self._shown} has the columns {', '.join(self._table.schema.names)}: it is no table of a topic with "
                f"{'raw' if self._values is None else 'typed'} values. Use another target, or the schema it was made with"
            )
        if self._values is not None and self._values.encoding != self._table.encoding:
            raise ValueError(
                f"{self._shown} was filled from {self._table.encoding.title()}, not from {self._values.encoding.title()}"
            )
        if self._partition_by not in (None, self._table.partition_by):
            raise ValueError(
                f"{self._shown} is partitioned by {self._table.partition_by or 'nothing'}, not by {self._partition_by}"
            )
        if self._values is not None:
            self._values.learn(typed_columns(self._table.schema))
            there = self._table.schema.names
            known = {name.lower(): name for name in there}
            for name in self._values.columns.names:
                if name not in there and name.lower() in known:
                    raise ValueError(
                        f"{self._shown} has the column {known[name.lower()]}: {name} would be the same one for most readers"
                    )

    def _partitions(self, topic: TopicDescriptor) -> list[LogPartition]:
        """Each up to its last stable offset: a row cannot be taken back once it is in the table."""
        paths = [PartitionPaths(topic.name, topic.incarnation, number) for number in range(topic.partitions)]
        found = load(self._objects, paths)
        self._committed.look(self._objects, found)
        return found

    def _state(self, topic: TopicDescriptor) -> dict[int, int | None]:
        return {
            number: self._table.next_offset(Source(topic.name, topic.incarnation, number))
            for number in range(topic.partitions)
        }

    def _wanted(
        self, partitions: list[LogPartition], state: Mapping[int, int | None], goal: Mapping[int, int]
    ) -> list[Range]:
        """What the next commit holds: something of each partition that has something, about `commit_bytes` in all."""
        ranges: list[Range] = []
        for partition in partitions:
            known = state[partition.number]
            first = partition.low if known is None else max(known, partition.low)
            if known is not None and (first > partition.durable_end or (known < first and not self._skips)):
                within(partition, known, True)  # raises, and says what there is
            last = max(first, min(goal.get(partition.number, partition.end), partition.end))
            if last > (first if known is None else known):
                ranges.append(Range(partition, first, last))
        ends = limited_by_bytes(ranges, self._commit_bytes)
        return [Range(wanted.partition, wanted.start, end) for wanted, end in zip(ranges, ends, strict=True)]

    def _step(
        self,
        objects: ObjectStore,
        topic: TopicDescriptor,
        ranges: list[Range],
        state: Mapping[int, int | None],
    ) -> bool:
        """Whether its commit surely went through. Only what was committed is counted."""
        begun = {_source(topic, wanted): state[wanted.partition.number] for wanted in ranges}
        try:
            files, unparsed = self._write(objects, topic, ranges, begun)
        except _Narrowed:
            return True  # there is less to be asked of the table now: nobody was in the way
        except _Overtaken:
            committed = False
        else:
            committed = self._table.commit(files, {_source(topic, wanted): wanted.stop for wanted in ranges})
        if not committed:
            self._progress.conflicts += 1
            return False
        done = self._progress
        done.commits += 1
        done.files += len(files)
        done.rows += sum(file.rows for file in files)
        done.unparsed += unparsed
        for wanted in ranges:
            known = state[wanted.partition.number]
            if known is not None and known < wanted.start:
                done.lost += wanted.start - known
                logger.error(
                    "%s: offsets %d to %d are gone and not in %s",
                    wanted.partition.paths,
                    known,
                    wanted.start,
                    self._shown,
                )
        return True

    def _write(
        self,
        objects: ObjectStore,
        topic: TopicDescriptor,
        ranges: list[Range],
        begun: Mapping[Source, int | None],
    ) -> tuple[list[DataFile], int]:
        unparsed = 0
        files = ParquetFiles(self._table, self._file_bytes)
        scan = Scan("", READ_COLUMNS, fail_on_data_loss=True)
        known = self._table.file_schema
        tasks = over_entries(
            cut(ranges, max_bytes=_SPLIT_BYTES), max_bytes=_GROUP_BYTES, group_bytes=_GROUP_BYTES
        )
        with fetching_threads() as threads:
            for task in tasks:
                for batch in scan.rows_of_from(objects, in_order([task]), threads):
                    rows, misfits = lake_rows(batch, topic.incarnation, self._values)
                    unparsed += misfits
                    if not covers(known, rows.schema):
                        known = self._grown(rows.schema, begun)
                    for part in rows.cast(as_filed(known, rows.schema)).to_batches():
                        files.add(part)
        return files.close(), unparsed

    def _grown(self, schema: pa.Schema, begun: Mapping[Source, int | None]) -> pa.Schema:
        """Give the table new columns. That makes a new version of it, and the commit must be one behind the version whose
        offsets were read: so they are read again, and must be the same."""
        try:
            self._table.grow(schema)
        except ValueError as refusal:
            self._do_without(schema, refusal)
            raise _Narrowed from refusal
        asked(self._shown, self._table.load)
        if any(self._table.next_offset(source) != offset for source, offset in begun.items()):
            raise _Overtaken
        known = self._table.file_schema
        if not covers(known, schema):
            raise _Overtaken  # somebody else gave a column of that name another type
        return known

    def _do_without(self, schema: pa.Schema, refusal: ValueError) -> None:
        """The table cannot have all of these columns: their values stay raw. Each is tried by itself, so that one does not
        keep out the others."""
        refused = []
        for one in schema:
            asked(self._shown, self._table.load)
            if covers(self._table.file_schema, pa.schema([one])):
                continue
            try:
                self._table.grow(pa.schema([one]))
            except ValueError:
                refused.append(one.name)
        if not refused:
            return  # one after the other they could all be had
        if self._values is None or not self._values.leave_out(refused):
            raise refusal
        logger.warning("%s: no column for %s: %s", self._shown, ", ".join(refused), refusal)

    def _note(
        self,
        objects: ObjectStore,
        topic: TopicDescriptor,
        partitions: list[LogPartition],
        state: Mapping[int, int | None],
    ) -> None:
        done = self._progress
        done.table_version = self._table.version
        done.offsets = {
            part.number: part.low if (known := state[part.number]) is None else known for part in partitions
        }
        done.behind = sum(max(0, part.end - done.offsets[part.number]) for part in partitions)
        oldest = [
            part.view.segments.ref(row).min_timestamp_ms
            for part in partitions
            if (row := part.view.segments.row_at(done.offsets[part.number])) < len(part.view.segments)
        ]
        done.behind_seconds = max(0.0, time.time() - min(oldest) / 1000) if oldest else 0.0
        holding = (topic.incarnation, dict(done.offsets))
        if self._hold_seconds > 0 and self._registered != holding:
            register(objects, topic, self._shown, self._hold_seconds, done.offsets)
            self._registered = holding


class _Overtaken(Exception):
    """Somebody else has changed the table in a way that matters: the step begins again, with a new look."""


class _Narrowed(_Overtaken):
    """We ask for less than before."""


def _source(topic: TopicDescriptor, wanted: Range) -> Source:
    return Source(topic.name, topic.incarnation, wanted.partition.number)
