"""Writes one segment, manifest and WAL file of the current format version, where there is none yet.

    python tests/golden/write_formats.py

A file that exists is never written again: it stands for what a release has left in somebody's bucket, and every later
release must read it. A new format version gets new files, beside the old ones.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np

from logstore.format.batches.batch import PATCH_SIZE, encode_batch, patch_head, split
from logstore.format.batches.record import Record
from logstore.format.batches.thinning import thinned
from logstore.format.stored import entry, lane_checkpoint, manifest, segment, wal
from logstore.format.stored.claim_base import Bases, ClaimBase, Place
from logstore.format.stored.encoded_batch import EncodedBatch, as_stored
from logstore.format.stored.entry import (
    ClaimKey,
    EntryHeader,
    EntryKind,
    NewPart,
    Part,
    build_ask,
    build_entry,
    build_transfer,
    fence_row,
)
from logstore.format.stored.extras import AppendId, Claim, Extras
from logstore.format.stored.lane_checkpoint import (
    CheckpointedClaim,
    LaneCheckpoint,
    Moved,
    Split,
)
from logstore.format.stored.manifest import Manifest, SegmentTable
from logstore.format.stored.owner import Owner
from logstore.format.stored.part_rows import CheckpointedPart, PartRows
from logstore.format.stored.retired import MINUTE_MS, Retired, SeqRange
from logstore.format.stored.segment import (
    SegmentFlags,
    SegmentHeader,
    SegmentSummary,
    WriterMode,
    build_segment,
    collected,
)
from logstore.format.stored.wal import Unpacked, pack_frame, pack_header
from logstore.layout import holds

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
OWNER = Owner(bytes(range(16, 32)), 4026531836, 4026531840, 4711, 123_456_789, b"8 bytes.", "web-1", "shop")
CLAIM = Claim("0123456789abcdef", 7)
MANIFEST_V4 = replace(MANIFEST, owner=OWNER.pack(), closed=True, claim=CLAIM)
"""Of a chain whose owner is known, and has said that it closed, and that went on in a lane."""
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


EXTRAS = Extras(
    owner=b"a process",
    appends=(AppendId(bytes(range(16)), 1000, 3), AppendId(bytes(range(16, 32)), 1003, 20)),
)


def extras_bytes() -> bytes:
    """With what a segment may say beside its records."""
    return bytes(build_segment(HEADER, batches(), EXTRAS)[0])


SPARSE_HEADER = replace(HEADER, flags=SegmentFlags.MERGED | SegmentFlags.SPARSE)
SPARSE_OFFSETS = [1001, *range(1005, 1023, 2)]


def sparse_bytes() -> bytes:
    """What compaction by key may leave of it: records of two batches, and nothing of the one between them."""
    left = []
    for batch in batches():
        raw = batch.tobytes()
        [info] = split(raw)
        keep = np.isin(np.arange(info.base_offset, info.last_offset + 1), SPARSE_OFFSETS)
        if keep.any():
            data, low, high = thinned(raw, info, keep)
            left.append(as_stored(memoryview(data), batch.base_offset, batch.count, low, high))
    return bytes(build_segment(SPARSE_HEADER, left)[0])


LANE_PARTITIONS = (ClaimKey("topics/t/0123456789abcdef/0/", 3), ClaimKey("topics/u/fedcba9876543210/12/", 1))
ENTRY_HEADER = EntryHeader(EntryKind.DATA, 9, bytes(range(16)), bytes(range(16, 32)), STAMP_MS)


ADOPTION_HEADER = replace(ENTRY_HEADER, kind=EntryKind.ADOPTION)
ADOPTION_CLAIM = ClaimKey("topics/t/0123456789abcdef/7/", 2)


def adoption_bytes() -> bytes:
    """The beginning of the next life of a lane."""
    return bytes(build_entry(ADOPTION_HEADER, [], [], b"a process")[0])


def entry_bytes() -> bytes:
    """Two partitions in one entry of a lane, and the end of a claim."""
    data, summary = build_segment(HEADER, batches())
    parts = [
        NewPart(key, 42 + place, 0, 1000, 1023, 1023, 23, *_times(summary), len(data), (data,))
        for place, key in enumerate(LANE_PARTITIONS)
    ]
    return bytes(build_entry(ENTRY_HEADER, parts, [LANE_PARTITIONS[1]], b"a process")[0])


TOLD_HEADER = replace(ENTRY_HEADER, known_until=7)


def told_twice_bytes() -> bytes:
    """The same with a second directory at its front, and a header that says which places before it were known."""
    data, summary = build_segment(HEADER, batches())
    parts = [
        NewPart(key, 42 + place, 0, 1000, 1023, 1023, 23, *_times(summary), len(data), (data,))
        for place, key in enumerate(LANE_PARTITIONS)
    ]
    return bytes(build_entry(TOLD_HEADER, parts, [LANE_PARTITIONS[1]], b"bases")[0])


def _times(summary: SegmentSummary) -> tuple[int, int]:
    return summary.min_timestamp_ms, summary.max_timestamp_ms


BASES = Bases(
    {
        LANE_PARTITIONS[0]: ClaimBase(
            42,
            1000,
            1000,
            -1,
            3,
            OWNER.pack(),
            MANIFEST.pack()[: manifest.FRONT_SIZE],
            MANIFEST.table,
            {42: Place("fedcba9876543210", 8, 92)},
        ),
        LANE_PARTITIONS[1]: ClaimBase(2, 5, 5, 17, 0, b"", b"", SegmentTable()),
    },
    {LANE_PARTITIONS[0]: 10},
)
"""One partition with a history, part of it in another lane, and one without."""
LANE_CHECKPOINT = LaneCheckpoint(
    version=5,
    nonce=bytes(range(8)),
    split_until=4,
    next_seq=10,
    edge=bytes(range(16)),
    kept=(1, 3),
    claims=(
        CheckpointedClaim(LANE_PARTITIONS[0], 40, 990, 1000, False),
        CheckpointedClaim(LANE_PARTITIONS[1], 2, 5, 5, True),
    ),
    parts=(
        PartRows.of(
            [CheckpointedPart(9, Part(LANE_PARTITIONS[0], 42, 16, 1000, 1023, 1023, 92, 800, 23, 1, 2))]
        ),
    ),
    ended_before=2,
    splits=(Split(2, STAMP_MS), Split(4, STAMP_MS + MINUTE_MS)),
    bases=BASES.pack(),
)
LANE_CHECKPOINT_V1 = replace(
    LANE_CHECKPOINT,
    claims=(LANE_CHECKPOINT.claims[0], LANE_CHECKPOINT.claims[1]._replace(is_left=True)),
    bases=b"",
)
"""What the file of format 1 holds: it had no bases, and behind a claim that had ended somebody may have gone on."""


WAL_PREFIXES = ("topics/orders/00112233aabbccdd/0/", "topics/caf.e-1/ffeeddccbbaa9988/17/")


def wal_bytes() -> bytes:
    """Two frames: one of two partitions, one of which has two batches, and one of one."""
    first, second, third = (batch.tobytes() for batch in batches())
    both = [Unpacked(WAL_PREFIXES[0], LEADER_EPOCH, [first, second]), Unpacked(WAL_PREFIXES[1], 3, [third])]
    return pack_header() + pack_frame(both) + pack_frame([Unpacked(WAL_PREFIXES[0], LEADER_EPOCH, [third])])


ADOPTED_CHECKPOINT = replace(
    LANE_CHECKPOINT,
    claims=(*LANE_CHECKPOINT.claims, CheckpointedClaim(ADOPTION_CLAIM, 43, 1000, 1000, False, True)),
    owner=b"a process",
    bases=b"",
)
"""Of a lane that somebody has adopted, with a claim of which it has nothing yet."""

LOST_CHECKPOINT = replace(
    ADOPTED_CHECKPOINT, lost=(5, 7), in_doubt=frozenset([LANE_PARTITIONS[0], ADOPTION_CLAIM])
)
"""Of a lane of which two entries could not be read."""
TRANSFER_HEADER = replace(ENTRY_HEADER, kind=EntryKind.TRANSFER)
SUCCESSOR = Claim("fedcba9876543210", 5)
FENCES = tuple(
    fence_row(ClaimKey(key.prefix, key.epoch + 1), 43 + place, 1, 1023, 1100)
    for place, key in enumerate(LANE_PARTITIONS)
)


def transfer_bytes() -> bytes:
    """Two claims that go on in another lane."""
    return bytes(build_transfer(TRANSFER_HEADER, FENCES, SUCCESSOR, b"a process")[0])


def ask_bytes() -> bytes:
    """Another process asks for two claims."""
    return bytes(build_ask(9, ENTRY_HEADER.id, STAMP_MS, LANE_PARTITIONS, b"an adopter", b"a process")[1])


TRANSFERRED_CHECKPOINT = replace(
    ADOPTED_CHECKPOINT,
    claims=tuple(
        claim._replace(is_sealed=True, is_left=True, moved=Moved(fence, SUCCESSOR, b"a process"))
        for claim, fence in zip(LANE_CHECKPOINT.claims, FENCES, strict=True)
    ),
    lost=(5,),
)
"""Of a lane whose claims went on in another one, and of which an entry could not be read."""

HOLD = holds.Hold("delta:s3://bucket/orders", 604800.0, {0: 1000, 7: 23}, STAMP_MS)


def main() -> None:
    made = {
        f"segment-v{segment.FORMAT_VERSION}.seg": segment_bytes(),
        f"segment-v{segment.EXTRAS_VERSION}.seg": extras_bytes(),
        f"segment-v{segment.SPARSE_VERSION}.seg": sparse_bytes(),
        f"collected-v{segment.FORMAT_VERSION}.seg": collected_bytes(),
        f"manifest-v{manifest.FORMAT_VERSION}": MANIFEST.pack(),
        f"manifest-v{manifest.EXTRAS_VERSION}": MANIFEST_V4.pack(),
        f"entry-v{entry.FORMAT_VERSION}.seg": entry_bytes(),
        f"entry-v{entry.FORMAT_VERSION}-told-twice.seg": told_twice_bytes(),
        f"adoption-v{entry.FORMAT_VERSION}.seg": adoption_bytes(),
        f"lane-checkpoint-v{lane_checkpoint.FORMAT_VERSION}": LANE_CHECKPOINT.pack(),
        f"lane-checkpoint-v{lane_checkpoint.ADOPTED_VERSION}": ADOPTED_CHECKPOINT.pack(),
        f"lane-checkpoint-v{lane_checkpoint.LOST_VERSION}": LOST_CHECKPOINT.pack(),
        f"transfer-v{entry.FORMAT_VERSION}.seg": transfer_bytes(),
        f"ask-v{entry.FORMAT_VERSION}.seg": ask_bytes(),
        f"lane-checkpoint-v{lane_checkpoint.TRANSFERRED_VERSION}": TRANSFERRED_CHECKPOINT.pack(),
        f"wal-v{wal.FORMAT_VERSION}.wal": wal_bytes(),
        f"hold-v{holds.FORMAT_VERSION}": HOLD.pack(),
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
