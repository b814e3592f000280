"""The journal of a source: what has to be known of the past besides the records themselves.

Each partition's own log says what it has of a source. Three things it cannot say, and guessing them loses records
or stores them twice:

* **How records were routed.** A key's partition depends on how many a topic has. When there are more after a crash
  than before it, a replayed record would go elsewhere, to a partition that has the transaction already and takes
  it for a replay. So the journal says from which transaction on a topic was routed over how many partitions, and
  says it before the first record is sent: a replayed transaction goes where it went the first time.
* **Which topic it was.** One that was deleted, and perhaps rebuilt, lacks what was stored in it: the journal names
  the incarnation.
* **What was trimmed away.** When retention has taken a partition's last record, nothing there says how far it was: the
  journal has, as of some offset, the newest position before it.

And a source keeps here what identifies it (`origin`).

It is a topic of its own, `_ingest.‹source›`, one partition, in JSON. A note says what is new, and the newest wins; now and
then everything is said once more, and what was there before is deleted. The journal is read without
owning it. Who writes to it takes it over first, reads it again, and so fences off whoever wrote before.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from logstore.engine.memory.results import Receipt
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import (
    BufferFull,
    CorruptData,
    InvalidTopicName,
    LogStoreError,
    OutcomeUnknown,
    StoreError,
    UnknownTopic,
    fresh,
)
from logstore.format.batches.record import Record
from logstore.ingest.position import Position, Upper
from logstore.layout.paths import check_topic_name
from logstore.store import Store

PREFIX = "_ingest."
NOTES_MAX = 1_000
"""About so many notes, and a few for each topic, are read again at the next start at most."""
_MARKS_IN_A_NOTE = 1_000

logger = logging.getLogger(__name__)


class Mark(NamedTuple):
    """The newest position of the source before an offset of a partition; None if there is none."""

    offset: int
    upper: Upper | None


UNMARKED = Mark(0, None)


@dataclass(slots=True)
class Route:
    """How a topic was routed: `counts` has `(first transaction, partitions)` pairs, rising. `marks` is by partition."""

    incarnation: str
    counts: list[tuple[int, int]]
    marks: dict[int, Mark] = field(default_factory=dict)

    def partitions_for(self, transaction: int) -> int:
        """Over how many partitions that transaction was routed, or is to be."""
        for first, partitions in reversed(self.counts):
            if transaction >= first:
                return partitions
        return self.counts[0][1]


class Journal:
    """See the module's docstring. One thread at a time."""

    def __init__(self, store: Store, source: str) -> None:
        self._store = store
        self._name = journal_topic(source)
        self._source = source
        self._log: PartitionLog | None = None
        self._notes = 0
        self._written: Future[Receipt] | None = None
        self.origin: dict[str, Any] | None = None
        self.routes: dict[str, Route] = {}

    def read(self) -> Journal:
        """Learn what is there, without taking it over."""
        with suppress(UnknownTopic):
            self._fold(self._store.topic(self._name).partition(0))
        return self

    def own(self) -> None:
        """Take it over, and learn what is there now. Nothing happens if it is ours."""
        if self._log is None:
            log = self._store.create_topic(self._name, exist_ok=True).partition(0)
            log._internal.open_writer(ack="durable", alone=True)
            self._fold(log)
            self._log = log
            if self.is_long:
                self.write_whole()

    def note(self, *, origin: dict[str, Any] | None = None, routes: dict[str, Route] | None = None) -> None:
        """Durable when this returns."""
        self.own()
        log = self._owned()
        log.append(Record(_pack(origin, routes or {}), self._source.encode()), ack="durable")
        self._notes += 1
        self.origin = origin or self.origin
        self.routes.update(routes or {})

    def mark(self, marks: Iterable[tuple[tuple[str, int], Mark]]) -> bool:
        """Note how far partitions are, without waiting for it. False if there is no time for that now; raises if an
        earlier note failed."""
        if self._written is not None:
            if not self._written.done():
                return False
            if (error := self._written.exception()) is not None:
                raise fresh(error) if isinstance(error, LogStoreError) else error
        changed: dict[str, Route] = {}
        for (topic, partition), mark in marks:
            route = self.routes[topic]
            changed.setdefault(topic, Route(route.incarnation, route.counts)).marks[partition] = mark
            route.marks[partition] = mark
        if changed:
            try:
                self._written = self._owned().submit(
                    Record(_pack(None, changed), self._source.encode()), ack="durable"
                )
            except BufferFull:
                return False
            self._notes += 1
        return True

    @property
    def is_long(self) -> bool:
        """Is it time for `write_whole`? Its own notes count, one or more for each topic."""
        return self._notes >= NOTES_MAX + 2 * len(self.routes)

    def write_whole(self) -> None:
        """Say everything once more, in notes of some size, and release what was there before."""
        log, key = self._owned(), self._source.encode()
        first = log.append(Record(_pack(self.origin, {}), key), ack="durable").offset
        self._notes = 1
        for topic, route in self.routes.items():
            marks = list(route.marks.items())
            for start in range(0, max(1, len(marks)), _MARKS_IN_A_NOTE):
                part = Route(route.incarnation, route.counts, dict(marks[start : start + _MARKS_IN_A_NOTE]))
                log.append(Record(_pack(None, {topic: part}), key), ack="buffered")
                self._notes += 1
        log.flush()
        try:
            log.delete_before(first)
        except (StoreError, OutcomeUnknown) as error:
            logger.info("%s keeps old notes for now: %s", self._name, error)

    def _owned(self) -> PartitionLog:
        assert self._log is not None, "own() comes first"
        return self._log

    def _fold(self, log: PartitionLog) -> None:
        self.origin, self.routes, self._notes = None, {}, 0
        for record in log.records(visibility="durable"):
            self._notes += 1
            try:
                self._learn(json.loads(record.value or b"{}"))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CorruptData(
                    self._name, record.offset, f"the note cannot be read ({error!r})"
                ) from error

    def _learn(self, note: dict[str, Any]) -> None:
        if "system" in note:  # before there was a journal, this was all that was noted
            self.origin = note
            return
        self.origin = note.get("origin") or self.origin
        for topic, said in note["routes"].items():
            route = self.routes.get(topic)
            if route is None or route.incarnation != said["incarnation"]:
                route = self.routes[topic] = Route(said["incarnation"], [])
            route.counts = [(int(first), int(partitions)) for first, partitions in said["counts"]]
            for partition, (offset, *upper) in said["marks"].items():
                route.marks[int(partition)] = Mark(int(offset), _upper(*upper) if upper else None)


def journal_topic(source: str) -> str:
    """The journal's name. A source whose name no topic can have has it in hexadecimal."""
    try:
        return check_topic_name(PREFIX + source)
    except InvalidTopicName:
        return check_topic_name(f"{PREFIX}hex.{source.encode().hex()}")


def _pack(origin: dict[str, Any] | None, routes: dict[str, Route]) -> bytes:
    said = {
        topic: {
            "incarnation": route.incarnation,
            "counts": route.counts,
            "marks": {
                partition: [offset] if upper is None else [offset, *upper.position, upper.ended]
                for partition, (offset, upper) in route.marks.items()
            },
        }
        for topic, route in routes.items()
    }
    return json.dumps({"origin": origin, "routes": said}, separators=(",", ":")).encode()


def _upper(transaction: int, ordinal: int, ended: bool) -> Upper:
    return Upper(Position(int(transaction), int(ordinal)), bool(ended))
