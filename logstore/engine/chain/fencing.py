"""Stale-writer detection: what it means for a writer to find that the chain has gone on without it."""

from __future__ import annotations

from contextlib import suppress

from logstore.engine.chain.chain import Chain, StalePlace
from logstore.errors import Fenced, LogStoreError, UnknownTopic
from logstore.format.stored.owner import shown
from logstore.format.stored.segment import SegmentFlags, SegmentHeader

WHAT_NOW = (
    'If several processes are meant to write, open all of them with writer="shared"; if this one is the right one, reopen() '
    "the partition to take it back: from one that is alive on this machine only with take_over=True"
)
"""For whoever was stopped. Two that take a partition back from each other do so for ever."""


def fenced_by(chain: Chain, epoch: int, winner: SegmentHeader) -> LogStoreError:
    """What it means for an exclusive writer to meet another's segment in its place."""
    if SegmentFlags.DELETED in winner.flags:
        return UnknownTopic(
            f"{chain.paths}: the topic was deleted at offset {winner.base_offset}; nothing more is stored"
        )
    who = ""
    with suppress(
        LogStoreError, StalePlace
    ):  # one more request, once: a name is a help, and no more than that
        link = chain.link_at(winner.seq)
        who = named(link.said.owner) if link is not None else ""
    return Fenced(
        f"{chain.paths}: a writer of epoch {winner.epoch}{who} took over at offset {winner.base_offset}, this one is of "
        f"epoch {epoch} and has stopped for good. {WHAT_NOW}"
    )


def named(owner: bytes) -> str:
    """The owner that a segment names, for the middle of a sentence; nothing if there is none that can be read."""
    who = shown(owner)
    return f" ({who})" if who else ""
