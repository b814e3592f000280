"""Following the chain: what others have committed becomes part of an open partition's state.

Readers, writers that are not alone and the exclusive writer at its opening do this alike, so it belongs to none of them.
"""

from __future__ import annotations

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.view import ChainView
from logstore.engine.memory.partition_state import PartitionState
from logstore.errors import CorruptData


def catch_up(
    chain: Chain,
    state: PartitionState,
    *,
    by_owner: bool = False,
    since: float | None = None,
    enough: int | None = None,
) -> bool:
    """Take in what others have committed, unless that is the business of a writer here. True if there was anything.

    `since`: what was read of a lane from then on will do. `enough`: as for `Chain.follow`; there may be more then.

    The chain is loaded again where it cannot be followed: places behind the tail were emptied, an object cannot be read, or
    a row holds some of what comes next already.
    """
    before, goes_on = state.end_to_follow()
    try:
        links = chain.follow(before, since, enough)
    except CorruptData:
        links = None
    if links is None or (links and not goes_on):
        reload(chain, state, by_owner=by_owner)
    else:
        state.add_committed(links, by_owner=by_owner)
    if state.tail.next_seq == before.next_seq:
        return False
    state.tell_listeners()
    return True


def reload(chain: Chain, state: PartitionState, *, by_owner: bool = False) -> ChainView:
    """Ask the store again which objects hold the records."""
    view = chain.load()
    state.replace_view(view, by_owner=by_owner)
    return view
