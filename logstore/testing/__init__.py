"""Stores and disks that misbehave on purpose, for the tests of anything that is built on them.

May import: `objects`, `format`, `config`, `errors` (the pytest plug-in: `logstore` and `broker_shim`). Called by tests, ours
and other people's, and by nothing of the product.
"""

from logstore.testing.clock import ManualClock
from logstore.testing.disk import SHORT_WRITE, DiskCall, DiskFault, SimulatedDisk
from logstore.testing.faulty import ANY_DELIVERY, ANY_FAULT, Call, Delivery, Fault, FaultyStore, Rule
from logstore.testing.gated import Gate, GatedStore, HeldCall
from logstore.testing.history import HistoryViolation, check_history
from logstore.testing.history_events import History
from logstore.testing.slow import S3_LATENCY, Latency, SlowStore

__all__ = [
    "ANY_DELIVERY",
    "ANY_FAULT",
    "S3_LATENCY",
    "SHORT_WRITE",
    "Call",
    "Delivery",
    "DiskCall",
    "DiskFault",
    "Fault",
    "FaultyStore",
    "Gate",
    "GatedStore",
    "HeldCall",
    "History",
    "HistoryViolation",
    "Latency",
    "ManualClock",
    "Rule",
    "SimulatedDisk",
    "SlowStore",
    "check_history",
]


def __dir__() -> list[str]:
    return sorted(__all__)
