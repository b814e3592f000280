"""The parts that a lane holds of one claim, as numbers in one array.

The owner of a lane keeps a row for each part of its last thousand entries, and says all of them again in each checkpoint. As
objects these would be two for each append, for the garbage collector to visit again and again; as columns they are copied.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from logstore.format.stored.entry import ClaimKey, Part

_ROW = struct.Struct("=11q")
_WIDTH = 11
_COLUMNS = "QQIqqqQQQqq"
"""As they are stored: entry, and all of a part behind its claim."""
_ENTRY, _SEQ = 0, 1
ROW_SIZE = struct.calcsize("<" + _COLUMNS)
_NOBODY = ClaimKey("", 0)


class CheckpointedPart(NamedTuple):
    """A part, and in which entry it lies."""

    entry: int
    part: Part


class PartRows:
    """In the order of their places. Rows are added at the end, by one thread at a time; whoever else looks at it meanwhile
    sees those that there were, or some of the new ones as well."""

    __slots__ = ("_numbers", "claim")

    def __init__(self, claim: ClaimKey = _NOBODY, numbers: Iterable[int] = ()) -> None:
        self.claim = claim  # until the first part says whose they are, nobody's
        self._numbers = array("q", numbers)

    @classmethod
    def of(cls, parts: Iterable[CheckpointedPart]) -> PartRows:
        """All of one claim."""
        rows = cls()
        for entry, part in parts:
            rows.add(entry, part)
        return rows

    def add(self, entry: int, part: Part) -> None:
        self.claim = part[0]
        self._numbers.extend((entry, *part[1:]))

    def __len__(self) -> int:
        return len(self._numbers) // _WIDTH

    def __getitem__(self, number: int) -> CheckpointedPart:
        place = number + len(self) if number < 0 else number
        if not 0 <= place < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        entry, *rest = _ROW.unpack_from(self._numbers, place * _ROW.size)
        return CheckpointedPart(entry, Part(self.claim, *rest))

    def __iter__(self) -> Iterator[CheckpointedPart]:
        for entry, *rest in _ROW.iter_unpack(self._numbers.tobytes()):
            yield CheckpointedPart(entry, Part(self.claim, *rest))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartRows) and (self.claim, self._numbers) == (other.claim, other._numbers)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PartRows({list(self)})"

    def copy(self, first: int = 0) -> PartRows:
        """As they are now, from that row on."""
        return PartRows(self.claim, self._numbers[first * _WIDTH :])

    def first_from_seq(self, seq: int) -> int:
        """The first row that has this place in the partition's chain, or a later one."""
        return bisect_left(self._numbers[_SEQ::_WIDTH], seq)

    def first_from_entry(self, entry: int) -> int:
        """The first row that lies in this entry, or in a later one."""
        return bisect_left(self._numbers[_ENTRY::_WIDTH], entry)

    def numbers(self) -> array[int]:
        """All of them, row by row."""
        return self._numbers


def pack_columns(rows: Sequence[PartRows]) -> bytes:
    """Those of all claims, column by column."""
    numbers = array("q")
    for one in rows:
        numbers.extend(one.numbers())
    packed = []
    for place, kind in enumerate(_COLUMNS):
        column = numbers[place::_WIDTH]
        packed.append(_little(array(kind, column) if kind == "I" else column).tobytes())
    return b"".join(packed)


def parse_columns(claims: Sequence[ClaimKey], packed: bytes) -> tuple[PartRows, ...]:
    """What `pack_columns` made; `claims` names that of each row."""
    count, at = len(claims), 0
    numbers = array("q", bytes(count * _ROW.size))
    for place, kind in enumerate(_COLUMNS):
        size = count * struct.calcsize(kind)
        column = array("I" if kind == "I" else "q", packed[at : at + size])
        numbers[place::_WIDTH] = array("q", _little(column))
        at += size
    rows: dict[ClaimKey, PartRows] = {}
    first = 0
    for claim, run in groupby(claims):
        end = first + sum(1 for _ in run)
        found = rows.setdefault(claim, PartRows(claim))
        found.numbers().extend(numbers[first * _WIDTH : end * _WIDTH])
        first = end
    return tuple(rows.values())


def _little(column: array[int]) -> array[int]:
    """Numbers are stored with their lowest byte first."""
    if struct.pack("=H", 1) != struct.pack("<H", 1):
        column.byteswap()
    return column
