"""Objects that nobody needs any more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Garbage:
    """An object that may go."""

    key: str
    size: int
