"""What compaction by key asks of the kernels: hashes of keys, some records of an area, the table of last offsets."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from logstore.engine.maintenance.offset_map import OffsetMap
from logstore.format import kernels
from logstore.format.batches.batch import encode_batch, record_area, split
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records
from logstore.format.batches.thinning import emptied, thinned
from logstore.format.errors import FormatError
from logstore.format.key_hash import KeyHash, all_have_keys
from tests.support.format.material import NOW_MS

pytestmark = pytest.mark.usefixtures("kernel")

KEYS = [
    None,
    b"",
    b"\0",
    b"\0\0",
    b"a",
    b"ab",
    b"abc",
    b"abcdefgh",
    b"abcdefghi",
    b"k" * 63,
    b"k" * 64,
    b"k" * 9000,
]


def some_records(seed: int, count: int) -> list[Record]:
    rng = random.Random(seed)
    return [
        Record(
            rng.choice([None, b"", rng.randbytes(rng.randrange(200))]),
            rng.choice(KEYS),
            tuple(("h", b"v") for _ in range(rng.choice([0, 0, 2]))),
            NOW_MS + rng.randrange(-50, 50),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 300])
def test_B13_hashes_tell_keys_apart_and_both_kernels_agree_on_them(count: int) -> None:
    records = some_records(count, count)
    raw, info = encode_batch(records, now_ms=NOW_MS, codec_id=0)
    area = record_area(raw, info)
    hashed = KeyHash(b"seed").of([area, area], [count, count])
    assert hashed.deltas.tolist() == [*range(count)] * 2
    assert hashed.has_key.tolist() == [record.key is not None for record in records] * 2
    assert hashed.is_tombstone.tolist() == [record.value is None for record in records] * 2
    columns = (hashed.has_key.tolist(), hashed.one.tolist(), hashed.two.tolist())
    by_hash = dict(zip(zip(*columns, strict=True), [record.key for record in records * 2], strict=True))
    assert set(by_hash.values()) == {record.key for record in records}
    assert len(by_hash) == len({record.key for record in records})
    for other in kernels.ALL:
        factors = KeyHash(b"seed")
        factors._factors = np.concatenate([factors._factors, factors._draw(5000)])
        one, two = other.keys([area, area], [count, count], factors._factors)[2:4]
        assert bytes(one) == _hashes_of(area, count, factors._factors)[0]
        assert bytes(two) == _hashes_of(area, count, factors._factors)[1]


def _hashes_of(area: Any, count: int, factors: Any) -> tuple[bytes, bytes]:
    found = kernels.active.keys([area, area], [count, count], factors)
    return bytes(found[2]), bytes(found[3])


def test_B13_a_hash_is_the_sum_that_its_description_says() -> None:
    raw, info = encode_batch([Record(b"v", b"abcde")], now_ms=NOW_MS, codec_id=0)
    factors = np.arange(1, 21, dtype=np.uint64).reshape(10, 2) * np.uint64(0x0123456789ABCDEF)
    _, _, one, two, longest = kernels.active.keys([record_area(raw, info)], [1], factors)
    pieces = [5, *(int.from_bytes(b"abcde"[at : at + 2], "little") for at in (0, 2, 4))]
    for half, found in enumerate((one, two)):
        wanted = sum(piece * int(factor) for piece, factor in zip(pieces, factors[:, half], strict=False))
        assert int(np.frombuffer(found, np.uint64)[0]) == wanted % (1 << 64)
    assert longest == 5


@pytest.mark.parametrize("codec_id", [0, 4])
def test_B13_what_is_picked_keeps_offset_and_bytes_whatever_is_picked_from_it_again(codec_id: int) -> None:
    records = some_records(7, 200)
    raw, info = encode_batch(records, now_ms=NOW_MS, codec_id=codec_id)
    left = {record.offset: record for record in decode_records(raw, info)}
    for turn in range(6):
        rng = random.Random(turn)
        keep = np.array([rng.random() < 0.6 for _ in range(info.count)])
        data, low, high = thinned(raw, info, keep)
        left = {offset: left[offset] for offset, stays in zip(left, keep.tolist(), strict=True) if stays}
        stamps = [record.timestamp_ms for record in left.values()]
        raw, [info] = data, split(data)
        assert decode_records(raw, info) == list(left.values())
        assert (info.count, info.span) == (len(left), 200)
        assert [low, high] == [min(stamps), max(stamps)]  # type: ignore[type-var]
    nothing = thinned(raw, info, np.zeros(info.count, bool))
    assert nothing[0] == emptied(raw, info)


def test_B13_damage_is_refused_by_every_kernel() -> None:
    raw, info = encode_batch(some_records(3, 50), now_ms=NOW_MS, codec_id=0)
    area = record_area(raw, info)
    factors = np.zeros((0, 2), np.uint64)
    for spans in ([49], [-1], [0]):
        with pytest.raises(FormatError):
            kernels.active.keys([area], spans, factors)
        with pytest.raises(FormatError):
            kernels.active.pick(area, spans[0], bytes([1]) * 50)
    for cut in (1, len(area.data) // 2):
        short = area._replace(data=bytes(area.data)[:-cut])
        with pytest.raises(FormatError):
            kernels.active.keys([short], [50], factors)
        with pytest.raises(FormatError):
            kernels.active.pick(short, 50, bytes([1]) * 50)
    with pytest.raises(ValueError, match="a byte for each"):
        kernels.active.pick(area, 50, bytes([1]) * 49)
    with pytest.raises(ValueError, match="no record stays"):
        kernels.active.pick(area, 50, bytes(50))


@pytest.mark.parametrize(("records", "expected"), [([b"k", b"", b"l"], True), ([b"k", None], False)])
def test_B13_a_record_without_a_key_is_found(records: list[bytes | None], expected: bool) -> None:
    raw, info = encode_batch([Record(None, key) for key in records], now_ms=NOW_MS, codec_id=0)
    assert all_have_keys(record_area(raw, info), info.span) is expected


@pytest.mark.parametrize("meet", ["seldom", "often"])
def test_B13_the_table_of_last_offsets_says_what_a_dict_says(meet: str) -> None:
    """`often`: the upper bits of the hashes are the same, so keys lie in each other's slots."""
    rng = np.random.default_rng(5)
    hashes = rng.integers(0, 1 << 64, (9000, 2), np.uint64)
    if meet == "often":
        hashes[:, 0] = (hashes[:, 0] & np.uint64(0x7)) | np.uint64(0xFFFFFFFFFFFFFF00)
    known, wanted, offset = OffsetMap(8000), dict[tuple[int, int], int](), 0
    while not known.full:
        rows = rng.integers(0, len(hashes), 500)
        offsets = np.arange(offset, offset + 500)
        offset += 500
        one, two = (np.ascontiguousarray(hashes[rows, half]) for half in (0, 1))
        known.add(one, two, offsets)
        wanted.update(zip(map(tuple, hashes[rows].tolist()), offsets.tolist(), strict=True))
        assert len(known) == len(wanted)
    assert known.offsets().tolist() == sorted(wanted.values())
    one, two = (np.ascontiguousarray(hashes[:, half]) for half in (0, 1))
    assert known.latest(one, two).tolist() == [wanted.get((a, b), -1) for a, b in hashes.tolist()]


def test_B13_a_table_without_room_is_refused_and_not_searched_for_ever() -> None:
    table = np.zeros((4, 3), np.uint64)
    one = np.arange(5, dtype=np.uint64)
    with pytest.raises(ValueError, match="full"):
        kernels.active.remember(table, one, one, np.arange(5))
    table = np.zeros((4, 3), np.uint64)
    assert kernels.active.remember(table, one[:4], one[:4], np.arange(4)) == 4
    found = np.frombuffer(kernels.active.recall(table, one, one), np.int64)
    assert found.tolist() == [0, 1, 2, 3, -1]
