"""`df.writeStream.format("logstore")`: each micro-batch is stored once, however often Spark runs it.

Its transaction is the query's id and the batch's number, which Spark keeps in the checkpoint, and the id of the query's run.
Spark tells them to tasks and not to the commit, so they come to the driver with what the tasks staged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from logstore.spark.options.transaction import Transaction
from logstore.spark.options.write_options import WriteOptions
from logstore.spark.write.writer import Staged, discard_staged, publish_staged, stage_rows

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError as error:  # Spark 4.0 hands rows to stream writers one by one
    raise ImportError("writing a stream to logstore needs Spark 4.1 or newer") from error

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"  # all jobs of a run are one group, of this name


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
        run = context.getLocalProperty(_RUN_ID) or ""
        return stage_rows(self._options, Transaction(f"query {query}", int(batch), run), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            publish_staged(self._options, staged[0].transaction, staged, repeatable=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            discard_staged(self._options, staged[0].transaction, staged, repeatable=True)
        # What a task staged that did not get as far as to say so is swept by the next commit.
