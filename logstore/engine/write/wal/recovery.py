"""What a WAL holds of a partition that the store does not have: to be stored again, or lost to the log and kept aside.

* What the last writer of the chain (its epoch) wrote here, from the chain's end on and without a gap, is stored again.
* What an earlier one wrote is stored, or another writer has been there since and its fence has declared it lost. So it is
  with the last one's, too, if its lane went on elsewhere under the same epoch.
* A gap is damage: a frame or a file is missing, whose records may have been acked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from logstore.engine.chain.tail import ChainTail
from logstore.errors import CorruptData, UnsupportedStore
from logstore.format.batches.batch import validate
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.encoded_batch import EncodedBatch, as_stored
from logstore.format.stored.wal import Section, is_unwritten, parse_frames, parse_header

logger = logging.getLogger(__name__)


class Written(NamedTuple):
    """A batch in a WAL, and the epoch of the writer that wrote it there."""

    epoch: int
    batch: EncodedBatch


class FromFile(NamedTuple):
    """What a file has of a partition, in its order. `is_whole`: it ends with a whole frame."""

    path: Path
    written: list[Written]
    is_whole: bool


class Judged(NamedTuple):
    """`kept`: to be stored again. `lost`: another has been there."""

    kept: list[EncodedBatch]
    lost: list[Written]


def judge(files: Iterable[FromFile], tail: ChainTail, is_lost: Callable[[int, int], bool]) -> Judged:
    """Nothing is read here, and nothing written. `is_lost`: whether some of these offsets, below the tail, are not there."""
    kept: list[EncodedBatch] = []
    lost: list[Written] = []
    expected, torn = tail.end_offset, None
    for file in files:
        before = expected
        for one in file.written:
            batch = one.batch
            if batch.end_offset <= tail.end_offset:
                if is_lost(batch.base_offset, batch.end_offset):
                    lost.append(one)
            elif one.epoch != tail.epoch or batch.base_offset < tail.end_offset:
                lost.append(one)  # the chain went on without it
            elif batch.end_offset > before:  # else a file that failed had it already
                if batch.base_offset != expected:
                    raise CorruptData(
                        str(torn or file.path), expected, f"the WAL goes on at offset {batch.base_offset}"
                    )
                kept.append(batch)
                expected = batch.end_offset
        torn = None if file.is_whole else file.path
    return Judged(kept, lost)


def sections_of(path: Path, data: bytes) -> tuple[list[Section], bool]:
    """A file's sections, and whether it ends with a whole frame. Raises `FormatError`, or `UnsupportedStore` if a newer
    release has written it.

    A torn end is normal after a crash (nothing in it was acked); if it was no crash, the next file does not fit on, or
    the offsets that are missing lie below what was reserved, and are reported as lost. A file without a header was named
    and never fsynced: a power cut has left it so, and nothing in it was acked.
    """
    if is_unwritten(data):
        tell_unwritten(path, data)
        return [], False
    try:
        parse_header(data)
    except UnsupportedVersion as error:
        raise newer(path, error) from error
    sections, good = parse_frames(data)
    tell_torn(path, data, good)
    return sections, good == len(data)


def batches_in(payload: memoryview) -> list[EncodedBatch]:
    """Those of one section. Raises `FormatError`."""
    return [
        as_stored(
            payload[info.position : info.position + info.size],
            info.base_offset,
            info.count,
            info.min_timestamp_ms,
            info.max_timestamp_ms,
        )
        for info in validate(payload, max_batch_bytes=len(payload), control=True)
    ]


def tell_unwritten(path: Path, data: bytes) -> None:
    logger.warning(
        "%s: %d bytes that were never fsynced, none of them acked, are passed over", path, len(data)
    )


def tell_torn(path: Path, data: bytes, good: int) -> None:
    if good < len(data):
        logger.warning("%s: the last %d bytes are a torn frame and are cut off", path, len(data) - good)


def newer(path: Path, error: UnsupportedVersion) -> UnsupportedStore:
    return UnsupportedStore(f"{path}: {error.why}. A newer release has written it: use that")


def damaged(path: Path, expected: int, damage: FormatError) -> CorruptData:
    return CorruptData(str(path), expected, str(damage))
