"""Members of a group without threads: each on a clock and with a seed of its own."""

from __future__ import annotations

import random

from logstore.groups.documents import Place
from logstore.groups.membership import Membership
from logstore.objects import ObjectStore
from logstore.testing import ManualClock

TIMEOUT_S = 30.0
PLACES: list[Place] = [("t", number) for number in range(4)]


def member(
    objects: ObjectStore,
    seed: int,
    clock: ManualClock | None = None,
    *,
    name: str | None = None,
    partitions: int = len(PLACES),
    timeout: float = TIMEOUT_S,
) -> Membership:
    return Membership(
        objects,
        clock or ManualClock(),
        random.Random(seed),
        "g",
        name=name,
        topics=("t",),
        session_timeout=timeout,
        find_topics=lambda names: dict.fromkeys(names, ("0" * 16, partitions)),
    )


def joined(objects: ObjectStore, seed: int, clock: ManualClock | None = None, **how: object) -> Membership:
    made = member(objects, seed, clock, **how)  # type: ignore[arg-type]
    made.join()
    return made
