"""Ingest: one source in, many partitions out, and the source forgets nothing that is not stored.

Lives here: `flush_tracker` and `ledger` (what the source may forget: pure, no I/O), `collector` (transactions in, appends
out), `journal` (what a partition has of which transaction), `postgres` (a source).

May import: `store`, `topic`, `engine.partition` and what lies below. Called by users and by the commands.
"""

from logstore.ingest.alignment import Alignment
from logstore.ingest.collector import Collector, Counts
from logstore.ingest.findings import Challenge, Explanation, Holder, Lease, Stalled
from logstore.ingest.flush_tracker import FlushTracker
from logstore.ingest.route import EVERY_PARTITION, Routed

__all__ = [
    "EVERY_PARTITION",
    "Alignment",
    "Challenge",
    "Collector",
    "Counts",
    "Explanation",
    "FlushTracker",
    "Holder",
    "Lease",
    "Routed",
    "Stalled",
]


def __dir__() -> list[str]:
    return sorted(__all__)
