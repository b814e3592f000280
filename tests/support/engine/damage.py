"""Ways to damage an object's bytes, each with a name, so that a test can try every one of them at every place."""

from __future__ import annotations

from collections.abc import Iterator

Damaged = tuple[str, bytes]


def flips(data: bytes, start: int = 0, end: int | None = None) -> Iterator[Damaged]:
    """Each byte once, with one of its bits flipped: a different bit from byte to byte."""
    for place in range(start, len(data) if end is None else end):
        changed = bytearray(data)
        changed[place] ^= 1 << (place % 8)
        yield f"flip at {place}", bytes(changed)


def cuts(data: bytes) -> Iterator[Damaged]:
    """Every length that is too short."""
    for size in range(len(data)):
        yield f"cut to {size}", data[:size]


def extensions(data: bytes) -> Iterator[Damaged]:
    yield "one byte more", data + b"\0"
    yield "zeros behind it", data + bytes(512)
    yield "its own end once more", data + data[-64:]
    yield "twice itself", data + data
    yield "a byte in front", b"\0" + data


def shifts(data: bytes, step: int) -> Iterator[Damaged]:
    """A byte taken out, and one put in, at every `step`-th place: the size is wrong and everything behind has moved."""
    for place in range(0, len(data), step):
        yield f"byte {place} taken out", data[:place] + data[place + 1 :]
        yield f"byte put in at {place}", data[:place] + b"\x5a" + data[place:]


def swaps(data: bytes, size: int) -> Iterator[Damaged]:
    """Two neighbouring pieces of `size` bytes exchanged: every byte is one that was written, in the wrong place."""
    for place in range(0, len(data) - 2 * size, size):
        first, second = data[place : place + size], data[place + size : place + 2 * size]
        if first != second:
            yield f"pieces at {place} exchanged", data[:place] + second + first + data[place + 2 * size :]
