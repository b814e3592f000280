"""`df.write.format("logstore")`: staged by tasks, published by the driver.

A write is stored once if it names its transaction (`txnAppId` and `txnVersion`, as in Delta Lake); without that,
running the job again appends its rows again. What a stream does differently is in `stream_writer`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from logstore.arrow.plan.log_partitions import open_store
from logstore.format.batches.codecs import CODEC_IDS
from logstore.layout.catalog import Catalog
from logstore.objects.closing import closing_store
from logstore.spark.options.transaction import Transaction
from logstore.spark.options.write_options import WriteOptions
from logstore.spark.write.publish import IF_GONE, give_up, store_job, store_once
from logstore.spark.write.rows import RowSorter
from logstore.spark.write.staging import Part, sweep
from logstore.spark.write.task_writer import TaskWriter

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task staged, and for which transaction."""

    transaction: Transaction
    parts: tuple[Part, ...]


class LogWriter(DataSourceArrowWriter):
    """Of one batch job. Made on the driver; pickled to the tasks, and back to the commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        named = options.transaction
        self._repeatable = named is not None
        self._transaction = named or Transaction(f"job {uuid.uuid4().hex}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage_rows(self._options, self._transaction, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        publish_staged(self._options, self._transaction, messages, self._repeatable)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard_staged(self._options, self._transaction, messages, self._repeatable)


def stage_rows(options: WriteOptions, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Staged:
    """What a task does; nothing of it is visible in the log."""
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    with closing_store(open_store(options.path)) as store:
        catalog = Catalog(store)
        topics = [catalog.find(options.topic)] if options.topic is not None else catalog.all()
        compacted = frozenset(topic.name for topic in topics if topic.config.compact)
        partitions = {topic.name: topic.partitions for topic in topics}
        sorter = RowSorter(partitions, options.topic, task, compacted)
        writer = TaskWriter(
            store,
            transaction,
            task,
            sorter,
            codec_id=CODEC_IDS[options.compression],
            max_batch_bytes=options.max_batch_bytes,
        )
        return Staged(transaction, writer.write(rows))


def publish_staged(
    options: WriteOptions,
    transaction: Transaction,
    messages: Sequence[WriterCommitMessage | None],
    repeatable: bool,
) -> None:
    """What the driver does when all tasks are done."""
    parts = _parts(messages)
    with closing_store(open_store(options.path)) as store:
        store_parts = store_once if repeatable else store_job
        store_parts(store, transaction, parts, True if options.take_over else IF_GONE)


def discard_staged(
    options: WriteOptions,
    transaction: Transaction,
    messages: Sequence[WriterCommitMessage | None],
    repeatable: bool,
) -> None:
    """What the driver does when a task has failed for good."""
    with closing_store(open_store(options.path)) as store:
        if repeatable:
            give_up(store, transaction, _parts(messages))
        else:
            sweep(store, transaction)


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [part for message in messages if isinstance(message, Staged) for part in message.parts]
