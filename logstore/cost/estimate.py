"""What a set-up will cost: requests, storage and money a month, and how long a durable ack takes.

The model
---------
Records come at random, λ a second and partition (or lane). One upload is under way at a time; what comes meanwhile goes
with the next. So a flush begins `T` seconds after the one before, where T is what an upload takes or `linger`, whichever
is longer; or, if nothing came in that time, with the next record. Nothing comes in T with probability e^(−λT), and the
next record is 1/λ away:

    flushes a second and partition  =  1 / (T + e^(−λT) / λ)

Few records: each has a PUT of its own. Many: 1/T PUTs a second, whatever their number. With buffered acks T is the flush
interval, and the first record of a flush always waits for it: 1 / (T + 1/λ). A flush that is larger than `flush_bytes` is
several. Beside the segments: a manifest for 64 of them, and maintenance, which reads each once and writes it once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from logstore.cost.prices import Prices

MONTH_S = 30 * 86400.0
CHECKPOINT_EVERY = 64
_OBJECT_BYTES = 250  # header, index and footer of a segment
_FLUSH_BYTES = 8 << 20
_SEGMENT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """`rate`: records a second, all partitions together. `size`: bytes of a record as it is stored. `lanes`: through how
    many the partitions commit, with one PUT for all; 0: each to its own chain. `linger`: the least seconds between the
    starts of two flushes of a partition, or of a lane. `flush_interval`: for buffered acks. `retention`: seconds that
    records are kept. `tails`: processes that follow all partitions from elsewhere, polling every `follow_interval`."""

    rate: float
    size: float
    partitions: int = 1
    lanes: int = 1
    linger: float = 0.0
    buffered: bool = False
    flush_interval: float = 1.0
    retention: float = 7 * 86400.0
    tails: int = 0
    follow_interval: float = 0.5

    def __post_init__(self) -> None:
        for name in ("rate", "size", "linger", "flush_interval", "retention", "tails"):
            if not getattr(self, name) >= 0 or getattr(self, name) == math.inf:
                raise ValueError(f"{name}={getattr(self, name)!r}: it is a number, at least 0, and finite")
        if self.partitions < 1 or self.lanes < 0:
            raise ValueError(
                f"partitions={self.partitions!r}, lanes={self.lanes!r}: at least 1, and at least 0"
            )

    @property
    def chains(self) -> int:
        """How many uploads go side by side."""
        return min(self.partitions, self.lanes) if self.lanes else self.partitions


@dataclass(frozen=True, slots=True)
class Estimate:
    """A month. `ack_seconds`: what a durable ack takes on average; with buffered acks, until a record is durable."""

    prices: Prices
    puts_a_second: float
    gets_a_second: float
    stored_bytes: float
    request_dollars: float
    storage_dollars: float
    ack_seconds: float

    @property
    def dollars(self) -> float:
        return self.request_dollars + self.storage_dollars

    @property
    def puts_a_month(self) -> float:
        return self.puts_a_second * MONTH_S

    @property
    def gets_a_month(self) -> float:
        return self.gets_a_second * MONTH_S


def estimate(plan: Plan, prices: Prices) -> Estimate:
    """What the plan costs at these prices."""
    flushes, waits = _flushes(plan, prices.put_seconds)
    flushes *= plan.chains
    bytes_a_second = plan.rate * plan.size
    segments = max(flushes, bytes_a_second / _FLUSH_BYTES)
    written = bytes_a_second + segments * _OBJECT_BYTES
    merged = written / _SEGMENT_BYTES
    puts = segments * (1 + 1 / CHECKPOINT_EVERY) + merged
    # Maintenance reads what it merges. A tail asks once for each segment, and while nothing comes as often as it polls.
    places = (
        2 * plan.chains if plan.lanes else plan.partitions
    )  # of a lane: the next one, and whether it was emptied
    polls = plan.tails * places / plan.follow_interval if plan.follow_interval else 0.0
    gets = segments + plan.tails * segments + polls
    read = written * (1 + plan.tails)
    month = {"put": (puts, written * 2), "get": (gets, read)}
    requests = sum(prices.of(name, count * MONTH_S, size * MONTH_S) for name, (count, size) in month.items())
    stored = bytes_a_second * plan.retention + bytes_a_second * min(plan.retention, 86400.0)  # a day of grace
    return Estimate(
        prices=prices,
        puts_a_second=puts,
        gets_a_second=gets,
        stored_bytes=stored,
        request_dollars=requests,
        storage_dollars=stored / 1e9 * prices.storage_gb_month,
        ack_seconds=waits + prices.put_seconds,
    )


def _flushes(plan: Plan, put_seconds: float) -> tuple[float, float]:
    """A second and partition; and how long a record waits on average before its upload begins."""
    arrivals = plan.rate / plan.chains
    if not arrivals:
        return 0.0, 0.0
    if plan.buffered:
        return 1 / (max(plan.flush_interval, put_seconds) + 1 / arrivals), plan.flush_interval / 2
    cycle = max(put_seconds, plan.linger)
    nothing_came = math.exp(-arrivals * cycle)
    # Who finds nobody before it goes at once; the others wait for half a cycle.
    return 1 / (cycle + nothing_came / arrivals), (1 - nothing_came) * cycle / 2
