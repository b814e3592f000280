"""Loading many partitions: those of one lane cost about as much as one of them.

The first is loaded by itself, which leads to its lane; what that says of the others is all there is to know of them. Then
the next of which nothing is known yet, two of them, four: so partitions in a few lanes cost a few requests for each lane,
and those that are in none are soon loaded as many at a time as any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from logstore.engine.chain.bases import view_of
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.segment_table import Segments
from logstore.engine.chain.tail import first_tail
from logstore.engine.chain.view import ChainView
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.errors import CorruptData, UnsupportedStore
from logstore.format.stored.manifest import SegmentTable
from logstore.objects.fan_out import fan_out

_AT_ONCE = 16
Unloadable = CorruptData | UnsupportedStore
"""Why a chain cannot be loaded."""


class Recalled(NamedTuple):
    """`has_ended`: the lane that it is in has, so its owner appends nothing more."""

    view: ChainView
    has_ended: bool


def load_all(chains: Sequence[Chain], lanes: LaneReader) -> list[ChainView]:
    """A view of each, in the order given. `lanes`: what all of them read lanes with. Raises what `Chain.load` does."""
    found = load_some(chains, lanes, len(chains))
    views: list[ChainView] = []
    for chain in chains:
        view = found[chain]
        if isinstance(view, Exception):
            raise view
        views.append(view)
    return views


def load_some(chains: Sequence[Chain], lanes: LaneReader, most: int) -> dict[Chain, ChainView | Unloadable]:
    """Those that lanes tell, and at most so many that must be asked for by themselves, the first ones first. One that cannot
    be loaded is there with the reason."""
    since = lanes.now()
    views: dict[Chain, ChainView | Unloadable] = {}
    seen: set[str] = set()
    left, batch = list(chains), 1
    while left and most:
        batch = min(batch, most)
        some, left, most = left[:batch], left[batch:], most - batch
        loaded = fan_out([partial(_try_to_load, chain) for chain in some], at_once=_AT_ONCE)
        new: set[str] = set()
        for chain, view in zip(some, loaded, strict=True):
            views[chain] = view
            if isinstance(view, ChainView) and view.tail.claim is not None:
                new.add(view.tail.claim.lane)
        for lane in new - seen if left else ():
            based = lanes.based(lane, since)
            for chain in left:
                found = based.get(chain.paths.prefix)
                known = view_of(chain.paths, lane, found) if found is not None else None
                if chain.paths.birth_lane == lane and lanes.is_unborn(lane, chain.paths.prefix, since):
                    known = _unborn(chain)
                if known is not None:
                    views[chain] = known
            left = [chain for chain in left if chain not in views]
        seen |= new
        batch *= 2
    return views


def recalled(chain: Chain, lanes: LaneReader, oldest: float) -> Recalled | None:
    """The partition as a lane told it since then, from memory; None if none did."""
    born = chain.paths.birth_lane
    if born is not None and lanes.is_unborn(born, chain.paths.prefix, oldest):
        return Recalled(_unborn(chain), True)
    found = lanes.recall(chain.paths.prefix, oldest)
    view = None if found is None else view_of(chain.paths, *found)
    return None if found is None or view is None else Recalled(view, found[1].has_ended)


def _unborn(chain: Chain) -> ChainView:
    return ChainView(Segments(chain.paths, SegmentTable()), 0, first_tail(chain.paths))


def _try_to_load(chain: Chain) -> ChainView | Unloadable:
    try:
        return chain.load()
    except (CorruptData, UnsupportedStore) as error:
        return error
