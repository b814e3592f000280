"""Appends that shared writers have put aside: whoever creates the next segment takes them along.

A writer that loses races puts its appends into an object of their own beside the chain, `pending/‹born›-‹id›`, and follows
the chain until it finds that id in a segment. *born* is the place at which it stood: it had read every place below and found
the id in none. Nobody contends for that name, and the upload never has to be made again.

Why each append is stored once, whoever commits it, whatever comes late or twice, and without a clock (searched in
`tests/model/combining.py`):

* An append has one id for its whole life. A segment says the ids of all appends in it, also once it was collected. To find
  one's own id in the chain is the only ack.
* A pending append may go into place e only by one who knows the ids of every place from `born` to e and has it in none of
  them (`KnownPlaces`), and only if e < born + `PENDING_WINDOW`. If anything came meanwhile, the create at e fails.
* There is no fence between: whoever follows the chain past one is stopped, so all it knows is of one epoch.
* Nothing is withdrawn. What has born + `PENDING_WINDOW` at or below the chain's end is dead: anybody may delete it.
* What an idempotent producer has sent goes in only where it may follow what is stored (`StoredAppends.admitted`). So if one
  append of several that were put aside together is stored already, nobody commits those any more.

What goes wrong with looking for others' appends changes nothing of our own: it is logged at debug and tried again later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, takewhile

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.link import Link
from logstore.engine.memory.topic_settings import TopicSettings
from logstore.engine.shared.chain_cursor import ChainCursor
from logstore.engine.shared.pace import Pace
from logstore.errors import CorruptData, LogStoreError
from logstore.format.batches.batch import split
from logstore.format.batches.sequences import Sequences
from logstore.format.errors import FormatError
from logstore.format.stored.encoded_batch import EncodedBatch, as_stored
from logstore.format.stored.extras import AppendId
from logstore.format.stored.segment import HEADER_SIZE, SegmentHeader, parse_segment
from logstore.layout.paths import PENDING_WINDOW, PendingName
from logstore.objects.fan_out import fan_out

logger = logging.getLogger(__name__)

TAKEN_MAX = 1000
"""How many are taken along at once: their ids must fit into what one request reads of a segment's tail."""
_FETCHED_AT_ONCE = 32
_DELETED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Pending:
    """Another writer's appends, as it has put them aside: offsets count from 0. `numbered`: those of idempotent
    producers."""

    name: PendingName
    header: SegmentHeader
    batches: list[EncodedBatch]
    numbered: list[Sequences]

    @property
    def count(self) -> int:
        return self.header.end_offset

    @classmethod
    def parse(cls, name: PendingName, data: bytes) -> Pending:
        """The object is a segment like any other, but for its offsets."""
        summary, index = parse_segment(data, strict=True)
        if summary.header.writer_id != name.id or summary.header.base_offset:
            raise FormatError("the object holds another append than its name says", 0)
        raw = memoryview(data)
        batches = [
            as_stored(raw[position : position + size], base, count, low, high)
            for base, position, size, count, high, low, _ in index.tolist()
        ]
        infos = split(raw[HEADER_SIZE : summary.index_position])
        return cls(
            name, summary.header, batches, [Sequences.of(one) for one in infos if one.producer_id >= 0]
        )


def appends_in(link: Link, key: str) -> Iterable[AppendId]:
    """The ids in a segment. One without a list holds one writer's appends, under the id in its header."""
    header = link.header
    if link.extras is None:
        raise CorruptData(key, header.base_offset, "the list of its appends is damaged")
    alone = AppendId(header.writer_id, header.base_offset, header.end_offset - header.base_offset)
    return link.extras.appends or (alone,)


@dataclass(slots=True)
class KnownPlaces:
    """The ids of the appends in all places from `since` to where its writer is. Asked by another thread, too."""

    since: int
    _ids: dict[bytes, int] = field(default_factory=dict)  # where each is, in the order of the chain

    def add(self, seq: int, ids: Iterable[bytes]) -> None:
        self._ids.update((one, seq) for one in ids)
        for one in list(takewhile(lambda one: self._ids[one] <= seq - PENDING_WINDOW, self._ids)):
            del self._ids[one]

    def may_take(self, name: PendingName, seq: int) -> bool:
        """Whether that append may go into place `seq`, where its writer is."""
        return self.since <= name.born <= seq and not name.is_dead(seq) and name.id not in self._ids


class Scout:
    """Looks for what others have put aside and fetches it, on a thread of the task pool, while our own uploads go on.

    It knows its writer's place in the chain and its pace: whether the store is far enough for a thread for each object.
    """

    def __init__(self, chain: Chain, topic: TopicSettings, cursor: ChainCursor, pace: Pace) -> None:
        self.known = KnownPlaces(cursor.tail.next_seq)
        self.unneeded: list[PendingName] = []
        self.should_look = False
        self._chain = chain
        self._topic = topic
        self._cursor = cursor
        self._pace = pace
        self._found: list[Pending] | None = None

    def run(self) -> None:
        """Look, if we should, and delete what is not needed any more."""
        if self.should_look:
            self.should_look = False
            self.fetch(self.put_aside())
        for _ in range(min(len(self.unneeded), _DELETED_AT_ONCE)):
            self._delete(self.unneeded.pop())

    def needs_no_more(self, name: PendingName | None) -> None:
        """What was put aside under that name, if anything was, may be deleted."""
        if name is not None:
            self.unneeded.append(name)

    def take(self, ours: bytes) -> list[Pending]:
        """What the last look has found, once: that of others which may go into our next place."""
        found, self._found = self._found, None
        if found is None:
            return []
        self._pace.looked(bool(found))
        seq, epoch = self._cursor.tail.next_seq, self._cursor.epoch
        may_go = [one for one in found if one.header.epoch == epoch and self.known.may_take(one.name, seq)]
        return [one for one in may_go if one.name.id != ours]

    def put_aside(self) -> list[tuple[PendingName, int]]:
        """What may go into the next place, and its size, oldest first; nothing if that cannot be found out. What is dead is
        not needed any more."""
        paths, seq = self._chain.paths, self._cursor.tail.next_seq
        try:
            listed = [
                (name, info.size)
                for info in self._chain.store.list(paths.pending_prefix)
                if (name := paths.pending_name(info.key)) is not None
            ]
        except Exception as error:
            logger.debug("%s: could not look for what other writers have put aside: %s", paths, error)
            return []
        self.unneeded += [name for name, _ in listed if name.is_dead(seq)]
        once = {name.id: (name, size) for name, size in listed if self.known.may_take(name, seq)}
        return list(once.values())

    def fetch(self, names: list[tuple[PendingName, int]]) -> None:
        """For `take`."""
        sizes = accumulate(size for _, size in names)
        room = max(self._topic.config.segment_bytes, names[0][1]) if names else 0
        that_fit = [name for (name, _), size in zip(names[:TAKEN_MAX], sizes, strict=False) if size <= room]
        calls = [partial(self._fetch, name) for name in that_fit]
        found = fan_out(calls, at_once=_FETCHED_AT_ONCE, ahead=not self._pace.upload.is_cheap)
        self._found = [pending for pending in found if pending is not None]

    def _fetch(self, name: PendingName) -> Pending | None:
        key = self._chain.paths.pending(name)
        try:
            return Pending.parse(name, self._chain.store.get(key))
        except (LogStoreError, FormatError) as error:  # stored meanwhile, as a rule
            logger.debug("%s: it was put aside and cannot be taken along: %s", key, error)
            return None

    def _delete(self, name: PendingName) -> None:
        """Its appends are stored, or it is dead. If it stays, it does no harm: it is swept later."""
        try:
            self._chain.store.delete(self._chain.paths.pending(name))
        except Exception as error:
            logger.debug("%s: a pending append stays for now: %s", self._chain.paths, error)
