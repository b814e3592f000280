"""What a change becomes: records, and the partitions that they go to."""

from __future__ import annotations

from typing import NamedTuple

from logstore.format.batches.record import Headers

EVERY_PARTITION = -1
"""`Routed.partition`: one copy to each partition of the topic."""


class Routed(NamedTuple):
    """One record that a change becomes. A plain tuple in this order does as well.

    Without `partition` the key picks it, as in `Topic.append`; without a key it is partition 0, because a
    replay must find the same one.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None
