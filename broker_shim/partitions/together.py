"""What is stored in several partitions of this broker together or not at all: one entry of its lane.

Where the partitions are not in one lane, or there is no room now, nothing has happened, and the caller goes another way. If
it fails later, because one of the partitions turned out to be another's, nothing of it is stored: the logs that are still
ours get `NotStored`, and go on as if it had never been handed to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from logstore.engine.memory.results import Receipt
from logstore.engine.partition.atomic_batches import Batches, atomic_checked
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import Closed, Fenced, LogStoreError


class NotStored(LogStoreError):
    """Nothing of it is stored, because of another log. This one is as it was, without it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One log's part. `submitted` is told when it is on its way, with the future of its own receipt."""

    log: PartitionLog
    batches: Batches
    submitted: Callable[[Future[Receipt]], None]


def in_one_lane(logs: Iterable[PartitionLog]) -> bool:
    """Whether all of them commit through the same lane of this process."""
    lanes = {log._internal.lane for log in logs}
    return len(lanes) == 1 and None not in lanes


def append_together(parts: Sequence[Part]) -> None:
    """Hand them to their lane; never waits. Raises `LogStoreError`, `BufferFull` if there is no room now, having appended
    nothing. Their futures are completed in the order of the parts."""
    whole = atomic_checked([(part.log, part.batches) for part in parts], timeout=0.0)
    receipts = [Future[Receipt]() for _ in parts]
    for part, receipt in zip(parts, receipts, strict=True):
        part.submitted(receipt)
    logs = [part.log for part in parts]
    whole.add_done_callback(lambda done: _tell(done, logs, receipts))


def _tell(
    whole: Future[list[Receipt]], logs: Sequence[PartitionLog], futures: Sequence[Future[Receipt]]
) -> None:
    if whole.cancelled():
        for log, future in zip(logs, futures, strict=True):
            future.set_exception(Closed(f"{log} was closed"))
        return
    error = whole.exception()
    if error is not None:
        for log, future in zip(logs, futures, strict=True):
            future.set_exception(_of(log, error))
        return
    for future, receipt in zip(futures, whole.result(), strict=True):
        future.set_result(receipt)


def _of(log: PartitionLog, error: BaseException) -> BaseException:
    """What it means for one of the logs: that another's is fenced does not make it another's. But it may be fenced, too."""
    paths, stopped = log._internal.paths, log._internal.stopped
    if stopped is not None:
        return stopped
    if not isinstance(error, Fenced) or error.partition in (None, str(paths)):
        return error
    return NotStored(f"{paths}: what was to be stored together with {error.partition} is not: {error}")
