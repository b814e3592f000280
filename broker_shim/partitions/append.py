"""One partition's part of a produce request: what is refused at sight, what takes long to check, how it is rewritten as its
topic says, and which code its failure is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from broker_shim.partitions.transaction_gate import Companion, Verify
from broker_shim.wire import codes
from broker_shim.wire.codes import Code
from logstore.config import Ack
from logstore.engine.partition.atomic_batches import Batches
from logstore.errors import InvalidRecord, RecordTooLarge, UnknownTopic
from logstore.format.batches.batch import HEADER_SIZE, BatchInfo, split
from logstore.format.batches.codecs import decompress
from logstore.format.batches.markers import Marker
from logstore.format.batches.rewriting import Rewrite, rewrite
from logstore.format.errors import FormatError

APART_FROM_BYTES = 32 << 10
"""Compressed batches from this size on are checked in a worker thread."""
UNPACKED_MAX_BYTES = 1 << 20
"""And so are those that hold more than this: two kilobytes of zstd can be sixty megabytes of the same letter."""


class Answer(Protocol):
    """Called once, with the outcome and the base offset; with the time that the records got, if they got one; and with what
    was wrong, if it is known of which records: their places in the record set.
    """

    def __call__(self, code: Code, offset: int, append_ms: int = -1, wrong: tuple[int, ...] = ()) -> None: ...


@dataclass(slots=True)
class Append:
    """One partition's part of a produce request. `abandoned`: its request was answered meanwhile.

    `is_heavy`: to check it takes long enough for other clients to notice. `verify`: asks the coordinator of its transaction.
    `marker`: it ends one. `opens`: it is the first of one. `end`: where it ends in the log, once acked.
    `rewrite`: what is still to be done to the records before they are stored. `companion`: what it is stored together with;
    `checked`: for that, once it was looked at.
    """

    records: memoryview
    batch: BatchInfo
    is_heavy: bool
    ack: Ack
    answer: Answer
    rewrite: Rewrite | None = None
    append_ms: int = -1
    verify: Verify | None = None
    marker: Marker | None = None
    opens: bool = False
    companion: Companion | None = None
    checked: Batches | None = None
    abandoned: bool = False
    end: int | None = None

    @property
    def is_idempotent(self) -> bool:
        return self.batch.producer_id >= 0 and self.marker is None


def nobody(code: Code, offset: int, append_ms: int = -1, wrong: tuple[int, ...] = ()) -> None:
    """Whoever asked is told by other means."""


def code_of(error: BaseException, append: Append) -> Code:
    """A topic that was deleted has taken along what was known of its producers. If that were said to librdkafka only when
    it tries again, in a topic that was recreated, it would give up for good.
    """
    if isinstance(error, UnknownTopic) and append.is_idempotent and append.batch.base_sequence > 0:
        return Code.UNKNOWN_PRODUCER_ID
    return codes.of_produce(error)


def rewrite_append(append: Append, max_bytes: int, now_ms: int) -> None:
    """Store it as its topic says, once: if there is no room for it now, it is not done again. Raises `InvalidRecord`."""
    assert append.rewrite is not None
    try:
        records = rewrite(append.records, append.rewrite, now_ms)
        largest = max(batch.size for batch in split(records))
    except FormatError as error:
        raise InvalidRecord(f"not a record batch that can be stored: {error}") from error
    if largest > max_bytes:
        raise RecordTooLarge(
            f"a batch of {largest} bytes, compressed as its topic says, is above {max_bytes}"
        )
    append.records = memoryview(records)
    append.append_ms = now_ms if append.rewrite.stamps else -1
    append.rewrite = None


def refusal_of(batches: list[BatchInfo], max_bytes: int, verify: Verify | None) -> Code | None:
    if not batches:
        return Code.INVALID_RECORD
    if any(batch.size > max_bytes for batch in batches):
        return Code.MESSAGE_TOO_LARGE
    if any(batch.is_transactional and (verify is None or batch.producer_id < 0) for batch in batches):
        return Code.INVALID_RECORD  # outside of a transaction
    if len(batches) > 1 and any(batch.producer_id >= 0 for batch in batches):
        return Code.INVALID_RECORD  # as in Kafka: a sequence number stands for one batch
    return None


def is_too_heavy(records: memoryview, batches: list[BatchInfo]) -> bool:
    """Only unpacking tells how much a small compressed batch holds: it is tried, up to where it would take too long."""
    packed = [batch for batch in batches if batch.codec_id]
    if not packed:
        return False
    if len(records) >= APART_FROM_BYTES:
        return True
    room = UNPACKED_MAX_BYTES
    for batch in packed:
        if room <= 0:
            return True
        area = records[batch.position + HEADER_SIZE : batch.position + batch.size]
        try:
            room -= len(decompress(batch.codec_id, area, max_size=room))
        except FormatError:  # too much, or damaged: the worker finds out which
            return True
    return False
