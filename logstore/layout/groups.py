"""The names of what groups of embedded readers keep. See `docs/format.md`.

    groups/‹group›/group                 the document: members, who owns which partition, positions at the last hand-over
    groups/‹group›/slots/‹n, 5 digits›   one member's: a sign of life, and the positions it has saved

They are changed by compare-and-set and never deleted: a slot whose member has left is taken again.
"""

from __future__ import annotations

import re

from logstore.layout.paths import refusal

GROUPS_PREFIX = "groups/"
SLOTS_MAX = 100_000
_SLOT = re.compile(r"groups/[A-Za-z0-9._-]+/slots/(\d{5})", re.ASCII)


def check_group_name(name: object) -> str:
    """The name itself, if it can be a key here."""
    if not isinstance(name, str):
        raise TypeError(f"a group's name is a str, not {type(name).__name__}")
    if (why := refusal(name)) is not None:
        raise ValueError(f"{name[:80]!r} is no name for a group: {why}")
    return name


def group_prefix(group: str) -> str:
    return f"{GROUPS_PREFIX}{group}/"


def group_document(group: str) -> str:
    return f"{group_prefix(group)}group"


def group_slot(group: str, slot: int) -> str:
    return f"{group_prefix(group)}slots/{slot:05d}"


def slot_of(key: str) -> int | None:
    """The number in a slot's key; None for any other object."""
    found = _SLOT.fullmatch(key)
    return int(found[1]) if found else None
