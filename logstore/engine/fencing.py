"""What it means for a writer to find that the chain has gone on without it."""

from __future__ import annotations

from logstore.engine.chain import Chain
from logstore.errors import Fenced, LogStoreError, OutcomeUnknown, UnknownTopic
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


def slept_long(silent_ms: int, grace_s: float) -> bool:
    """Whether what was committed since may have been merged and deleted: then an empty place is not the chain's end."""
    return silent_ms >= grace_s * 500


def refuse_resurrection(chain: Chain, header: SegmentHeader, silent_ms: int, grace_s: float) -> None:
    """A writer that slept so long that maintenance may have deleted the segments that stopped it looks once more.

    Its PUT may have succeeded only because the place was empty *again*; then it committed into the past.
    """
    if not slept_long(silent_ms, grace_s):
        return
    view = chain.load()
    if view.tail.deleted:
        raise OutcomeUnknown(
            f"{chain.paths.segment(header.seq)}: this writer was silent for {silent_ms / 1000:.0f} s, and the topic was "
            f"deleted meanwhile: what it has just stored from offset {header.base_offset} on belongs to no topic"
        )
    # A manifest that cannot be read may have covered our place. Then whatever stands behind us counts as a sign of that.
    gone_on_to = view.tail.next_seq - 1 if view.manifest_damaged else view.manifest_next_seq
    if gone_on_to > header.seq:
        raise OutcomeUnknown(
            f"{chain.paths.segment(header.seq)}: this writer was silent for {silent_ms / 1000:.0f} s and the chain has gone "
            f"on to {gone_on_to} without it; reopen() the partition, and read back from offset "
            f"{header.base_offset}"
        )
