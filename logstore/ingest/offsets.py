"""What a source offset must be able to do: be compared. Ints, LSNs and `(transaction, operation)` tuples all
do.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar


class Sortable(Protocol):
    """Anything with a total order of its own."""

    def __lt__(self, other: Any, /) -> bool: ...
    def __le__(self, other: Any, /) -> bool: ...
    def __gt__(self, other: Any, /) -> bool: ...
    def __ge__(self, other: Any, /) -> bool: ...


O = TypeVar("O", bound=Sortable)  # noqa: E741  (reads as "offset"; it is never beside a zero)
