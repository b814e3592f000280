"""Standing by: follow a partition, hold what is fed, and take over by a fence.

A standby writes nothing. It follows the chain, so that everything the active writer commits is known here, and it drops from
what it holds whatever the partition has. Promotion commits a fence (an empty segment of the next epoch) in the chain's next
place. From that moment the old writer's next commit meets it and that writer stops; whatever the old one committed before
the fence was read on the way to its place. So the new one goes on from exactly the upper at which the fence is: no hole
and no second copy, whenever the old one died.

Who is promoted, and when, is decided outside: by an operator, or by the platform that restarts services. Two that are
promoted at once do no harm: the later fence wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from logstore.engine.chain.chain import Chain, LostRace, StalePlace
from logstore.engine.runtime import Runtime
from logstore.engine.shared.chain_cursor import ChainCursor
from logstore.errors import StoreError, StoreUnavailable
from logstore.format.stored.segment import SegmentFlags, SegmentHeader, build_segment


def fence(
    runtime: Runtime,
    chain: Chain,
    cursor: ChainCursor,
    advance: Callable[[], bool],
    rejoin: Callable[[], None],
    timeout: float | None,
) -> None:
    """Commit a fence that keeps the source's upper. `advance` takes in the segment of whoever was faster, `rejoin` goes to
    the chain's end where that has moved on long ago."""
    wait = runtime.config.append_timeout if timeout is None else timeout
    deadline, failures = runtime.clock.monotonic() + wait, 0
    header: SegmentHeader | None = None
    go_on: Callable[[], object] | None = None
    while True:
        try:
            if go_on is not None:
                go_on()
                header = go_on = None
            if header is None:
                upper = max(0, cursor.tail.source_upper)
                header = cursor.header(0, SegmentFlags.FENCE)
                header = replace(header, source_lower=upper, source_upper=upper)
            cursor.commit(header, *build_segment(header, []))
            return
        except LostRace:
            go_on = advance
        except StalePlace:
            go_on = rejoin
        except StoreError as error:
            failures += 1
            if not runtime.back_off(failures, deadline):
                raise StoreUnavailable(
                    f"{chain.paths}: the fence could not be committed in time ({error}). It may or may not exist; promote "
                    "again"
                ) from error
