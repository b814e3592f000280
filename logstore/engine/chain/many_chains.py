"""Loading many partitions: those of one lane cost about as much as one of them.

The first is loaded by itself, which leads to its lane; what that says of the others is all there is to know of them. Then
the next of which nothing is known yet, two of them, four: so partitions in a few lanes cost a few requests for each lane,
and those that are in none are soon loaded as many at a time as any others.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore.engine.chain.bases import view_of
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.view import ChainView
from logstore.engine.host.fan_out import fan_out
from logstore.engine.lanes.lane_reader import LaneReader

_AT_ONCE = 16


def load_all(chains: Sequence[Chain], lanes: LaneReader) -> list[ChainView]:
    """A view of each, in the order given. `lanes`: what all of them read lanes with. Raises what `Chain.load` does."""
    since = lanes.now()
    views: dict[Chain, ChainView] = {}
    seen: set[str] = set()
    left, batch = list(chains), 1
    while left:
        some, left = left[:batch], left[batch:]
        loaded = fan_out([chain.load for chain in some], at_once=_AT_ONCE, at_least=2)
        views |= zip(some, loaded, strict=True)
        new = {view.tail.claim.lane for chain in some if (view := views[chain]).tail.claim is not None} - seen
        seen |= new
        for lane in new if left else ():
            based = lanes.based(lane, since)
            for chain in left:
                found = based.get(chain.paths.prefix)
                known = view_of(chain.paths, lane, found) if found is not None else None
                if known is not None:
                    views[chain] = known
            left = [chain for chain in left if chain not in views]
        batch *= 2
    return [views[chain] for chain in chains]
