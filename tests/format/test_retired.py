"""Retired objects as ranges: the same objects and times as a plain map would have, in far fewer entries."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.format.batches.codecs import ZSTD, compress
from logstore.format.errors import FormatError
from logstore.format.stored.retired import MINUTE_MS, Retired, SeqRange

SEQS = st.sets(st.integers(0, 30), max_size=12)
NAMES = st.sets(st.sampled_from(["merged/a", "merged/b", "merged/c"]))
STEPS = st.lists(st.tuples(st.booleans(), SEQS, NAMES, st.integers(0, 4 * MINUTE_MS)), max_size=12)


def listed(retired: Retired, until_ms: int = 1 << 60) -> dict[int | str, int]:
    return dict(retired.until(until_ms))


@given(STEPS)
def test_L24_any_order_of_adding_and_taking_away_leaves_what_a_map_would_hold(
    steps: list[tuple[bool, set[int], set[str], int]],
) -> None:
    """A time may be later than the one that was given, by less than a minute: what is deleted later harms nobody."""
    retired, model = Retired(), dict[int | str, int]()
    for adds, seqs, names, at_ms in steps:
        if adds:
            retired = retired.plus(seqs, names, at_ms)
            model |= dict.fromkeys([*seqs, *names], at_ms)
        else:
            retired = retired.minus(seqs, names)
            model = {one: at for one, at in model.items() if one not in seqs and one not in names}
        found = listed(retired)
        assert found.keys() == model.keys()
        assert all(model[one] <= at < model[one] + MINUTE_MS for one, at in found.items())
        assert list(retired.segments) == sorted(retired.segments)
    assert Retired.parse(retired.pack()) == retired


def test_L24_only_what_was_retired_long_enough_ago_is_due() -> None:
    retired = Retired().plus([1, 2], ["merged/a"], 1000).plus([3], ["merged/b"], 2 * MINUTE_MS)
    assert listed(retired, 999) == {}
    assert listed(retired, 1000) == {1: 1000, 2: 1000, "merged/a": 1000}
    assert len(listed(retired, 2 * MINUTE_MS)) == 5


def test_L21_a_day_of_commits_is_a_range_a_minute() -> None:
    """Twenty commits a second, of which every 64 are merged: a range for each merge at first, one for each minute in the
    end."""
    retired = Retired()
    for merge in range(2_000):
        retired = retired.plus(range(merge * 64, merge * 64 + 64), (), merge * 3200)
        assert len(retired.segments) <= merge * 3200 // MINUTE_MS + 1
    assert len(listed(retired)) == 128_000


def test_L24_steady_merging_never_puts_off_what_is_due() -> None:
    """Neighbours are joined by the minute of the clock, not by their distance: else each would take the last one along."""
    retired = Retired()
    for second in range(600):
        retired = retired.plus([second], (), second * 1000)
    assert max(retired.segments[0]) < MINUTE_MS


def test_L20_the_names_of_format_1_are_read() -> None:
    names = {f"{seq:020d}.seg": 5 for seq in (1, 2, 3, 7)} | {"merged/x": 9}
    retired = Retired.parse_names(compress(ZSTD, json.dumps(names).encode()))
    assert retired == Retired((SeqRange(1, 3, 5), SeqRange(7, 7, 5)), {"merged/x": 9})


@pytest.mark.parametrize(
    "content", [b"[]", b"{", b"{}", b'{"segments": 5, "merged": {}}', b'{"segments": [[1]]}']
)
def test_L20_a_list_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError, match="retired"):
        Retired.parse(compress(ZSTD, content))
