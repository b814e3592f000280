"""A lane at one moment, as an operator wants to see it."""

from __future__ import annotations

from typing import NamedTuple


class LaneOverview(NamedTuple):
    """`entries`: how many places are used. `partitions`: that write through it. `slices`: segments that lie in its entries
    and in no object of their own yet. `owner`: who adopted it last, in words, or nothing. `is_closed`: nobody writes
    through it any more. `in_flight` and `waiting`: entries that are being uploaded, and partitions that wait for the next;
    None of a lane of another process."""

    name: str
    entries: int
    partitions: int
    slices: int
    owner: str = ""
    is_closed: bool = False
    in_flight: int | None = None
    waiting: int | None = None
