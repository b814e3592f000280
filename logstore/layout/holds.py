"""Who retention waits for: one small object for each, which says how far somebody has come with a topic's records.

    holds/‹topic›/‹incarnation›/‹who, a digest›

It is put by whoever copies the topic elsewhere, after each step; what it says is never further than what is copied,
so an old one that is put late does no harm. Retention reads it before it takes records away. It goes with `forget`,
or with its topic.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logstore.format.stored.document import pack_document
from logstore.layout.documents import read_document
from logstore.layout.paths import HOLDS_PREFIX
from logstore.objects.protocol import ObjectStore, get_if_there

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Hold:
    """`offsets`: for each partition, where records begin that `who` has not copied. A record is kept for at most
    `seconds` longer than retention says."""

    who: str
    seconds: float
    offsets: Mapping[int, int]
    updated_at_ms: int

    def pack(self) -> bytes:
        content = {
            "format": FORMAT_VERSION,
            "who": self.who,
            "seconds": self.seconds,
            "offsets": {str(partition): offset for partition, offset in self.offsets.items()},
            "updated_at_ms": self.updated_at_ms,
        }
        return pack_document(content)

    @classmethod
    def parse(cls, key: str, data: bytes) -> Hold:
        def build(content: dict[str, Any]) -> Hold:
            offsets = {int(partition): int(offset) for partition, offset in content["offsets"].items()}
            seconds = float(content["seconds"])
            if not 0 <= seconds < math.inf:
                raise ValueError(f"it holds for {seconds} seconds")
            return cls(content["who"], seconds, offsets, int(content["updated_at_ms"]))

        return read_document(key, data, "a hold, for which retention waits,", (FORMAT_VERSION,), build)


def holds_prefix(topic: str, incarnation: str) -> str:
    return f"{HOLDS_PREFIX}{topic}/{incarnation}/"


def hold_key(topic: str, incarnation: str, who: str) -> str:
    """`who` may be any text, so its digest stands for it."""
    return holds_prefix(topic, incarnation) + hashlib.blake2b(who.encode(), digest_size=16).hexdigest()


def holds_of(store: ObjectStore, topic: str, incarnation: str) -> list[Hold]:
    """All of a topic's incarnation."""
    stored = (
        (info.key, get_if_there(store, info.key)) for info in store.list(holds_prefix(topic, incarnation))
    )
    return [Hold.parse(key, data) for key, data in stored if data is not None]  # else forgotten just now
