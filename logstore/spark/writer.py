"""`df.write` and `df.writeStream` with `format("logstore")`: staged by tasks, published by the driver, once.

A stream's micro-batch is stored once, however often Spark runs it: its transaction is the query's id and the
batch's number, which Spark keeps in the checkpoint. A batch write is stored once if it names its transaction
itself (`txnAppId` and `txnVersion`, as in Delta Lake); without that, running the job again appends its rows again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from logstore.catalog import Catalog
from logstore.format.codecs import CODEC_IDS
from logstore.objects import close_store
from logstore.spark.partitions import open_store
from logstore.spark.publish import give_up, store_job, store_once
from logstore.spark.rows import RowSorter
from logstore.spark.staging import Part, Transaction
from logstore.spark.task_writer import TaskWriter
from logstore.spark.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError as error:  # Spark 4.0 hands rows to stream writers one by one
    raise ImportError("writing a stream to logstore needs Spark 4.1 or newer") from error

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


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
        return _stage(self._options, self._transaction, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _publish(self._options, self._transaction, messages, self._repeatable)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _give_up(self._options, self._transaction)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Of one query. Spark makes one in each process that needs it, so it carries nothing over."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "Spark calls write() in a task"
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise RuntimeError(
                f"this Spark does not tell tasks {_QUERY_ID} and {_BATCH_ID}: rows cannot be stored once"
            )
        return _stage(self._options, Transaction(f"query {query}", int(batch)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            _publish(self._options, staged[0].transaction, staged, True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        for message in messages:
            if isinstance(message, Staged):
                return _give_up(self._options, message.transaction)
        return None  # no task got as far as to say which query this is: the next commit sweeps


def _stage(options: WriteOptions, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Staged:
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    store = open_store(options.path)
    try:
        catalog = Catalog(store)
        topics = [catalog.find(options.topic)] if options.topic is not None else catalog.all()
        sorter = RowSorter({topic.name: topic.partitions for topic in topics}, options.topic, task)
        writer = TaskWriter(
            store,
            transaction,
            task,
            sorter,
            codec_id=CODEC_IDS[options.compression],
            max_batch_bytes=options.max_batch_bytes,
        )
        return Staged(transaction, writer.write(rows))
    finally:
        close_store(store)


def _publish(
    options: WriteOptions,
    transaction: Transaction,
    messages: Sequence[WriterCommitMessage | None],
    repeatable: bool,
) -> None:
    parts = [part for message in messages if isinstance(message, Staged) for part in message.parts]
    store = open_store(options.path)
    try:
        (store_once if repeatable else store_job)(store, transaction, parts)
    finally:
        close_store(store)


def _give_up(options: WriteOptions, transaction: Transaction) -> None:
    store = open_store(options.path)
    try:
        give_up(store, transaction)
    finally:
        close_store(store)
