"""Writes one segment, manifest and WAL file of the current format version, where there is none yet.

    python tests/golden/write_formats.py

A file that exists is never written again: it stands for what a release has left in somebody's bucket, and every later
release must read it. A new format version gets new files, beside the old ones.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

from logstore.format import manifest, segment, wal
from logstore.format.batch import PATCH_SIZE, encode_batch, patch_head
from logstore.format.manifest import Manifest, SegmentTable
from logstore.format.record import Record
from logstore.format.retired import MINUTE_MS, Retired, SeqRange
from logstore.format.segment import EncodedBatch, SegmentHeader, WriterMode, build_segment, collected
from logstore.format.wal import WalHeader, pack_frame

FOLDER = Path(__file__).parent / "formats"
STAMP_MS = 1_700_000_000_000
BASE_OFFSET = 1000
LEADER_EPOCH = 7
RECORDS = [
    [Record(b"paid", b"order-17", (), STAMP_MS), Record(None, b"order-17", (), STAMP_MS + 5)],
    [Record(b"", None, (("trace", b"4bf92f"), ("none", None)), STAMP_MS - 1000)],
    [Record(b"line %d" % number, b"k%d" % (number % 3), (), STAMP_MS + number) for number in range(20)],
]
HEADER = SegmentHeader(
    seq=42,
    epoch=LEADER_EPOCH,
    base_offset=BASE_OFFSET,
    end_offset=BASE_OFFSET + 23,
    writer_id=bytes(range(16)),
    created_at_ms=STAMP_MS + 60_000,
    reserved_until=BASE_OFFSET + 23 + 16384,
    mode=WriterMode.EXCLUSIVE,
)
MANIFEST = Manifest(
    version=3,
    next_seq=44,
    epoch=LEADER_EPOCH,
    mode=WriterMode.EXCLUSIVE,
    low_watermark=10,
    end_offset=BASE_OFFSET + 23,
    reserved_until=BASE_OFFSET + 23 + 16384,
    source_upper=-1,
    table=SegmentTable(
        first_seq=array("q", [1, 42]),
        last_seq=array("q", [41, 42]),
        base_offset=array("q", [0, BASE_OFFSET]),
        end_offset=array("q", [BASE_OFFSET, BASE_OFFSET + 23]),
        size=array("q", [1 << 20, 1500]),
        min_timestamp_ms=array("q", [STAMP_MS - 2000, STAMP_MS - 1000]),
        max_timestamp_ms=array("q", [STAMP_MS - 1500, STAMP_MS + 19]),
        merged={1: bytes(range(16)).hex()},
    ),
    retired=Retired(
        (SeqRange(1, 1, STAMP_MS), SeqRange(3, 40, STAMP_MS + MINUTE_MS)),
        {f"merged/{1:020d}-{41:020d}-{'0f' * 16}.seg": STAMP_MS + 1},
    ),
    collected_until=3,
    nonce=bytes(range(8)),
)
MANIFEST_V2 = replace(MANIFEST, collected_until=43, nonce=bytes(8))
"""What the file of format 2 holds: nobody noted what was emptied, so everything may have been but the newest place."""
MANIFEST_V1 = replace(MANIFEST_V2, retired=Retired((SeqRange(1, 1, STAMP_MS),)))
"""What the file of format 1 holds: it had one retired object."""


def batches() -> list[EncodedBatch]:
    """Uncompressed, so that the bytes do not depend on a codec's version."""
    made, offset = [], BASE_OFFSET
    for records in RECORDS:
        raw, info = encode_batch(records, now_ms=0, codec_id=0)
        head = patch_head(offset, info.size, LEADER_EPOCH)
        body = memoryview(raw)[PATCH_SIZE:]
        made.append(
            EncodedBatch(head, body, offset, info.count, info.min_timestamp_ms, info.max_timestamp_ms)
        )
        offset += info.count
    return made


def segment_bytes() -> bytes:
    return bytes(build_segment(HEADER, batches())[0])


def collected_bytes() -> bytes:
    """What garbage collection leaves of it."""
    return bytes(collected(HEADER))


def wal_bytes() -> bytes:
    """Two frames: one of two batches, one of one."""
    first, second, third = (batch.tobytes() for batch in batches())
    return WalHeader(LEADER_EPOCH, BASE_OFFSET).pack() + pack_frame([first, second]) + pack_frame([third])


def main() -> None:
    made = {
        f"segment-v{segment.FORMAT_VERSION}.seg": segment_bytes(),
        f"collected-v{segment.FORMAT_VERSION}.seg": collected_bytes(),
        f"manifest-v{manifest.FORMAT_VERSION}": MANIFEST.pack(),
        f"wal-v{wal.FORMAT_VERSION}.wal": wal_bytes(),
    }
    FOLDER.mkdir(exist_ok=True)
    for name, data in made.items():
        path = FOLDER / name
        if path.exists():
            print(f"{name}: exists, left alone")
        else:
            path.write_bytes(data)
            print(f"{name}: {len(data)} bytes written")


if __name__ == "__main__":
    main()
