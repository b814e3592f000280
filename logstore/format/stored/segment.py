"""A segment: one immutable object that holds record batches, an index of them and a footer.

    header    fixed size: who wrote it, where in the chain it is, which offsets it holds
    batches   Kafka v2 record batches, back to back, verbatim
    index     one fixed-width row for each batch
    extras    only where there are any (`logstore.format.stored.extras`); the format version is 2 then, or 3
    footer    fixed size: a copy of the header, counts, checksums, where the index starts

Promises: every byte lies under a CRC-32C, so a flipped, missing or added one is found; the offsets of the batches are
dense (row i + 1 starts where row i ends), checked when a segment is built and again when it is parsed. In a sparse segment,
of which compaction by key has taken records away, a row reaches as far as the next one, or the segment's end: what lies
between holds no record any more, and is not lost; the format version is 3. The tail alone
(footer and index) tells all about a segment, and the whole alone lets a damaged index be rebuilt from the batches.
All integers are little endian, except inside the batches, which are Kafka's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from logstore.format.batches.batch import HEADER_SIZE as BATCH_HEADER_SIZE
from logstore.format.batches.batch import (
    PATCH_SIZE,
    check_crc,
    check_stored,
    read_info,
)
from logstore.format.checksum import crc32c
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.encoded_batch import EncodedBatch
from logstore.format.stored.extras import NO_EXTRAS, Extras
from logstore.format.stored.pages import in_one_piece

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from logstore.format.lazy_numpy import np

FORMAT_VERSION = 1
EXTRAS_VERSION = 2
"""Of a segment with extras: a release that knows nothing of them refuses it instead of calling it damaged."""
SPARSE_VERSION = 3
"""Of a segment with gaps, with extras or without: an earlier release would call the gaps damage."""
_VERSIONS = (FORMAT_VERSION, EXTRAS_VERSION, SPARSE_VERSION)
MAGIC = b"LOGSEG\r\n"
TAIL_SIZE = 64 * 1024  # what one ranged GET of the tail asks for: footer and 1,400 index rows

_HEADER = struct.Struct("<8sHHBBHQQqqq16sqqqq16s")
_CRC = struct.Struct("<I")
HEADER_SIZE = _HEADER.size + _CRC.size
_FOOTER = struct.Struct(
    "<QIIqqQ"
)  # records, batches, size of the extras, min and max timestamp, where the index starts
_FOOTER_CRCS = struct.Struct("<III8s")  # batches, index, everything in the footer before this field; magic
_CRCS, _END = struct.Struct("<II"), struct.Struct("<I8s")  # the same in two pieces
FOOTER_SIZE = HEADER_SIZE + _FOOTER.size + _FOOTER_CRCS.size
EMPTY_SIZE = HEADER_SIZE + FOOTER_SIZE
"""Of a segment without records."""

NO_TIMESTAMP = -1
_ROW = struct.Struct("<qQIIqqI")
INDEX_ROW_SIZE = _ROW.size


@cache
def index_row() -> np.dtype[np.void]:
    """What the index says of a batch, in `INDEX_ROW_SIZE` bytes: the fields of `_ROW`, for those who read many."""
    return np.dtype(
        [
            ("base_offset", "<i8"),
            ("position", "<u8"),
            ("size", "<u4"),
            ("count", "<u4"),
            ("max_timestamp_ms", "<i8"),
            ("min_timestamp_ms", "<i8"),
            ("head_crc", "<u4"),  # of the batch's first 16 bytes, which lie outside of its own CRC
        ]
    )


_new_tuple = tuple.__new__  # half the time of SegmentSummary(…)
Index: TypeAlias = "npt.NDArray[Any]"
Row = tuple[int, int, int, int, int, int, int]
Bytes = bytes | bytearray | memoryview


class WriterMode(IntEnum):
    """Which kind of writer made the segment."""

    EXCLUSIVE = 0
    SHARED = 1
    REPLICATED = 2


_MODES = frozenset(WriterMode)


class SegmentFlags(IntFlag):
    NONE = 0
    FENCE = 1
    """A writer took the partition over. Such an object is never deleted: it is where the old writer would go on."""
    DELETED = 2
    """The topic was deleted; no writer may go on after this."""
    MERGED = 4
    """Written by maintenance from several segments; not a link of the chain itself."""
    COLLECTED = 8
    """Garbage collection has taken its records away and left the header, because a writer that slept may come to this very
    place. Its offsets are those of the records that were here."""
    CLOSED = 16
    """The last segment of a writer that was closed: it has said so because it had something to store anyway, or because
    it promised to. Others go without."""
    SPARSE = 32
    """Compaction by key has taken records away: offsets between `base_offset` and `end_offset` may have none. They are not
    lost: a later record has the same key, or a tombstone had its time."""


@dataclass(slots=True, unsafe_hash=True)
class SegmentHeader:
    """What is known of a segment before its first batch. Nobody changes one. That is not enforced, because a frozen one
    takes three times as long to make, and an entry of a lane has one for each of its parts.

    `end_offset` is one past the last record, or `base_offset` in an empty one. `reserved_until`: the offsets below it may
    have been seen by readers, so the next writer starts there. `source_*` and `digest`: replicated mode only.
    """

    seq: int
    epoch: int
    base_offset: int
    end_offset: int
    writer_id: bytes
    created_at_ms: int
    reserved_until: int
    mode: WriterMode = WriterMode.EXCLUSIVE
    flags: SegmentFlags = SegmentFlags.NONE
    source_lower: int = -1
    source_upper: int = -1
    digest: bytes = bytes(16)
    has_extras: bool = field(
        default=False, compare=False
    )  # as it was read: its version says that there may be some

    @property
    def is_sparse(self) -> bool:
        return self.flags is not SegmentFlags.NONE and SegmentFlags.SPARSE in self.flags

    def pack(self, *, has_extras: bool = False) -> bytes:
        version = SPARSE_VERSION if self.is_sparse else EXTRAS_VERSION if has_extras else FORMAT_VERSION
        fields = _HEADER.pack(
            MAGIC,
            version,
            HEADER_SIZE,
            self.mode,
            self.flags,
            0,
            self.seq,
            self.epoch,
            self.base_offset,
            self.end_offset,
            self.reserved_until,
            self.writer_id,
            self.created_at_ms,
            self.source_lower,
            self.source_upper,
            0,
            self.digest,
        )
        return fields + _CRC.pack(crc32c(fields))

    @classmethod
    def parse(cls, data: Bytes) -> SegmentHeader:
        if len(data) < HEADER_SIZE:
            raise FormatError(f"a segment header has {HEADER_SIZE} bytes, here are {len(data)}", len(data))
        fields = _HEADER.unpack_from(data)
        if fields[0] != MAGIC:
            raise FormatError("no segment: the magic is missing", 0)
        if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(bytes(data[: _HEADER.size])):
            raise FormatError("the segment header's checksum does not match", 0)
        if fields[1] not in _VERSIONS:
            raise UnsupportedVersion(
                f"segment format {fields[1]}; this release reads up to {SPARSE_VERSION}", 8
            )
        if fields[3] not in _MODES:
            raise UnsupportedVersion(
                f"a segment of writer mode {fields[3]}, which this release does not know", 12
            )
        return cls(
            mode=WriterMode(fields[3]),
            flags=SegmentFlags(fields[4]),
            seq=fields[6],
            epoch=fields[7],
            base_offset=fields[8],
            end_offset=fields[9],
            reserved_until=fields[10],
            writer_id=fields[11],
            created_at_ms=fields[12],
            source_lower=fields[13],
            source_upper=fields[14],
            digest=fields[16],
            has_extras=fields[1] >= EXTRAS_VERSION,
        )


class SegmentSummary(NamedTuple):
    """What the tail of a segment tells: its header, its counts and where its index lies."""

    header: SegmentHeader
    records: int
    batches: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    index_position: int
    batches_crc: int
    index_crc: int
    extras_size: int = 0

    @property
    def index_size(self) -> int:
        return self.batches * INDEX_ROW_SIZE

    @property
    def object_size(self) -> int:
        return self.extras_position + self.extras_size + FOOTER_SIZE

    @property
    def extras_position(self) -> int:
        return self.index_position + self.index_size

    def pack(self, header: bytes | None = None) -> bytes:
        """`header`: the same in bytes, if they are known."""
        front = (header or self.header.pack(has_extras=self.extras_size > 0)) + _FOOTER.pack(
            self.records,
            self.batches,
            self.extras_size,
            self.min_timestamp_ms,
            self.max_timestamp_ms,
            self.index_position,
        )
        checked = front + _CRCS.pack(self.batches_crc, self.index_crc)
        return checked + _END.pack(crc32c(checked), MAGIC)

    @classmethod
    def parse(cls, tail: Bytes, object_size: int | None = None) -> SegmentSummary:
        """From the last bytes of the object (`FOOTER_SIZE` or more of them), and its size where that is known."""
        if len(tail) < FOOTER_SIZE:
            raise FormatError(f"a segment footer has {FOOTER_SIZE} bytes, here are {len(tail)}", len(tail))
        footer = bytes(tail[-FOOTER_SIZE:])
        batches_crc, index_crc, crc, magic = _FOOTER_CRCS.unpack_from(footer, FOOTER_SIZE - _FOOTER_CRCS.size)
        if magic != MAGIC:
            raise FormatError("the segment's end is missing", object_size)
        if crc != crc32c(footer[: FOOTER_SIZE - _FOOTER_CRCS.size + 8]):
            raise FormatError("the segment footer's checksum does not match", object_size)
        header = SegmentHeader.parse(footer)
        records, batches, extras, low, high, position = _FOOTER.unpack_from(footer, HEADER_SIZE)
        summary = cls(header, records, batches, low, high, position, batches_crc, index_crc, extras)
        if object_size is not None and summary.object_size != object_size:
            raise FormatError(f"the object has {object_size} bytes, not {summary.object_size}", object_size)
        return summary

    def parse_index(self, data: Bytes) -> Index:
        """The index, from exactly its bytes. Checks its checksum and that it covers the segment without a hole."""
        if len(data) != self.index_size:
            raise FormatError(f"the index has {len(data)} bytes, not {self.index_size}", self.index_position)
        if crc32c(data) != self.index_crc:
            raise FormatError("the index's checksum does not match", self.index_position)
        index = np.frombuffer(data, index_row())
        _check_dense(self.header, index, self.index_position)
        return index

    def index_in(self, data: memoryview) -> Index:
        """The index of a whole segment that was built here, so it need not be checked."""
        return np.frombuffer(data, index_row(), self.batches, self.index_position)

    def parse_extras(self, tail: Bytes) -> Extras | None:
        """From the last bytes of the object, or all of it; None if they do not reach that far back."""
        end = len(tail) - FOOTER_SIZE
        if end < self.extras_size:
            return None
        return Extras.parse(memoryview(tail)[end - self.extras_size : end], self.extras_position)


def build_segment(
    header: SegmentHeader, batches: Sequence[EncodedBatch], extras: Extras = NO_EXTRAS
) -> tuple[memoryview, SegmentSummary]:
    """The whole object, in one piece, read-only, and what its footer says."""
    pieces, summary = segment_pieces(header, batches, extras)
    return in_one_piece(pieces, summary.object_size), summary


def segment_pieces(
    header: SegmentHeader, batches: Sequence[EncodedBatch], extras: Extras = NO_EXTRAS
) -> tuple[list[Bytes], SegmentSummary]:
    """The same in pieces, one behind the other: none of the batches' bytes is copied yet."""
    said = b"" if extras is NO_EXTRAS else extras.pack()
    front = header.pack(has_extras=bool(said))
    parts: list[Bytes] = [front]
    rows: list[Row] = []
    position, crc, records, is_sparse = HEADER_SIZE, 0, 0, header.is_sparse
    for batch in batches:
        head, body, base, count, low_ms, high_ms = batch
        size = len(head) + len(body)
        head_crc = crc32c(head)
        rows.append((base, position, size, count, high_ms, low_ms, head_crc))
        crc = crc32c(body, crc32c(head, crc) if crc else head_crc)
        parts += (head, body)
        position += size
        records += batch.records if is_sparse else count
    index, summary = _summarise(header, rows, records, position, crc, len(said))
    parts += (index, said, summary.pack(front))
    return parts, summary


def collected(header: SegmentHeader, extras: Extras = NO_EXTRAS) -> memoryview:
    """What garbage collection leaves in a place that must not be emptied: the header, and none of the records. The ids of
    the appends stay as well, for a writer that slept and asks whether its own are among them."""
    return build_segment(replace(header, flags=header.flags | SegmentFlags.COLLECTED), [], extras)[0]


def parse_segment(data: Bytes, *, strict: bool = False) -> tuple[SegmentSummary, Index]:
    """Check a whole segment. A damaged index or footer is rebuilt if header and batches are intact, unless `strict`."""
    header = SegmentHeader.parse(data)
    footer: SegmentSummary | None = None
    try:
        summary = footer = SegmentSummary.parse(data, len(data))
        end = summary.index_position
        index = summary.parse_index(data[end : end + summary.index_size])
    except FormatError as damage:
        if strict:
            raise
        summary, index = _rebuild(header, memoryview(data), damage)
    if strict:
        summary.parse_extras(data)  # without that, damage there is met by those alone who need what it says
    expected = footer or summary  # an intact footer vouches for the batches even if the index is damaged
    if expected.header != header:
        raise FormatError("header and footer tell of different segments", 0)
    if crc32c(memoryview(data)[HEADER_SIZE : summary.index_position]) != expected.batches_crc:
        raise _first_damage(data, index)
    return summary, index


def check_run(data: Bytes, start: int, index: Index) -> None:
    """Check batches that were read without the rest of their segment: `data` begins at position `start` of the object."""
    for base, position, size, count, _, _, head_crc in index.tolist():
        try:
            info = read_info(data, position - start)
            check_crc(data, info)
        except FormatError as damage:
            raise FormatError(damage.why, position) from damage
        same = (info.base_offset, info.size) == (base, size) and info.span <= count
        if not same or head_crc != _head_crc(data, position - start):
            raise FormatError("batch and index disagree", position)


def _check_dense(header: SegmentHeader, index: Index, position: int) -> None:
    """Offsets and positions leave no hole and no overlap, from the header's base to its end."""
    if SegmentFlags.COLLECTED in header.flags and not len(index):
        return
    ends = index["base_offset"] + index["count"].astype(np.int64)
    last = int(ends[-1]) if len(index) else header.base_offset
    first = int(index["base_offset"][0]) if len(index) else header.base_offset
    places = index["position"] + index["size"]
    if (
        (first != header.base_offset and not (header.is_sparse and first > header.base_offset))
        or last != header.end_offset
        or not np.array_equal(ends[:-1], index["base_offset"][1:])
        or not np.array_equal(places[:-1], index["position"][1:])
        or (len(index) and (int(index["position"][0]) != HEADER_SIZE or not index["count"].all()))
    ):
        raise _hole(header, position)


def _hole(header: SegmentHeader, position: int) -> FormatError:
    return FormatError(
        f"the batches do not cover offsets {header.base_offset} to {header.end_offset} without a hole",
        position,
    )


def _summarise(
    header: SegmentHeader, rows: list[Row], records: int, end: int, crc: int, extras_size: int
) -> tuple[bytes, SegmentSummary]:
    """The index of batches that lie back to back up to `end`, and what the footer says of them. Without numpy: most segments
    have few batches, and an entry of a lane has many segments."""
    next_offset, is_dense = header.base_offset, True
    if rows and header.is_sparse:  # a row reaches as far as the next one, and the last one to the end
        ends = [*(row[0] for row in rows[1:]), header.end_offset]
        rows = [(*row[:3], until - row[0], *row[4:]) for row, until in zip(rows, ends, strict=True)]
        is_dense, next_offset = rows[0][0] >= next_offset, rows[0][0]
    low_ms, high_ms = (rows[0][5], rows[0][4]) if rows else (NO_TIMESTAMP, NO_TIMESTAMP)
    packed = []
    for row in rows:
        base, _, _, count, high, low, _ = row
        is_dense = is_dense and base == next_offset and count > 0
        next_offset = base + count
        low_ms, high_ms = low if low < low_ms else low_ms, high if high > high_ms else high_ms
        packed.append(_ROW.pack(*row))
    is_whole = is_dense and next_offset == header.end_offset
    if not is_whole and (rows or SegmentFlags.COLLECTED not in header.flags):
        raise _hole(header, end)
    index = b"".join(packed)
    fields = (header, records, len(rows), low_ms, high_ms, end, crc, crc32c(index), extras_size)
    return index, _new_tuple(SegmentSummary, fields)


def _rebuild(header: SegmentHeader, data: memoryview, damage: FormatError) -> tuple[SegmentSummary, Index]:
    """Walk the batches. Only an object of exactly the right size is believed: a cut one may have lost a batch."""
    rows: list[Row] = []
    position = HEADER_SIZE
    has_extras = header.has_extras
    records = 0
    while len(data) - position >= BATCH_HEADER_SIZE and position + len(
        rows
    ) * INDEX_ROW_SIZE + FOOTER_SIZE < len(data):
        try:
            size = read_info(data, position).size
            info = check_stored(data[position : position + size])
        except FormatError:
            if has_extras:
                break  # behind the last batch there is more than the index, and how much is not known yet
            raise damage from None
        rows.append(
            (
                info.base_offset,
                position,
                info.size,
                info.span,
                info.max_timestamp_ms,
                info.min_timestamp_ms,
                _head_crc(data, position),
            )
        )
        position += info.size
        records += info.count
    size = len(rows) * INDEX_ROW_SIZE
    crc = crc32c(data[HEADER_SIZE:position])
    behind = len(data) - position - size - FOOTER_SIZE
    extras_size = Extras.size_at(data, position + size) if has_extras and behind else 0
    if behind != extras_size:
        raise damage
    index, summary = _summarise(header, rows, records, position, crc, extras_size)
    return summary, np.frombuffer(index, index_row())


def _head_crc(data: Bytes, position: int) -> int:
    return int(crc32c(bytes(data[position : position + PATCH_SIZE])))


def _first_damage(data: Bytes, index: Index) -> FormatError:
    """Which batch breaks the checksum over all of them: the error should name an offset's place, not a segment's."""
    try:
        check_run(data, 0, index)
    except FormatError as damage:
        return damage
    return FormatError("the batches' checksum does not match", HEADER_SIZE)


def offset_at(index: Index, position: int | None) -> int | None:
    """The base offset of the batch at that position: what a damage report should name."""
    if position is None or not len(index):
        return None
    row = int(np.searchsorted(index["position"], position, side="right")) - 1
    return int(index["base_offset"][max(row, 0)])
