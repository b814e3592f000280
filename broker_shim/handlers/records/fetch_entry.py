"""One partition of a fetch: what is asked for, what is found, what its client was told."""

from __future__ import annotations

from dataclasses import dataclass

from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code
from broker_shim.wire.fetch_codec import NO_REPLICA, PartitionData, PartitionFetch, TopicKey
from logstore.errors import OffsetOutOfRange


@dataclass(slots=True, eq=False)
class Entry:
    """`is_cold`: the answer needs I/O, or the partition is not open yet. `is_old`: there may be
    more than the worker that is reading it has seen. `told`: the watermarks that the client was told.
    """

    topic: TopicKey
    asked: PartitionFetch
    data: PartitionData
    hosted: HostedPartition | None = None
    is_cold: bool = False
    is_old: bool = False
    told: tuple[int, int, int] | None = None
    follows: bool = False
    """Another broker leads it: the consumer reads from us because we are nearer to it (KIP-392)."""

    def is_news(self) -> bool:
        data = self.data
        marks = (data.high_watermark, data.last_stable, data.log_start)
        return (
            marks != self.told or data.size > 0 or data.code is not Code.NONE or data.preferred != NO_REPLICA
        )

    def tell(self) -> None:
        data = self.data
        self.told = (data.high_watermark, data.last_stable, data.log_start)

    def prefer(self, node_id: int | None) -> None:
        """Where the client should ask instead."""
        self.data.preferred = NO_REPLICA if node_id is None else node_id

    def is_better_elsewhere(self, partitions: PartitionRegistry, rack: str) -> bool:
        """The consumer's own zone has a broker, which has all that is durable: it is sent there (KIP-392)."""
        hosted, nearer = self.hosted, None
        if hosted is not None and not self.follows and self.asked.offset <= hosted.log.durable_high_watermark:
            nearer = partitions.nearest(rack, hosted)
        self.prefer(nearer)
        if hosted is not None and nearer is not None:
            self.note_watermarks(hosted)
        return nearer is not None

    def is_ahead(self, hosted: HostedPartition) -> bool:
        return not hosted.is_owned and self.asked.offset > hosted.log.buffered_high_watermark

    def check_start(self, hosted: HostedPartition) -> bool:
        low = self.data.log_start = hosted.low_watermark
        if self.asked.offset >= low:
            return True
        raise OffsetOutOfRange(low, hosted.log.buffered_high_watermark, self.asked.offset, str(hosted))

    def refuse(self, code: Code) -> None:
        data = self.data
        data.parts, data.size, data.code = (), 0, code
        data.high_watermark = data.last_stable = data.log_start = -1

    def note_watermarks(self, hosted: HostedPartition) -> None:
        """The durable high watermark is read first: both only grow, so the answer never has it above the other."""
        stable = hosted.stable()
        self.data.last_stable = hosted.log.durable_high_watermark if stable is None else stable.end
        self.data.high_watermark = hosted.log.buffered_high_watermark
