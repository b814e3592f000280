"""An atomic append: batches of several partitions that are stored together, or not at all.

All of it lies in one entry of one lane, whose creation is the commit. It has offsets in its partitions from the start, in
the order in which appends came; until it is decided nothing from there on is shown or acked (`ExclusiveWriter`), and no
upload is sent behind it (`Lane`). So it can still fail, when one of its partitions turns out to be another's: it is left
out, and what follows moves up.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack

from logstore.engine.memory.results import Receipt
from logstore.engine.write.lanes.flushed import Flushed
from logstore.errors import Fenced, LogStoreError, fresh
from logstore.layout.paths import PartitionPaths


class AtomicAppend:
    """`future` is for the receipts, one for each partition, in the order in which they were given; it is completed once.
    `size`: in bytes. `writers`: of its partitions."""

    def __init__(self, writers: Sequence[Flushed], receipts: list[Receipt], size: int) -> None:
        self.writers = tuple(writers)
        self.receipts = receipts
        self.size = size
        self.future: Future[list[Receipt]] = Future()
        self._deciding = threading.Lock()
        self._is_decided = False

    def stored(self) -> None:
        """Its entry is committed."""
        if self._decide():
            self.future.set_result(self.receipts)

    def fail(self, error: LogStoreError) -> None:
        """Tell that it is not stored, or that nobody knows."""
        if self._decide():
            self.future.set_exception(fresh(error))

    def fail_without(self, writer: Flushed) -> None:
        """It is not stored, because of this one."""
        paths = [str(PartitionPaths.of(each.claim_key.prefix)) for each in self.writers]
        gone = PartitionPaths.of(writer.claim_key.prefix)
        why = writer.failed
        if why is None or isinstance(why, Fenced):
            error = Fenced(
                f"an atomic append to {', '.join(paths)} is not stored, nothing of it, because {gone} has another "
                f"writer now: {why or 'it was taken over'}"
            )
            error.partition = str(gone)
            self.fail(error)
        else:
            self.fail(why)

    def _decide(self) -> bool:
        """Whether there is somebody to tell, for the first time."""
        with self._deciding:
            first, self._is_decided = not self._is_decided, True
        return first and self.future.set_running_or_notify_cancel()


def all_locked(writers: Iterable[Flushed]) -> ExitStack:
    """The locks of several partitions, always taken in the same order. For memory work only."""
    locks = ExitStack()
    for writer in sorted(writers, key=lambda each: each.claim_key):
        locks.enter_context(writer.lock)
    return locks
