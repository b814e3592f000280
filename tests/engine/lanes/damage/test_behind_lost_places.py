"""L20: what counts behind a place that is lost, for random lanes."""

from __future__ import annotations

import random

import pytest

from logstore.engine.lanes.lane_log import LostEntry
from logstore.engine.lanes.lane_state import LaneState
from logstore.errors import CorruptData
from logstore.format.stored.entry import (
    ClaimKey,
    Entry,
    EntryHeader,
    EntryKind,
    Part,
)

# What counts behind a place that is lost


class _Owner:
    """A lane as its owner and takers make it, with several uploads in flight: entries by place, and which of them count."""

    def __init__(self, rng: random.Random, claims: int) -> None:
        self._rng = rng
        self.entries: list[Entry] = []
        self.counts: list[bool] = []
        self.edge = bytes(16)
        self.open = {ClaimKey(f"topics/t/i/{number}/", 1): 1 for number in range(claims)}

    def data(self, seq: int, prev: bytes, keys: list[ClaimKey], at: dict[ClaimKey, int], known: int) -> Entry:
        parts = tuple(Part(key, at[key], 0, at[key], at[key] + 1, at[key] + 1, 0, 1, 1, 0, 0) for key in keys)
        return Entry(EntryHeader(EntryKind.DATA, seq, self._rng.randbytes(16), prev, 0, known), parts)

    def _add(self, entry: Entry, counts: bool) -> None:
        self.entries.append(entry)
        self.counts.append(counts)
        if counts:
            self.edge = entry.header.id
            for part in entry.parts:
                self.open[part.claim] = part.seq + 1
            for key in entry.seals:
                self.open.pop(key, None)

    def burst(self) -> None:
        """Some uploads at once; perhaps a taker's seal comes between, and those behind it are void."""
        depth, known = self._rng.randint(1, 3), len(self.entries)
        flight, prev, at = [], self.edge, dict(self.open)
        for place in range(depth):
            chosen = [key for key in at if self._rng.random() < 0.6]
            entry = self.data(known + place, prev, chosen, at, known)
            for key in chosen:
                at[key] += 1
            prev = entry.header.id
            flight.append(entry)
        seal_at = self._rng.randrange(depth) if self.open and self._rng.random() < 0.4 else None
        for place, entry in enumerate(flight):
            if place == seal_at:
                header = EntryHeader(
                    EntryKind.SEAL,
                    len(self.entries),
                    self._rng.randbytes(16),
                    self.edge,
                    0,
                    len(self.entries),
                )
                self._add(Entry(header, (), (self._rng.choice(list(self.open)),)), True)
            elif seal_at is None or place < seal_at:
                self._add(entry, True)
            elif self._rng.random() < 0.7:
                self._add(entry, False)
            else:
                return


@pytest.mark.parametrize("seed", range(150))
def test_L20_behind_a_lost_place_nothing_counts_that_did_not_and_what_may_be_lost_is_in_doubt(
    seed: int,
) -> None:
    rng = random.Random(seed)
    lane = _Owner(rng, 3)
    everyone = list(lane.open)
    for _ in range(rng.randint(2, 7)):
        lane.burst()
    truth = LaneState()
    for entry, counts in zip(lane.entries, lane.counts, strict=True):
        assert truth.take(entry) == counts
    lost = rng.randrange(len(lane.entries))
    state = LaneState()
    for place, entry in enumerate(lane.entries):
        state.take(LostEntry(place, CorruptData("it", None)) if place == lost else entry)
    assert state.next_seq == truth.next_seq
    for key in everyone:
        known, real = state.claims.get(key), truth.claims.get(key)
        expected = {one.part.seq: one.entry for one in real.parts} if real is not None else {}
        found = {one.part.seq: one.entry for one in known.parts} if known is not None else {}
        assert found.items() <= expected.items(), "what did not count counts"
        # Of a claim that was left, the place of its successor in the partition's own chain tells how many parts it had.
        is_doubted = (
            state.first_lost(0) is not None if known is None else known.is_left or known.lost_at is not None
        )
        for seq in expected.keys() - found.keys():
            assert is_doubted or seq < max(found, default=0), (
                "it is missing, no later part tells, and nobody is told"
            )
