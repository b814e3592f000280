"""Atomic appends: `with store.atomic() as tx: tx.append(topic, value)`, records of several partitions, all or none.

The block collects; leaving it commits, with one PUT. What it collected is in this process alone until then, and is gone if
the block ends with an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logstore.engine.memory.results import Receipt
from logstore.engine.partition.atomic_batches import begin_atomic, finish_atomic
from logstore.engine.write.admission import admit_one, encode_runs
from logstore.engine.write.lanes.atomic_append import AtomicAppend
from logstore.errors import Closed, InvalidRecord
from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.record import Header, Record
from logstore.topic import Topic, check_one

Place = tuple[Topic, int]


class AtomicBlock:
    """What `Store.atomic()` gives. For one block, and one thread at a time."""

    receipts: list[Receipt]
    """After the block, one for each record in the order of the appends, all of them durable; empty before."""

    def __init__(self, find: Callable[[str], Topic], timeout: float | None) -> None:
        self.receipts = []
        self._find = find
        self._timeout = timeout
        self._topics: dict[str, Topic] = {}
        self._records: dict[Place, list[Record]] = {}
        self._order: list[tuple[Place, int]] = []
        self._is_over = False

    def append(
        self,
        topic: Topic | str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Add a record to the block, as `Topic.append` would append it. `value=None` is a tombstone.

        Raises `InvalidRecord` or `RecordTooLarge` for one that could not be stored, `UnknownTopic`, and `Closed` after the
        block.
        """
        self._check_open()
        found = self._topic(topic)
        inner = found._internal
        place = (found, inner.pick(key) if partition is None else partition)
        log = inner.partition(place[1])._internal
        limit = log.config.max_batch_bytes
        try:
            record, _ = admit_one(value, key, headers, timestamp_ms, log.now_ms, limit)
        except InvalidRecord:
            check_one(value)
            raise
        records = self._records.setdefault(place, [])
        self._order.append((place, len(records)))
        records.append(record)

    def _topic(self, topic: Topic | str) -> Topic:
        if isinstance(topic, Topic):
            return topic
        if topic not in self._topics:
            self._topics[topic] = self._find(topic)
        return self._topics[topic]

    def _check_open(self) -> None:
        if self._is_over:
            raise Closed("this atomic block has ended: nothing was appended; begin another one")

    def _begin(self) -> tuple[AtomicAppend, float] | None:
        """The first half of leaving the block: give the records their offsets. None if there are none."""
        self._check_open()
        self._is_over = True
        if not self._records:
            return None
        logs = [topic.partition(number) for topic, number in self._records]
        parts = []
        for log, records in zip(logs, self._records.values(), strict=True):
            inner = log._internal
            runs = inner.check_records(records)
            parts.append((inner, encode_runs(runs, inner.now_ms, CODEC_IDS[inner.config.compression])))
        deadline = parts[0][0].deadline(self._timeout)
        return begin_atomic(parts, deadline), deadline

    def _finish(self, whole: list[Receipt]) -> None:
        """The other half: all of it is durable."""
        by_place = dict(zip(self._records, whole, strict=True))
        for place, number in self._order:
            ack, record = by_place[place], self._records[place][number]
            offset, stamp = ack.offset + number, record.timestamp_ms
            self.receipts.append(
                Receipt(ack._log, offset, offset, ack.timestamp_ms if stamp is None else stamp, "durable")
            )

    def _give_up(self) -> None:
        """The block has failed: nothing of it is stored."""
        self._is_over = True

    def __enter__(self) -> AtomicBlock:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._give_up()
            return
        begun = self._begin()
        if begun is not None:
            self._finish(finish_atomic(*begun))
