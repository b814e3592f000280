"""What a lane says of the low watermark of a partition in it, before records below it go.

A reader that knows a partition by its lane alone does not ask the manifest where the log begins. So before expired objects
are deleted the lane's checkpoint must say a low watermark that is high enough; its owner says it with each checkpoint, and
anybody else says it here. The owner takes that in before its next one.
"""

from __future__ import annotations

import logging

from logstore.engine.chain.chain import Chain
from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.lane_state import LaneState
from logstore.errors import CorruptData
from logstore.format.stored.entry import ClaimKey
from logstore.layout.paths import LanePaths
from logstore.objects.settled import put_settled

logger = logging.getLogger(__name__)

_TRIES = 3


def note_low(chain: Chain, low: int) -> bool:
    """Whether it is said, or nobody asks a lane for this partition. If not, nothing may be deleted this time."""
    if not low:
        return True
    for _ in range(_TRIES):
        tail = chain.load().tail
        if tail.claim is None:
            return True
        if not _note(chain, tail.claim.lane, ClaimKey(chain.paths.prefix, tail.epoch), low):
            return False
        # Whoever has taken it over has read the old lane's checkpoint afterwards, or did so before it said this.
        links = chain.follow(tail)
        if links is not None and all(link.said.claim == tail.claim for link in links):
            return True
    return False


def _note(chain: Chain, lane: str, key: ClaimKey, low: int) -> bool:
    log = LaneLog(chain.store, LanePaths(lane))
    for _ in range(_TRIES):
        # The etag first: what comes between the two requests is not replaced.
        head = chain.store.head(log.paths.checkpoint)
        try:
            state = LaneState(log.checkpoint())
        except CorruptData as damage:
            logger.error("%s; nothing of %s is deleted this time", damage, chain.paths)
            return False
        if state.bases.lows.get(key, 0) >= low:
            return True
        state.raise_lows({key: low})
        packed = state.checkpoint(chain.new_nonce()).pack()
        if put_settled(chain.store, log.paths.checkpoint, packed, head and head.etag) is not None:
            return True
    return False
