"""What the owner of a lane says of its partitions, so that whoever reads the lane need ask for none of them.

The first entry with a part of a claim says where the partition's chain ended; each checkpoint says it again, because
maintenance moves it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from logstore.engine.chain.bases import Settled, base_of
from logstore.engine.lanes.lane_state import ClaimState
from logstore.engine.write.lanes.flushed import Flushed
from logstore.format.stored.claim_base import Bases
from logstore.format.stored.entry import ClaimKey

Known = list[tuple[Flushed, Settled]]


def settled(writers: Iterable[Flushed]) -> Known:
    """Takes the partitions' locks, one after the other."""
    found = ((writer, writer.settled()) for writer in writers)
    return [(writer, known) for writer, known in found if known is not None]


def bases_of(known: Known, claims: Mapping[ClaimKey, ClaimState], old: Bases) -> Bases:
    """`claims`: of the lane, as they were at that time or later. `old`: what was said before; what is of no use any more is
    left out."""
    bases = Bases(lows=dict(old.lows))
    for key, said in old.of.items():
        claim = claims.get(key)
        if claim is not None and not claim.is_left and claim.next_seq <= said.next_seq:
            bases.of[key] = said
    for writer, one in known:
        claim = claims.get(writer.claim_key)
        if claim is None or claim.is_left:
            continue
        base = base_of(one, claim, writer.claim.since, old.of.get(writer.claim_key))
        if base is not None:
            bases.of[writer.claim_key] = base
            if one.low:
                bases.raise_lows({writer.claim_key: one.low})
    return bases
