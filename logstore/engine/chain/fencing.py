"""What it means for a writer to find that the chain has gone on without it."""

from __future__ import annotations

from logstore.engine.chain.chain import Chain
from logstore.errors import Fenced, LogStoreError, UnknownTopic
from logstore.format.segment import SegmentFlags, SegmentHeader


def fenced_by(chain: Chain, epoch: int, winner: SegmentHeader) -> LogStoreError:
    """What it means for an exclusive writer to meet another's segment in its place."""
    if SegmentFlags.DELETED in winner.flags:
        return UnknownTopic(
            f"{chain.paths}: the topic was deleted at offset {winner.base_offset}; nothing more is stored"
        )
    return Fenced(
        f"{chain.paths}: a writer of epoch {winner.epoch} took over at offset {winner.base_offset}, this one is of epoch "
        f"{epoch} and has stopped for good; reopen() the partition to take it back"
    )
