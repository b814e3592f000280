"""The objects of a partition that no row of its manifest names any more, and since when.

gc deletes them after the grace period, a day by default, so a busy partition has millions of them at any time. What a
compaction or an expiry retires are neighbours of the chain, and what comes next is their neighbour: as ranges, all of
a minute are an entry or two. So the list is read, extended and written in a time that does not follow the number of commits.

    segments   [first seq, last seq, ms] of each range
    merged     the name of each object that maintenance wrote, below the partition's prefix, and its ms

Both as JSON, zstd. Manifests of format 1 have one map instead, from the name of each object to its ms.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from operator import itemgetter
from typing import Any, NamedTuple

from logstore.format.batches.codecs import ZSTD, compress, decompress
from logstore.format.errors import FormatError

MINUTE_MS = 60_000
_BYTES_MAX = 1 << 30
_SEGMENT_NAME = re.compile(r"(\d{20})\.seg")
_MERGED_NAME = re.compile(r"merged/(\d{20})-")


class SeqRange(NamedTuple):
    """The segments from `first_seq` to `last_seq`, both included, that were retired by `at_ms`."""

    first_seq: int
    last_seq: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Retired:
    """`segments` are in order and do not overlap; `merged` are names, each with its time."""

    segments: tuple[SeqRange, ...] = ()
    merged: Mapping[str, int] = field(default_factory=dict)

    def plus(self, seqs: Collection[int], merged: Collection[str], at_ms: int) -> Retired:
        """With these, too."""
        rest = self.minus(seqs, merged)
        more = (SeqRange(seq, seq, at_ms) for seq in seqs)
        return Retired(_joined((*rest.segments, *more)), {**rest.merged, **dict.fromkeys(merged, at_ms)})

    def minus(self, seqs: Collection[int], merged: Collection[str]) -> Retired:
        """Without these."""
        gone, kept = sorted(seqs), []
        for one in self.segments:
            first = one.first_seq
            for seq in gone[bisect_left(gone, one.first_seq) : bisect_right(gone, one.last_seq)]:
                if first < seq:
                    kept.append(SeqRange(first, seq - 1, one.at_ms))
                first = seq + 1
            if first <= one.last_seq:
                kept.append(one._replace(first_seq=first))
        return Retired(tuple(kept), {name: at for name, at in self.merged.items() if name not in merged})

    def has(self, seq: int) -> bool:
        """Whether the segment is among them."""
        at = bisect_right(self.segments, seq, key=itemgetter(0)) - 1
        return at >= 0 and self.segments[at].last_seq >= seq

    def until(self, ms: int) -> Iterator[tuple[int | str, int]]:
        """What was retired at `ms` or before, a seq or a name each, and when. In the chain's order: if not all of it gets
        deleted, what is left begins later and has no hole."""
        seqs: Iterator[tuple[int, int | str, int]] = (
            (seq, seq, at_ms)
            for first, last, at_ms in self.segments
            if at_ms <= ms
            for seq in range(first, last + 1)
        )
        names: Iterator[tuple[int, int | str, int]] = (
            (_first_seq(name), name, at_ms) for name, at_ms in sorted(self.merged.items()) if at_ms <= ms
        )
        for _, which, at_ms in merge(seqs, names, key=itemgetter(0)):
            yield which, at_ms

    def pack(self) -> bytes:
        content = {"merged": dict(self.merged), "segments": self.segments}
        return compress(ZSTD, json.dumps(content, sort_keys=True).encode())

    @classmethod
    def parse(cls, packed: bytes) -> Retired:
        content = _unpacked(packed)
        try:
            return cls(tuple(SeqRange(*one) for one in content["segments"]), content["merged"])
        except (KeyError, TypeError) as error:
            raise FormatError(f"the manifest's list of retired objects cannot be read: {error}") from error

    @classmethod
    def parse_names(cls, packed: bytes) -> Retired:
        """As format 1 has them."""
        merged, seqs = {}, []
        for name, at_ms in _unpacked(packed).items():
            if found := _SEGMENT_NAME.fullmatch(name):
                seqs.append(SeqRange(int(found[1]), int(found[1]), at_ms))
            else:
                merged[name] = at_ms
        return cls(_joined(seqs), merged)


def _first_seq(name: str) -> int:
    found = _MERGED_NAME.match(name)
    return int(found[1]) if found else 0


def _joined(ranges: Iterable[SeqRange]) -> tuple[SeqRange, ...]:
    """In order. Neighbours that were retired in the same minute are one, as of the later time."""
    found: list[SeqRange] = []
    for one in sorted(ranges):
        last = found[-1] if found else None
        if last and last.last_seq + 1 == one.first_seq and last.at_ms // MINUTE_MS == one.at_ms // MINUTE_MS:
            found[-1] = SeqRange(last.first_seq, one.last_seq, max(last.at_ms, one.at_ms))
        else:
            found.append(one)
    return tuple(found)


def _unpacked(packed: bytes) -> dict[str, Any]:
    try:
        content = json.loads(decompress(ZSTD, packed, max_size=_BYTES_MAX))
    except ValueError as error:
        raise FormatError(f"the manifest's list of retired objects cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise FormatError("the manifest's list of retired objects is none")
    return content
