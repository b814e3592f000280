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
        return stage_rows(self._options, transaction_of(context), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            publish_staged(self._options, staged[0].transaction, staged, repeatable=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            discard_staged(self._options, staged[0].transaction, staged, repeatable=True)
        # What a task staged that did not get as far as to say so is swept by the next commit.


def transaction_of(context: TaskContext) -> Transaction:
    """Which write the task is a part of. All three must be known: without the run, a second query with a copy of the
    checkpoint could not be told from a restart, and its rows would be taken for stored."""
    query, batch, run = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID, _RUN_ID))
    if not query or not batch or not run:
        raise RuntimeError(
            f"Spark tells this task {_QUERY_ID}={query!r}, {_BATCH_ID}={batch!r} and {_RUN_ID}={run!r}, and all three are "
            "needed to store rows once. If the query's code sets a job group, let it not; else write in foreachBatch with "
            "txnAppId and txnVersion"
        )
    return Transaction(f"query {query}", int(batch), run)
