"""Foreign batches in another codec, or stamped with the time of their append: nothing else of them changes."""

from __future__ import annotations

import pytest

from logstore.format.batches.batch import check_crc, encode_batch, patch_head, read_info, validate
from logstore.format.batches.codecs import GZIP, NONE, ZSTD
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records
from logstore.format.batches.rewriting import Rewrite, rewrite
from logstore.format.errors import FormatError

RECORDS = [Record(b"value %d" % n * 20, b"key", (("h", b"x"),), 1000 + n) for n in range(50)]


def foreign(codec_id: int) -> bytes:
    """Two batches of an idempotent producer, with offsets and leader epochs of their own."""
    batches = b""
    for number in range(2):
        raw, info = encode_batch(
            RECORDS, now_ms=0, codec_id=codec_id, producer_id=7, producer_epoch=3, base_sequence=50 * number
        )
        batches += patch_head(100 + 50 * number, info.size, 9) + raw[16:]
    return batches


@pytest.mark.parametrize("codec_id", [NONE, ZSTD, GZIP])
@pytest.mark.parametrize("wanted", [None, NONE, ZSTD, GZIP])
@pytest.mark.parametrize("stamps", [False, True])
def test_only_what_is_wanted_of_a_batch_changes(codec_id: int, wanted: int | None, stamps: bool) -> None:
    raw = foreign(codec_id)
    made = rewrite(raw, Rewrite(wanted, stamps=stamps), 77_000)
    before, after = validate(raw, max_batch_bytes=len(raw)), validate(made, max_batch_bytes=len(made))
    for old, new in zip(before, after, strict=True):
        assert new.codec_id == (codec_id if wanted is None else wanted)
        assert (new.base_offset, new.span, new.producer_id, new.producer_epoch, new.base_sequence) == (
            (old.base_offset, old.span, old.producer_id, old.producer_epoch, old.base_sequence)
        )
        assert made[new.position + 12 : new.position + 16] == raw[old.position + 12 : old.position + 16]
        stamped = [one._replace(timestamp_ms=77_000) if stamps else one for one in decode_records(raw, old)]
        assert decode_records(made, new) == stamped


def test_what_nobody_wants_changed_stays_byte_for_byte() -> None:
    raw = foreign(ZSTD)
    assert rewrite(raw, Rewrite(), 77_000) == raw


def test_L20_a_damaged_batch_gets_no_new_checksum() -> None:
    raw = bytearray(foreign(NONE))
    raw[-1] ^= 1
    with pytest.raises(FormatError, match="CRC-32C"):
        rewrite(raw, Rewrite(ZSTD), 77_000)
    check_crc(raw, read_info(raw))
