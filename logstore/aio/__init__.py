"""The same surface for asyncio: `await topic.append(…)`, `async for record in partition.tail()`.

A thin face over the same engine: what may block (an append that waits for room, a cold read, opening) runs on threads of its
own, acks and tail wake-ups come back through the event loop. A cancelled append may still be stored, like one whose
deadline passed; a cancelled read or tail leaves nothing behind.

May import: `store` and what lies below. Called by users.
"""

from __future__ import annotations

from logstore.aio.atomic_block import AtomicBlock
from logstore.aio.group import Group
from logstore.aio.partition import PartitionLog
from logstore.aio.store import Store, open
from logstore.aio.topic import Topic

__all__ = ["AtomicBlock", "Group", "PartitionLog", "Store", "Topic", "open"]


def __dir__() -> list[str]:
    return sorted(__all__)
