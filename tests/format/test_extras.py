"""What a segment says beside its records: every byte of it is checked, and damage there costs no record."""

from __future__ import annotations

import pytest

from logstore.format.errors import FormatError
from logstore.format.stored.extras import NO_EXTRAS, AppendId, Extras
from logstore.format.stored.segment import (
    FOOTER_SIZE,
    SegmentSummary,
    build_segment,
    collected,
    parse_segment,
)
from tests.golden import write_formats as written


def test_L20_a_segment_without_extras_is_what_earlier_releases_wrote() -> None:
    assert build_segment(written.HEADER, written.batches(), NO_EXTRAS)[0] == written.segment_bytes()
    assert parse_segment(written.segment_bytes())[0].parse_extras(written.segment_bytes()) == NO_EXTRAS


def test_L20_a_collected_segment_keeps_the_ids_of_its_appends() -> None:
    data = collected(written.HEADER, written.EXTRAS)
    summary, index = parse_segment(data, strict=True)
    assert (len(index), summary.parse_extras(data)) == (0, written.EXTRAS)


def test_L20_an_owner_alone_and_appends_alone() -> None:
    for extras in (Extras(owner=b"o" * 70_000), Extras(appends=(AppendId(b"i" * 16, -1, 0),))):
        data, summary = build_segment(written.HEADER, written.batches(), extras)
        assert summary.parse_extras(data) == extras
        assert SegmentSummary.parse(data[-FOOTER_SIZE:], len(data)) == summary


def test_L20_a_tail_that_does_not_reach_back_to_the_extras_says_so() -> None:
    data, summary = build_segment(written.HEADER, written.batches(), written.EXTRAS)
    assert summary.parse_extras(data[-FOOTER_SIZE - 10 :]) is None


def test_L20_each_flipped_byte_of_the_extras_is_found_and_no_record_is_lost() -> None:
    sound, summary = build_segment(written.HEADER, written.batches(), written.EXTRAS)
    for place in range(summary.extras_position, summary.extras_position + summary.extras_size):
        data = bytearray(sound)
        data[place] ^= 0x40
        with pytest.raises(FormatError):
            parse_segment(data, strict=True)
        with pytest.raises(FormatError):
            summary.parse_extras(data)
        found, index = parse_segment(data)
        assert (found, len(index)) == (summary, 3)


@pytest.mark.parametrize("part", ["index", "footer"])
def test_L20_a_damaged_index_or_footer_is_rebuilt_in_front_of_extras(part: str) -> None:
    sound, summary = build_segment(written.HEADER, written.batches(), written.EXTRAS)
    data = bytearray(sound)
    data[summary.index_position + 3 if part == "index" else len(sound) - 5] ^= 1
    found = parse_segment(data)[0]
    assert found == summary
    assert found.parse_extras(data) == written.EXTRAS
    with pytest.raises(FormatError):
        parse_segment(data[:-1])
