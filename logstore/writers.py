"""Several writers on one partition: what `docs/writers.md` tells about, by its public names.

Shared writers come from `logstore.open(…, writer="shared")`, replicated ones from `PartitionLog.replicated(writer_id)`.
"""

from logstore.engine.partition.writer_metrics import WriterMetrics
from logstore.engine.replicated.replicated_writer import ReplicatedWriter
from logstore.engine.replicated.source_ranges import Applied
from logstore.producer import Producer
from logstore.standby import Standby

__all__ = ["Applied", "Producer", "ReplicatedWriter", "Standby", "WriterMetrics"]


def __dir__() -> list[str]:
    return sorted(__all__)
