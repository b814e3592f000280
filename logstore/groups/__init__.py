"""Groups of embedded readers: saved positions, and partitions shared out among members in many processes.

Lives here: `documents` (a group's two kinds of objects as values, and what follows from them: no I/O), `stored_group` (those
objects in the store), `membership` (the protocol: join, save, give up, replace, leave; no thread), `group` (what users hold:
it reads, and keeps its sign of life), `places` (what users say of partitions and positions), `lag` (how far behind, for
members and for the command line). For asyncio: `logstore.aio.group`.

May import: `topic` and what lies below it. Called by `store`, `aio` and the commands. Who may save which position is
modelled in `tests/model/groups.py`; why it is done so is in `docs/decisions/0015-groups-of-embedded-readers.md`.
"""

from __future__ import annotations

from logstore.groups.documents import Place
from logstore.groups.group import Group
from logstore.groups.lag import GroupInfo, PartitionLag, delete, describe, lag, names

__all__ = ["Group", "GroupInfo", "PartitionLag", "Place", "delete", "describe", "lag", "names"]


def __dir__() -> list[str]:
    return sorted(__all__)
