"""Whether a writer may stop the one before it. Nobody is stopped by accident.

Opening an exclusive writer, or the first shared or replicated one behind it, stops whoever wrote before. So the chain's tail
is judged first: who owns it (the fence says so, and the manifest behind it), whether that one has said that it closed, and
whether it lives, which only this machine's kernel can tell (`logstore.process.presence`). What was judged is all there is:
the fence goes into the place right behind it, and a create has one winner. If somebody was faster, that one is judged.

This costs no request, and asks no clock. Within one process the later writer wins, as it always did: who opens one store
twice in one program can see both.
"""

from __future__ import annotations

from logstore.config import TakeOver
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.tail import ChainTail
from logstore.errors import PartitionInUse
from logstore.format.errors import FormatError
from logstore.format.stored.owner import Owner
from logstore.format.stored.segment import WriterMode
from logstore.process.presence import Liveness, liveness_of

SHARE = 'if several processes are meant to write, open all of them with writer="shared"'


_ENDED: set[Owner] = set()
_ENDED_MAX = 1024


class WrittenByShared(Exception):
    """The chain is one of shared writers, which have no owner: others may be at work. Internal: whoever opens joins them, or
    says why not."""


def check_may_stop(chain: Chain, tail: ChainTail, take_over: TakeOver) -> None:
    """Raises `PartitionInUse` if the writer that the tail names must not be stopped by one that opens with `take_over`, and
    `WrittenByShared` if there may be several."""
    if take_over is True or not tail.next_seq or tail.closed:
        return
    if tail.mode is WriterMode.SHARED:
        raise WrittenByShared
    owner = _parsed(chain.owner_of(tail))
    liveness = Liveness.UNKNOWN if owner is None else _liveness_of(owner)
    if liveness is Liveness.LIVING:
        raise PartitionInUse(
            f"{chain.paths}: {owner} writes it and is alive (epoch {tail.epoch}). Nothing was appended and nobody was "
            f"stopped: {SHARE}; if this one is to replace the other, close that one first, or open with take_over=True, "
            "which stops it for good",
            str(owner),
        )
    if liveness is Liveness.UNKNOWN and take_over == "if_gone":
        raise PartitionInUse(
            f"{chain.paths}: {_whose(tail, owner)} and whether that one is gone cannot be told from here. Nothing was "
            f"appended and nobody was stopped: {SHARE}; if it is surely gone, or is to be stopped, open with take_over=True",
            None if owner is None else str(owner),
        )


def is_surely_gone(chain: Chain, tail: ChainTail) -> bool:
    """Whether whoever the tail names can append nothing more, as far as this machine's kernel knows."""
    owner = _parsed(chain.owner_of(tail))
    return owner is not None and _liveness_of(owner) is Liveness.GONE


def shared_in_the_way(chain: Chain, why: str) -> PartitionInUse:
    """For whoever cannot join shared writers."""
    return PartitionInUse(
        f'{chain.paths}: processes with writer="shared" write it, and may be at work. {why}. Nothing was appended and '
        "nobody was stopped: open with take_over=True to make it exclusive, which stops all of them for good",
        None,
    )


def check_may_adopt(lane: str, document: bytes, take_over: TakeOver) -> None:
    """Raises `PartitionInUse` if the process that has the lane must not be stopped by its next life. `document`: who it is;
    nothing if there was none before."""
    owner = _parsed(document)
    if take_over is True or not document:
        return
    liveness = Liveness.UNKNOWN if owner is None else _liveness_of(owner)
    if liveness is Liveness.LIVING or (liveness is Liveness.UNKNOWN and take_over == "if_gone"):
        lives = "is alive" if liveness is Liveness.LIVING else "may be alive: that cannot be told from here"
        raise PartitionInUse(
            f"the lane {lane} belongs to {owner or 'a process that left no name'}, which {lives}. Nothing was appended and "
            "nobody was stopped: a name is for one process at a time, so give this one another; if it is to replace the "
            "other, close that one first, or open with take_over=True, which stops it for good",
            None if owner is None else str(owner),
        )


def _liveness_of(owner: Owner) -> Liveness:
    """The kernel is not asked again about a process that has ended: many partitions had the same owner."""
    if owner in _ENDED:
        return Liveness.GONE
    liveness = liveness_of(owner)
    if liveness is Liveness.GONE and len(_ENDED) < _ENDED_MAX:
        _ENDED.add(owner)
    return liveness


def _parsed(document: bytes) -> Owner | None:
    try:
        return Owner.parse(document) if document else None
    except FormatError:
        return None


def _whose(tail: ChainTail, owner: Owner | None) -> str:
    if owner is not None:
        return f"{owner} wrote it last (epoch {tail.epoch}) and has not said that it closed,"
    kind = "replicated writers" if tail.mode is WriterMode.REPLICATED else "a writer that left no name"
    return f"{kind} wrote it last (epoch {tail.epoch}),"
