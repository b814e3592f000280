"""Offsets that transactions commit for groups, in one partition of the internal topic: kept apart until they are decided.

They are pending until the marker of their transaction is durable. Who asks for stable offsets is told to come again until
then: with those of before, it would do again what a transaction that is committed has done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from broker_shim.groups.group_records import Committed
from broker_shim.groups.pending_offsets import (
    LastEnd,
    PendingOffsets,
    Place,
    decode_pending,
    decode_pending_key,
    encode_pending,
    encode_pending_key,
)
from broker_shim.partitions.state_log import Change, Done, StateLog, nobody_waits
from broker_shim.partitions.together import Part, append_together
from broker_shim.partitions.transaction_gate import Companion
from broker_shim.wire.codes import Code
from logstore.errors import LogStoreError
from logstore.format.batches.markers import Marker

Commits = dict[Place, Committed]


class Offsets(Protocol):
    """Those of the groups, which everybody sees."""

    def changes(self, group: str, commits: Commits) -> list[Change]:
        """What a commit changes in the log."""

    def begin_commit(self, group: str, commits: Commits) -> None:
        """It is on its way from now on."""

    def end_commit(self, group: str, commits: Commits, code: Code) -> None:
        """It has come to the log, or not."""


class Verified(NamedTuple):
    """That a coordinator was asked, and said yes. `since`: what had ended here before (`last_end`). `companion`: says that
    the group is part of the transaction, and is stored when its offsets are."""

    producer_id: int
    epoch: int
    since: LastEnd
    companion: Companion | None


@dataclass(eq=False)
class _End:
    """The marker of a producer that is on its way. `before`: what it is about. `behind`: markers that wait for it."""

    before: PendingOffsets
    behind: list[tuple[Marker, Done]] = field(default_factory=list)


class TransactionalOffsets:
    """Runs on the event loop, except `read`, which comes before everything else."""

    def __init__(self, log: StateLog, offsets: Offsets, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._offsets = offsets
        self._now_ms = now_ms
        self._known: dict[int, PendingOffsets] = {}
        self._ending: dict[int, _End] = {}

    def read(self, raw_key: bytes, value: bytes) -> bool:
        """Take in a record of the log, if it is one of these."""
        producer_id = decode_pending_key(raw_key)
        if producer_id is not None:
            self._known[producer_id] = decode_pending(value)
        return producer_id is not None

    def _of(self, producer_id: int) -> PendingOffsets:
        return self._known.get(producer_id, PendingOffsets())

    def last_end(self, producer_id: int) -> LastEnd:
        return self._of(producer_id).last_end

    def pending(self, group: str) -> set[Place]:
        """Where transactions commit other offsets, as far as the end of them is not durable."""
        several = (*self._known.values(), *(each.before for each in self._ending.values()))
        return {place for each in several for place in each.pending.get(group, ())}

    @property
    def groups(self) -> set[str]:
        """For which something is pending."""
        return {group for each in self._known.values() for group in each.pending}

    # ── what is pending ──────────────────────────────────────────────────────────────────────────────────

    def keep(self, group: str, commits: Commits, verified: Verified, done: Done) -> None:
        """Until the transaction of that producer ends."""
        producer_id, epoch, since, companion = verified
        known = self._of(producer_id)
        if epoch < known.epoch:
            done(Code.INVALID_PRODUCER_EPOCH)
            return
        if known.last_end != since:
            # It may be this one that has ended, and nobody would end what is kept for it now: ask again.
            done(Code.COORDINATOR_LOAD_IN_PROGRESS)
            return
        # Known from now on, so that two on their way do not overwrite each other. It is seen by nobody yet.
        self._known[producer_id] = known.with_more(epoch, group, commits)

        def kept(code: Code) -> None:
            if code is not Code.NONE:
                self._take_back(producer_id, group, commits, known)
            is_asked_again = code in (Code.OPERATION_NOT_ATTEMPTED, Code.NOT_ENOUGH_REPLICAS)
            done(Code.COORDINATOR_LOAD_IN_PROGRESS if is_asked_again else code)

        if companion is None:
            self._log.write(self._changes(producer_id), kept)
        elif not self._keep_together(companion, producer_id, kept):
            self._log.start(self._keep_after(companion, verified, kept))

    def _changes(self, producer_id: int) -> list[Change]:
        return [(encode_pending_key(producer_id), encode_pending(self._of(producer_id)))]

    def _take_back(self, producer_id: int, group: str, commits: Commits, before: PendingOffsets) -> None:
        """They are not stored, and never will be."""
        known = self._of(producer_id)
        places = dict(known.pending.get(group, {}))
        for place, each in commits.items():
            if places.get(place) is each:
                former = before.pending.get(group, {}).get(place)
                if former is None:
                    del places[place]
                else:
                    places[place] = former
        others = {name: each for name, each in known.pending.items() if name != group}
        self._known[producer_id] = known._replace(pending={**others, group: places} if places else others)

    def _keep_together(self, companion: Companion, producer_id: int, kept: Done) -> bool:
        first, mine = companion.part(), self._log.part(self._changes(producer_id), kept)
        if first is None or mine is None:
            return False
        try:
            append_together([first, mine])
        except LogStoreError:
            return False
        return True

    async def _keep_after(self, companion: Companion, verified: Verified, kept: Done) -> None:
        code = await companion.write()
        if code is Code.NONE and self.last_end(verified.producer_id) != verified.since:
            code = Code.OPERATION_NOT_ATTEMPTED
        if code is Code.NONE:
            code = await self._log.written(self._changes(verified.producer_id))
        kept(code)

    # ── how it ends ──────────────────────────────────────────────────────────────────────────────────────

    def end(self, marker: Marker, done: Done) -> None:
        """Commit what that transaction has pending, or forget it. A marker that comes while another of its producer is on
        its way waits for that: it may be the same one again, and is not stored before it."""
        ending = self._ending.get(marker.producer_id)
        if ending is not None:
            ending.behind.append((marker, done))
        elif self._of(marker.producer_id).is_stale(marker):
            done(Code.NONE)
        else:
            changes, begin, written = self._ended(marker, done)
            begin()
            self._log.write(changes, written)

    def part_of_end(self, marker: Marker) -> Part | Code | None:
        """The same, to be stored together with other parts, now. None if it has to wait for others; NONE if it is stored."""
        if marker.producer_id in self._ending:
            return None
        if self._of(marker.producer_id).is_stale(marker):
            return Code.NONE
        changes, begin, written = self._ended(marker, nobody_waits)
        return self._log.part(changes, written, begin)

    def _ended(self, marker: Marker, done: Done) -> tuple[list[Change], Callable[[], None], Done]:
        """What the end of a transaction changes, what is known once that is on its way, and once it is durable."""
        producer_id = marker.producer_id
        known = self._of(producer_id)
        ended = known.ended(marker, self._now_ms())
        committed = known.pending if marker.is_commit else {}
        changes: list[Change] = [(encode_pending_key(producer_id), encode_pending(ended))]
        for group, commits in committed.items():
            changes += self._offsets.changes(group, commits)

        def begin() -> None:
            self._known[producer_id] = ended
            self._ending[producer_id] = _End(known)
            for group, commits in committed.items():
                self._offsets.begin_commit(group, commits)

        def written(code: Code) -> None:
            ending = self._ending.pop(producer_id)
            if code is not Code.NONE and self._known.get(producer_id) is ended:
                self._known[producer_id] = known
            for group, commits in committed.items():
                self._offsets.end_commit(group, commits, code)
            done(code)
            for behind, told in ending.behind:
                if code in (Code.NONE, Code.OPERATION_NOT_ATTEMPTED):
                    self.end(behind, told)
                else:
                    told(code)

        return changes, begin, written

    def expire(self, oldest_ms: int) -> None:
        """Producers that have nothing pending, and ended nothing here for so long, are forgotten."""
        silent = [
            producer_id
            for producer_id, each in self._known.items()
            if not each.pending and each.changed_at_ms < oldest_ms and producer_id not in self._ending
        ]
        for producer_id in silent:
            del self._known[producer_id]
        if silent:
            self._log.write([(encode_pending_key(producer_id), None) for producer_id in silent], nobody_waits)
