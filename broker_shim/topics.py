"""The one topic that is the broker's own."""

from __future__ import annotations

INTERNAL_TOPIC = "__consumer_offsets"
"""Groups and committed offsets. Clients may read it; only the coordinator writes it."""
