"""A producer whose retries are stored once, whatever happened to the first try.

Each record of a producer has a number, its *sequence*. A shared writer compares it with what the chain holds before it
stores anything, so an append whose ack was lost (a timeout, a crash, a kill) can be sent again as it was, by the same
process, by its next life or by another one: it is acked with the offset where it is. After a restart `next_sequence`
says where to go on.

    producer = Producer(log, producer_id=17)
    n = producer.next_sequence()
    producer.append(b"paid", sequence=n)
"""

from __future__ import annotations

from concurrent.futures import Future

from logstore.engine.memory.results import Receipt
from logstore.engine.partition.internal import Appendable
from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.shared.shared_writer import SharedWriter
from logstore.format.batches.sequences import MODULUS


class Producer:
    """`producer_id`: yours for good, and nobody else's, on this partition: two that use it at once refuse each other's
    records. `epoch`: a new life may take a higher one to start again at sequence 0; lower ones are refused from then on."""

    def __init__(self, log: PartitionLog, producer_id: int, *, epoch: int = 0) -> None:
        if not 0 <= producer_id < 1 << 63 or not 0 <= epoch < 1 << 15:
            raise ValueError(
                f"producer_id={producer_id}, epoch={epoch}: 0 to 2**63 - 1, and 0 to 2**15 - 1, are possible"
            )
        writer = log._internal.open_writer()
        if not isinstance(writer, SharedWriter):
            raise ValueError(
                f'{log!r} is not written in shared mode: sequences are compared there alone; open with writer="shared"'
            )
        self.producer_id = producer_id
        self.epoch = epoch
        self._log = log
        self._writer = writer

    def append(self, records: Appendable, *, sequence: int, timeout: float | None = None) -> Receipt:
        """Append records that are numbered from `sequence` on, all or nothing, once.

        Raises `GapError` if a number before `sequence` is missing, `Fenced` if the epoch has passed, and what
        `PartitionLog.append` raises; after `AppendTimeout` and `OutcomeUnknown` the same call may be made again.
        """
        return self._log.append_batches(self._numbered(records, sequence), ack="durable", timeout=timeout)

    def submit(self, records: Appendable, *, sequence: int) -> Future[Receipt]:
        """The same, without waiting for the ack. Several may be under way; they are stored in the order of these calls."""
        return self._log._internal.submit_batches(self._numbered(records, sequence), ack="durable")

    def _numbered(self, records: Appendable, sequence: int) -> bytes:
        if not 0 <= sequence < MODULUS:
            raise ValueError(
                f"sequence={sequence}: 0 to 2**31 - 1 are possible; after that it starts again at 0"
            )
        return self._writer.numbered(records, self.producer_id, self.epoch, sequence)

    def next_sequence(self) -> int:
        """The number after the last one that is stored in this epoch, 0 if there is none: asks the store."""
        epoch, sequence = self._writer.next_sequence(self.producer_id) or (self.epoch, 0)
        return sequence if epoch == self.epoch else 0
