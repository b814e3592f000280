"""A transactional id and its transaction, as a pure state machine. Every function takes what is known and says what is to be
written, or why not; what it says counts when it is durable.

    EMPTY ──add──► ONGOING ──end──► PREPARE_COMMIT or PREPARE_ABORT ──markers──► COMPLETE_… ──add──► ONGOING …

PREPARE_… is the decision. From then on the outcome is certain, and whoever coordinates writes the markers. Fencing: a new
life of the producer (`init`) and the time-out raise the epoch; what comes with an older one is refused here, and by each
partition from the marker on.

The producer's next transaction is recorded while the markers of the one before are on their way, together with that one
(`ending`). Until they stand nobody is told that it goes on, and nothing else is decided about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from broker_shim.wire.codes import Code
from logstore.format.batches.markers import Marker

NO_EPOCH = -1
LAST_EPOCH = 0x7FFF - 1
"""One more is left for the marker that fences it."""
Place = tuple[str, int]


class State(IntEnum):
    """With Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def is_decided(self) -> bool:
        """Decided, and not all markers are known to be stored."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def shown(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True)
class Transaction:
    """`started_ms` only grows for one transactional id, whatever the clocks do: it tells its transactions apart.

    `last_epoch`: the one that the producer said when it asked for a new one (KIP-360): it may ask again.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    places: frozenset[Place]
    started_ms: int
    changed_at_ms: int
    last_epoch: int = NO_EPOCH
    ending: Transaction | None = None
    """The one before, decided, if not all of its markers are known to be stored."""

    @property
    def to_finish(self) -> Transaction | None:
        """What is decided and still has to be told to its partitions."""
        return self if self.state.is_decided else self.ending

    def marker(self, coordinator_epoch: int) -> Marker:
        is_commit = self.state is State.PREPARE_COMMIT
        return Marker(self.producer_id, self.epoch, is_commit, coordinator_epoch, self.started_ms)


class Decision(NamedTuple):
    """`next`: what is to be written first; None: nothing. `code`: what the producer is told then."""

    code: Code
    next: Transaction | None = None


def init(
    known: Transaction | None, producer_id: int, epoch: int, timeout_ms: int, now_ms: int, new_id: int
) -> Decision:
    """A producer begins, or begins again. `producer_id` and `epoch`: what it says it has had, or -1."""
    if known is None:
        fresh = Transaction(new_id, 0, timeout_ms, State.EMPTY, frozenset(), 0, now_ms)
        return Decision(Code.NONE, fresh)
    if producer_id >= 0 and (
        producer_id != known.producer_id or epoch not in (known.epoch, known.last_epoch)
    ):
        return Decision(Code.PRODUCER_FENCED)
    if known.to_finish is not None:
        return Decision(Code.CONCURRENT_TRANSACTIONS)
    if known.state is State.ONGOING:
        # Its former life may still write: the marker carries a later epoch than it has.
        return Decision(Code.CONCURRENT_TRANSACTIONS, _fenced(known, now_ms))
    if producer_id >= 0 and epoch != known.epoch:
        return Decision(Code.NONE, replace(known, timeout_ms=timeout_ms))  # asked again: the answer was lost
    begun = replace(known, timeout_ms=timeout_ms, state=State.EMPTY, places=frozenset(), changed_at_ms=now_ms)
    if known.epoch >= LAST_EPOCH:
        return Decision(Code.NONE, replace(begun, producer_id=new_id, epoch=0, last_epoch=NO_EPOCH))
    last = known.epoch if producer_id >= 0 else NO_EPOCH
    return Decision(Code.NONE, replace(begun, epoch=known.epoch + 1, last_epoch=last))


def _fenced(known: Transaction, now_ms: int) -> Transaction:
    return replace(
        known, epoch=known.epoch + 1, last_epoch=NO_EPOCH, state=State.PREPARE_ABORT, changed_at_ms=now_ms
    )


def add(
    known: Transaction | None, producer_id: int, epoch: int, places: Iterable[Place], now_ms: int
) -> Decision:
    """Partitions become part of the transaction; the first ones begin it."""
    refusal = _refuse(known, producer_id, epoch)
    if refusal is not None or known is None:
        return Decision(refusal or Code.INVALID_PRODUCER_ID_MAPPING)
    if known.ending is not None:
        return Decision(Code.CONCURRENT_TRANSACTIONS)
    added = frozenset(places)
    if known.state is State.ONGOING:
        if added <= known.places:
            return Decision(Code.NONE)
        return Decision(Code.NONE, replace(known, places=known.places | added, changed_at_ms=now_ms))
    started_ms = max(now_ms, known.started_ms + 1)
    begun = replace(
        known,
        state=State.ONGOING,
        places=added,
        started_ms=started_ms,
        changed_at_ms=now_ms,
        last_epoch=NO_EPOCH,
        ending=known.to_finish,
    )
    return Decision(Code.NONE, begun)


def end(known: Transaction | None, producer_id: int, epoch: int, is_commit: bool, now_ms: int) -> Decision:
    """The producer commits or aborts. Asked twice, it gets the same answer."""
    refusal = _refuse(known, producer_id, epoch)
    if refusal is not None or known is None:
        return Decision(refusal or Code.INVALID_PRODUCER_ID_MAPPING)
    if known.ending is not None:
        return Decision(Code.CONCURRENT_TRANSACTIONS)
    prepared = State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT
    complete = State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT
    if known.state is State.ONGOING:
        return Decision(Code.NONE, replace(known, state=prepared, changed_at_ms=now_ms))
    return Decision(Code.NONE if known.state in (prepared, complete) else Code.INVALID_TXN_STATE)


def time_out(known: Transaction, now_ms: int) -> Transaction | None:
    """What is to be written if its time is up: it is aborted, and its producer fenced."""
    if (
        known.state is not State.ONGOING
        or known.ending is not None
        or now_ms - known.started_ms < known.timeout_ms
    ):
        return None
    return _fenced(known, now_ms)


def complete(known: Transaction, now_ms: int) -> Transaction:
    """Every marker is stored."""
    if known.ending is not None:
        return replace(known, ending=None)
    is_commit = known.state is State.PREPARE_COMMIT
    state = State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT
    return replace(known, state=state, places=frozenset(), changed_at_ms=now_ms)


def lost(known: Transaction, now_ms: int) -> Transaction:
    """One that was begun in the memory of a coordinator that is gone, and of which nothing is stored: it is aborted."""
    started_ms = max(now_ms, known.started_ms + 1)
    return replace(
        known, state=State.COMPLETE_ABORT, places=frozenset(), started_ms=started_ms, changed_at_ms=now_ms
    )


def verify(known: Transaction | None, producer_id: int, epoch: int, place: Place) -> Code:
    """May this producer write to that partition now?"""
    if known is None or known.producer_id != producer_id:
        return Code.INVALID_TXN_STATE
    if epoch != known.epoch:
        return Code.INVALID_PRODUCER_EPOCH if epoch < known.epoch else Code.INVALID_TXN_STATE
    is_part = known.state is State.ONGOING and place in known.places
    return Code.NONE if is_part else Code.INVALID_TXN_STATE


def _refuse(known: Transaction | None, producer_id: int, epoch: int) -> Code | None:
    if known is None or known.producer_id != producer_id:
        return Code.INVALID_PRODUCER_ID_MAPPING
    return Code.PRODUCER_FENCED if known.epoch != epoch else None
