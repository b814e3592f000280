"""A compacted topic: histories to fill it with, a pass over it, and what it must still say afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from logstore import Record
from logstore.engine.partition.partition_log import PartitionLog
from logstore.testing import ManualClock
from tests.support.engine.upkeep import open_store


def fold(records: Iterable[Record]) -> dict[bytes, bytes]:
    table: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


def history(seed: int, appends: int, keys: int = 12, tombstones: float = 0.2) -> list[list[Record]]:
    """Appends of a few records each, some of them with headers."""
    rng = random.Random(seed)
    return [
        [
            Record(
                None if rng.random() < tombstones else b"%d-%d " % (turn, n) * rng.randint(1, 30),
                key=b"key-%d" % rng.randrange(keys),
                headers=(("turn", b"%d" % turn),) if rng.random() < 0.2 else (),
                timestamp_ms=1_000 + turn * 10 + n,
            )
            for n in range(rng.randint(1, 6))
        ]
        for turn in range(appends)
    ]


def append_all(log: PartitionLog, appends: Sequence[Sequence[Record]]) -> list[Record]:
    """Each append is a segment of its own. Returns the records as they are in the log."""
    stored: list[Record] = []
    for records in appends:
        receipt = log.append(records)
        stored += [
            record._replace(offset=offset)
            for offset, record in zip(count(receipt.offset), records, strict=False)
        ]
    return stored


def clean(log: PartitionLog, clock: ManualClock) -> Any:
    return log._internal.maintenance.clean(clock.now_ms())


def reread(objects: Any, clock: ManualClock) -> list[Record]:
    """As a process reads it that has just come."""
    with open_store(objects, clock, writer="read_only") as store:
        return list(store.topic("t").partition(0).records())


def check_same(before: list[Record], after: list[Record]) -> None:
    """The same table, and every record that is left is what it was, where it was."""
    by_offset = {record.offset: record for record in before}
    offsets = [record.offset or 0 for record in after]
    assert offsets == sorted(set(offsets))
    assert all(by_offset[record.offset] == record for record in after)
    assert fold(after) == fold(before)
