"""What a read asks for: which partitions, from where to where, which columns, in which pieces. Checked by who makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from logstore.arrow.plan.positions import Bound
from logstore.config import Stored

View = Literal["log", "latest", "upsert"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions to read: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    path: str
    subscription: Subscription
    start: Bound
    end: Bound
    start_falls_to_latest: bool
    columns: tuple[str, ...]
    view: View
    visibility: Stored
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    max_trigger_delay_s: float
    poll_interval_s: float
