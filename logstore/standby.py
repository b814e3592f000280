"""A standby of an exclusive writer: follow a partition, and take it over by a fence when told to.

`PartitionLog.replicated(writer_id, standby=True)` is the one for replicated writers, which hold what they are fed.
"""

from __future__ import annotations

from logstore.engine.partition.partition_log import PartitionLog


class Standby:
    """For a partition with an exclusive writer elsewhere. `replicated(writer_id, standby=True)` is the one for fed input."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def follow(self) -> int:
        """Take in what the active writer has committed. Returns the durable high watermark: asks the store."""
        self._log.refresh()
        return self._log.durable_high_watermark

    def promote(self, timeout: float | None = None) -> int:
        """Fence the active writer off. Returns the offset at which this process goes on; from now on `append` works here."""
        writer = self._log._internal.open_writer(timeout=timeout, take_over=True)
        if not writer.is_alone:
            raise ValueError(
                f'{self._log!r} is written in shared mode, where nobody takes over: open with writer="exclusive"'
            )
        return writer.next_offset
