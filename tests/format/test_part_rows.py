"""The rows of a lane's parts: what was added comes back, in memory and through a checkpoint's columns."""

from __future__ import annotations

import pytest

from logstore.format.stored.entry import ClaimKey, Part
from logstore.format.stored.lane_checkpoint import CheckpointedClaim, LaneCheckpoint
from logstore.format.stored.part_rows import CheckpointedPart, PartRows, parse_columns

LARGEST = 2**62


def part(claim: ClaimKey, seq: int, *, base: int = 0) -> Part:
    return Part(claim, seq, 2**32 - 1, base, base + 3, LARGEST, 92, 800, 3, -1, LARGEST)


def test_rows_are_what_was_added() -> None:
    claim = ClaimKey("topics/t/1/0/", 7)
    parts = [CheckpointedPart(10 + seq, part(claim, seq, base=seq * 3)) for seq in range(5)]
    rows = PartRows.of(parts)
    assert list(rows) == parts
    assert (rows[0], rows[4], rows[-1]) == (parts[0], parts[4], parts[4])
    assert (len(rows), rows.claim) == (5, claim)
    for outside in (5, -6):
        with pytest.raises(IndexError):
            rows[outside]


def test_rows_are_found_by_place_and_by_entry() -> None:
    claim = ClaimKey("topics/t/1/0/", 0)
    rows = PartRows.of(CheckpointedPart(entry, part(claim, seq)) for entry, seq in ((4, 1), (6, 2), (9, 5)))
    assert [rows.first_from_seq(seq) for seq in (0, 1, 3, 5, 6)] == [0, 0, 2, 2, 3]
    assert [rows.first_from_entry(entry) for entry in (4, 5, 9, 10)] == [0, 1, 2, 3]
    assert list(rows.copy(1)) == list(rows)[1:]


def test_a_copy_does_not_grow() -> None:
    claim = ClaimKey("topics/t/1/0/", 0)
    rows = PartRows.of([CheckpointedPart(0, part(claim, 0))])
    seen, iterating = rows.copy(), iter(rows)
    next(iterating)
    rows.add(1, part(claim, 1))  # also while somebody looks at it
    assert (len(seen), len(rows)) == (1, 2)
    assert list(iterating) == []


def test_a_checkpoint_says_the_rows_of_each_claim() -> None:
    claims = [ClaimKey(f"topics/t/1/{number}/", number) for number in range(3)]
    rows = tuple(
        PartRows.of(CheckpointedPart(seq, part(claim, seq)) for seq in range(4)) for claim in claims[:2]
    )
    told = tuple(CheckpointedClaim(claim, 0, 0, 0, is_sealed=False) for claim in claims)
    checkpoint = LaneCheckpoint(claims=told, parts=rows)
    assert LaneCheckpoint.parse(checkpoint.pack()).parts == rows


def test_rows_of_claims_that_take_turns_are_told_apart() -> None:
    """Each checkpoint has them claim by claim; a reader need not rely on that."""
    one, other = ClaimKey("topics/t/1/0/", 0), ClaimKey("topics/t/1/1/", 0)
    columns = b"".join(
        value.to_bytes(4 if column == 2 else 8, "little")
        for column in range(11)
        for value in (column, column + 100, column + 200)
    )
    found = parse_columns([one, other, one], columns)
    assert {rows.claim: [row.entry for row in rows] for rows in found} == {one: [0, 200], other: [100]}
    assert [row.part.max_timestamp_ms for row in found[0]] == [10, 210]
