"""Stale-writer detection: what it means for a writer to find that the chain has gone on without it."""

from __future__ import annotations

from contextlib import suppress

from logstore.engine.chain.chain import Chain, StalePlace
from logstore.errors import Fenced, LogStoreError, UnknownTopic
from logstore.format.stored.owner import shown
from logstore.format.stored.segment import SegmentFlags, SegmentHeader, WriterMode

WHAT_NOW = (
    'If several processes are meant to write, open all of them with writer="shared"; if this one is the right one, reopen() '
    "the partition to take it back: from one that is alive on this machine only with take_over=True"
)
"""For whoever was stopped. Two that take a partition back from each other do so for ever."""


def fenced_by(chain: Chain, epoch: int, winner: SegmentHeader) -> LogStoreError:
    """What it means for an exclusive writer to meet another's segment in its place."""
    owner = b""
    if SegmentFlags.DELETED not in winner.flags:
        with suppress(
            LogStoreError, StalePlace
        ):  # one more request, once: a name is a help, and no more than that
            link = chain.link_at(winner.seq)
            owner = link.said.owner if link is not None else b""
    return stopped_by(chain, WriterMode.EXCLUSIVE, epoch, winner, owner)


def stopped_by(
    chain: Chain, ours: WriterMode, epoch: int, winner: SegmentHeader, owner: bytes, then: str = ""
) -> LogStoreError:
    """What a writer of that kind and epoch is told where it meets `winner`. `then`: what became of what it held."""
    if SegmentFlags.DELETED in winner.flags:
        return UnknownTopic(
            f"{chain.paths}: the topic was deleted at offset {winner.base_offset}; nothing more is stored"
        )
    who = f"of epoch {winner.epoch}{named(owner)} took the partition over at offset {winner.base_offset}"
    return Fenced(
        f"{chain.paths}: {a_writer(winner.mode, ours)} {who}; this {ours.name.lower()} one, of epoch {epoch}, has stopped "
        f"for good. {then}{WHAT_NOW}"
    )


def a_writer(mode: WriterMode, ours: WriterMode) -> str:
    name = mode.name.lower()
    return f"{'another' if mode is ours else 'an' if name[0] == 'e' else 'a'} {name} writer"


def named(owner: bytes) -> str:
    """The owner that a segment names, for the middle of a sentence; nothing if there is none that can be read."""
    who = shown(owner)
    return f" ({who})" if who else ""
