"""Ingest: one source in, many partitions out, and the source forgets nothing that is not stored."""

from .alignment import Alignment
from .findings import Challenge, Explanation, Holder, Lease, Stalled
from .flush_tracker import FlushTracker

__all__ = ["Alignment", "Challenge", "Explanation", "FlushTracker", "Holder", "Lease", "Stalled"]
