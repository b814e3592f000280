"""How far a micro-batch may go when `maxOffsetsPerTrigger` is set: shares in proportion to what waits, as Spark's
Kafka source does it. Pure.

Every partition that waits gets at least one offset as long as the limit allows, so none starves beside a large
one.
"""

from __future__ import annotations

from collections.abc import Mapping

Key = tuple[str, int]


def limited(start: Mapping[Key, int], heads: Mapping[Key, int], most: int) -> dict[Key, int]:
    """The end of each partition's part: at most `most` offsets over all, all of them if fewer wait."""
    waiting = {key: max(0, head - start[key]) for key, head in heads.items()}
    total = sum(waiting.values())
    if total <= most:
        return {key: max(head, start[key]) for key, head in heads.items()}
    floor = 1 if most >= sum(count > 0 for count in waiting.values()) else 0
    shares = {key: max(min(floor, count), most * count // total) for key, count in waiting.items()}
    left = most - sum(shares.values())
    for key in sorted(shares, key=lambda key: (-shares[key], key)):
        if left >= 0:
            break
        paid = min(-left, shares[key] - floor)  # the floors cost more than there is: the largest shares pay
        shares[key] -= paid
        left += paid
    # What rounding left over goes to those that got least.
    for key in sorted(waiting, key=lambda key: (shares[key], -waiting[key], key)):
        if left > 0 and shares[key] < waiting[key]:
            shares[key] += 1
            left -= 1
    return {key: start[key] + share for key, share in shares.items()}
