"""What `get(key, start, end)` means, once for every home."""

from __future__ import annotations


def resolve(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """`[start, end)` cut to an object of `size` bytes, as `0 <= first <= last <= size`.

    A negative start counts from the end of the object; an end is always a position, and a negative one is a
    mistake.
    """
    check_end(end)
    first = 0 if start is None else start
    if first < 0:
        first += size
    first = min(max(first, 0), size)
    last = size if end is None else min(end, size)
    return first, max(first, last)


def check_end(end: int | None) -> None:
    if end is not None and end < 0:
        raise ValueError(
            f"end={end}: an end is a position from the start of the object; use None for the rest"
        )
