"""Several writers on one partition: what `docs/writers.md` tells about, by its public names.

Shared writers come from `logstore.open(…, writer="shared")`, replicated ones from `PartitionLog.replicated(writer_id)`.
"""

from logstore.engine.producer import Producer
from logstore.engine.replicated_writer import ReplicatedWriter
from logstore.engine.source_ranges import Applied
from logstore.engine.standby import Standby
from logstore.engine.writer_metrics import WriterMetrics

__all__ = ["Applied", "Producer", "ReplicatedWriter", "Standby", "WriterMetrics"]
