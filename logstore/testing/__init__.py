"""Stores that misbehave on purpose, for the tests of anything that is built on an object store."""

from logstore.testing.clock import ManualClock
from logstore.testing.faulty import ANY_FAULT, Call, Fault, FaultyStore, Rule
from logstore.testing.gated import Gate, GatedStore, HeldCall

__all__ = [
    "ANY_FAULT",
    "Call",
    "Fault",
    "FaultyStore",
    "Gate",
    "GatedStore",
    "HeldCall",
    "ManualClock",
    "Rule",
]
