"""The wishes of other shared writers that we have heard of, and how long each of them is waited for.

Who hears of a wish lets its own turn pass until the wisher has committed, or four of the *wisher's* uploads have gone by
without a segment: then it is thought dead, and that wish is not heard again.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.layout.paths import WishName

_PATIENCE = 4.0  # uploads of the wisher: one that loses yet, one that it sits out, one that wins
_OUTDATED_AFTER = 4096  # segments: whoever lives and still loses has wished anew long before
_WAIT_MAX_S = 60.0  # for one wish, or one slow writer
_WAIT_MIN_S = 0.02  # the same: threads are not always woken at once


class HeardWishes:
    """Pure: it is told what was heard and seen, and when."""

    def __init__(self, me: bytes) -> None:
        self._me = me
        self._standing: dict[bytes, tuple[WishName, float]] = {}  # who → its wish, and when we heard of it
        self._settled: set[WishName] = set()  # answered by a segment, or by nothing

    def __bool__(self) -> bool:
        return bool(self._standing)

    @property
    def slowest_s(self) -> float:
        """How long the slowest of them takes for an upload."""
        return max(wish.upload_ms / 1000 for wish, _ in self._standing.values())

    def hear(self, wishes: list[WishName], last: Mapping[bytes, int], now: float) -> bool:
        """These stand; `last` says who has which newest segment. True if one is of a writer that had none."""
        self._settled &= set(wishes)
        newest = max(last.values(), default=0)
        standing: dict[bytes, tuple[WishName, float]] = {}
        for wish in sorted(wishes, key=lambda wish: wish.seq):  # of several of one writer the last counts
            answered = last.get(wish.writer, -1) >= wish.seq or newest - wish.seq > _OUTDATED_AFTER
            if wish.writer == self._me or answered or wish in self._settled:
                continue
            known, since = self._standing.get(wish.writer, (wish, now))
            standing[wish.writer] = (wish, since if known == wish else now)
        more = bool(standing.keys() - self._standing.keys())
        self._standing = standing
        return more

    def answered(self, who: bytes, seq: int) -> WishName | None:
        """Segment `seq` is of `who`: the wish that it answers, if there is one."""
        if who not in self._standing or self._standing[who][0].seq > seq:
            return None
        wish, _ = self._standing.pop(who)
        self._settled.add(wish)
        return wish

    def wait_on(self, moved_at: float, now: float) -> bool:
        """Whether any is still waited for, if the last segment came at `moved_at`. All are waited for at once: many dead
        ones cost no more than one."""
        for who, (wish, since) in list(self._standing.items()):
            if now - max(since, moved_at) > patient_s(_PATIENCE * wish.upload_ms / 1000):
                del self._standing[who]
                self._settled.add(wish)
        return bool(self._standing)


def patient_s(seconds: float) -> float:
    """For how long to wait for a writer that needs as many seconds, as it says or as we have seen."""
    return min(_WAIT_MAX_S, max(_WAIT_MIN_S, seconds))
