"""Topics as tables: rows, what they hold, and what reading them costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import pyarrow as pa

from logstore import Record, Topic
from logstore.arrow import table

MakeLog = Callable[..., str]
START_MS = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIB = 1 << 20


def numbered(first: int, stop: int) -> list[Record]:
    return [Record(b"v%d" % n, b"k%d" % (n % 5), (), START_MS + n) for n in range(first, stop)]


def large(first: int, stop: int) -> list[list[Record]]:
    """Segments of almost 1 MiB that no codec makes smaller: five of them are one step of a stream."""
    noise = random.Random(5)
    return [[Record(noise.randbytes(MIB - 1000), None, (), START_MS + n)] for n in range(first, stop)]


def together(splits: Iterable[table.TopicSplit]) -> pa.Table:
    return pa.concat_tables([split.read().read_all() for split in splits])


def got(topic: Topic, read: Callable[[], object]) -> tuple[int, int]:
    """How many GETs the call makes, and how many bytes they bring."""
    metered = topic.partition(0)._internal.objects.inner.inner.inner  # type: ignore[attr-defined]
    before = metered.snapshot()["get"]  # opening made some
    read()
    after = metered.snapshot()["get"]
    return after.requests - before.requests, after.bytes - before.bytes
