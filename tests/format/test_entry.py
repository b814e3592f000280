"""An entry of a lane, and the lane's checkpoint: every byte is checked, and a part is an ordinary segment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.format.batches.codecs import ZSTD, compress, decompress
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.claim_base import Bases
from logstore.format.stored.entry import (
    Entry,
    EntryHeader,
    EntryKind,
    build_entry,
    check_whole,
    object_size,
    tail_needed,
)
from logstore.format.stored.lane_checkpoint import FRONT_SIZE, LaneCheckpoint, parse_split_until
from logstore.format.stored.segment import parse_segment
from tests.golden import write_formats as written


def golden(name: str) -> bytes:
    return (written.FOLDER / name).read_bytes()


def test_L20_a_golden_entry_gives_each_partition_its_segment() -> None:
    data = golden("entry-v1.seg")
    entry = Entry.parse(data)
    assert entry.header == written.ENTRY_HEADER == EntryHeader.parse(data)
    assert (entry.seals, entry.note) == ((written.LANE_PARTITIONS[1],), b"a process")
    assert [part.claim for part in entry.parts] == list(written.LANE_PARTITIONS)
    for part in entry.parts:
        summary, index = parse_segment(data[part.position : part.position + part.size], strict=True)
        assert (summary.records, len(index), summary.header) == (23, 3, written.HEADER)
        assert (part.base_offset, part.end_offset, part.records) == (1000, 1023, 23)
    assert object_size(data) == len(data)
    assert Entry.parse(data[-tail_needed(data) :]) == entry


def test_L20_a_golden_lane_checkpoint_gives_what_was_written() -> None:
    assert LaneCheckpoint.parse(golden("lane-checkpoint-v1")) == written.LANE_CHECKPOINT_V1
    data = golden("lane-checkpoint-v2")
    assert Bases.parse(LaneCheckpoint.parse(data).bases) == written.BASES
    assert replace(LaneCheckpoint.parse(data), bases=b"") == replace(written.LANE_CHECKPOINT, bases=b"")
    assert parse_split_until(data[:FRONT_SIZE]) == 4
    assert LaneCheckpoint.parse(LaneCheckpoint().pack()) == LaneCheckpoint()


def test_L20_a_golden_transfer_and_the_checkpoint_behind_it_give_what_was_written() -> None:
    data = golden("transfer-v1.seg")
    entry = Entry.parse(data)
    assert (entry.header, entry.seals) == (written.TRANSFER_HEADER, written.LANE_PARTITIONS)
    assert (entry.successor, entry.owner) == (written.SUCCESSOR, b"a process")
    assert tuple(part._replace(position=0) for part in entry.parts) == written.FENCES
    data = golden("lane-checkpoint-v5")
    assert LaneCheckpoint.parse(data) == written.TRANSFERRED_CHECKPOINT
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(FormatError):
            LaneCheckpoint.parse(bytes(damaged))


def test_L20_a_golden_ask_gives_what_was_written() -> None:
    data = golden("ask-v1.seg")
    entry = Entry.parse(data)
    assert (entry.header.kind, entry.header.seq, entry.header.prev) == (
        EntryKind.DATA,
        9,
        b"\0" * 13 + b"ask",
    )
    assert (entry.header.is_ask, entry.header.known_until) == (True, 0)
    assert (entry.parts, entry.seals, entry.bases) == ((), written.LANE_PARTITIONS, b"")
    assert (entry.judged, entry.owner) == (b"an adopter", b"a process")
    assert written.ask_bytes() == data


def test_L20_a_golden_adoption_and_the_checkpoint_behind_it_give_what_was_written() -> None:
    data = golden("adoption-v1.seg")
    entry = Entry.parse(data)
    assert (entry.header, entry.parts, entry.seals) == (written.ADOPTION_HEADER, (), ())
    assert entry.owner == b"a process"
    data = golden("lane-checkpoint-v3")
    found = LaneCheckpoint.parse(data)
    assert found == written.ADOPTED_CHECKPOINT
    assert [claim.is_begun for claim in found.claims] == [False, False, True]
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(FormatError):
            LaneCheckpoint.parse(bytes(damaged))


def test_L20_a_golden_entry_says_twice_what_it_holds() -> None:
    data = golden("entry-v1-told-twice.seg")
    entry = check_whole(data)
    assert (entry.header, entry.note) == (written.TOLD_HEADER, b"bases")
    first = entry.parts[0].position
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        told = []
        for parse in (Entry.parse, Entry.parse_front):
            try:
                told.append(parse(damaged))
            except FormatError:
                continue
        assert told, place
        for one in told:
            assert (one.header, one.parts, one.seals) == (entry.header, entry.parts, entry.seals), place
        in_a_part = first <= place < entry.parts[-1].position + entry.parts[-1].size
        if not in_a_part:
            with pytest.raises(FormatError):
                check_whole(damaged)
    for size in range(first, len(data)):
        assert Entry.parse_front(data[:size]).parts == entry.parts
    with pytest.raises(FormatError):
        Entry.parse_front(golden("entry-v1.seg"))
    assert check_whole(golden("entry-v1.seg")) == Entry.parse(golden("entry-v1.seg"))


def test_L20_a_golden_checkpoint_names_what_is_lost() -> None:
    assert LaneCheckpoint.parse(golden("lane-checkpoint-v4")) == written.LOST_CHECKPOINT


def test_N07_each_flipped_byte_outside_of_the_parts_is_found() -> None:
    """Those inside are found by the segments' own checksums."""
    sound = golden("entry-v1.seg")
    end = max(part.position + part.size for part in Entry.parse(sound).parts)
    for place in range(end, len(sound)):
        data = bytearray(sound)
        data[place] ^= 0x10
        with pytest.raises(FormatError):
            Entry.parse(data)
    for place in range(Entry.parse(sound).parts[0].position):
        data = bytearray(sound)
        data[place] ^= 0x10
        with pytest.raises(FormatError):
            EntryHeader.parse(data)


def test_L20_each_flipped_byte_of_a_lane_checkpoint_is_found() -> None:
    sound = golden("lane-checkpoint-v2")
    for place in range(len(sound)):
        data = bytearray(sound)
        data[place] ^= 0x10
        with pytest.raises(FormatError):
            LaneCheckpoint.parse(bytes(data))


def test_L20_a_cut_entry_is_damage_and_a_newer_one_is_named() -> None:
    sound = golden("entry-v1.seg")
    for size in (0, 10, len(sound) - 1):
        with pytest.raises(FormatError):
            Entry.parse(sound[:size])
    newer, _ = build_entry(EntryHeader(EntryKind.FENCE, 0, bytes(16), bytes(16), 0), [])
    data = bytearray(newer)
    data[8] = 9
    with pytest.raises(FormatError):
        EntryHeader.parse(data)
    header = EntryHeader(EntryKind.FENCE, 0, bytes(16), bytes(16), 0)
    packed = bytearray(header.pack())
    packed[8] = 9
    from crc32c import crc32c

    packed[-4:] = crc32c(bytes(packed[:-4])).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersion, match="lane entry format 9"):
        EntryHeader.parse(packed)


def test_L20_bases_that_do_not_fit_their_counts_are_damage() -> None:
    packed = written.BASES.pack()
    plain = decompress(ZSTD, packed, max_size=1 << 20)
    for changed in (plain[:-1], plain + b"\0"):
        with pytest.raises(FormatError, match="do not fit"):
            Bases.parse(compress(ZSTD, changed))
    assert Bases.parse(b"") == Bases()
    assert Bases().pack() == b""
