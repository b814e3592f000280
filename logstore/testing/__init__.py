"""Stores that misbehave on purpose, for the tests of anything that is built on an object store."""

from logstore.testing.clock import ManualClock
from logstore.testing.faulty import ANY_DELIVERY, ANY_FAULT, Call, Delivery, Fault, FaultyStore, Rule
from logstore.testing.gated import Gate, GatedStore, HeldCall
from logstore.testing.history import HistoryViolation, check_history
from logstore.testing.history_events import History
from logstore.testing.slow import S3_LATENCY, Latency, SlowStore

__all__ = [
    "ANY_DELIVERY",
    "ANY_FAULT",
    "S3_LATENCY",
    "Call",
    "Delivery",
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
    "SlowStore",
    "check_history",
]
