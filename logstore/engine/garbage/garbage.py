"""Objects that nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Garbage:
    """An object that may go."""

    key: str
    size: int


Report = Callable[[list[Garbage]], None]
"""Is told what went, or would go, piece by piece."""
