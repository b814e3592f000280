"""Whose turn it is to commit, when several writers want to and nobody coordinates them.

Any of them may try at any time: the conditional create keeps the chain right. But if all try at once, all but one waste an
upload, and who wins is luck: with eight writers one append in a hundred loses 34 times in a row. So they take turns, by what
each of them reads in the chain anyway: the one whose last segment is the oldest goes first. The others look for its segment
(a small read instead of a lost upload), and each moves up when it comes. It hardly comes before an upload's time has passed
since the one before it, so nobody looks earlier than that; then the next in line looks often, because the whole chain waits
as long as it does, and the others now and then.

Nobody waits for the dead: a writer that lets its turn pass (two and a half uploads without a new segment) is left out until
it commits again. A writer that is new goes at once, and one that seems to be alone pauses now and then, so that a new one
gets in: the winner of a race is the first to know of it and would win the next one too. Where an upload is cheap, turns cost
more than they save: all just try.
"""

from __future__ import annotations

import random

_WORTHWHILE_S = 0.005  # an upload that takes less is cheaper than waiting for a turn
_PATIENCE = 2.5  # uploads without a new segment, after which the one ahead of us is thought idle
_LOOKS = 16  # looks in one upload's time, once the segment in front may be there
_LOOKS_OF_NEXT = 64  # the same for the next in line, while the segment is expected
_LATE = 1.125  # uploads after which it is not expected any more: the one in front has let its turn pass, or is slow
_LEEWAY = 3  # the usual deviations from the usual time of an upload, by which one may be earlier or later
_FORGET_AFTER = 64  # segments
_PAUSE_EVERY = 4  # segments of ours in a row
_PAUSE = 0.25  # of an upload's time


class Turns:
    """Pure: it is told what was seen and when. One thread at a time."""

    def __init__(self, me: bytes, dice: random.Random) -> None:
        self._me = me
        self._dice = dice
        self._last: dict[bytes, int] = {}  # who → the number of their last segment, oldest first
        self._idle: set[bytes] = set()
        self._moved_at = 0.0  # when the last segment was seen
        self._moved_from = 0.0  # before this it did not stand
        self._empty_at = 0.0  # when we last looked and nothing new stood there
        self._look_at = 0.0
        self._put_s = 0.0
        self._spread_s = 0.0
        self._streak = 0
        self._pause_until = 0.0
        self._sits_until = 0.0

    def saw(self, who: bytes, seq: int, now: float) -> None:
        """A segment of `who` stands."""
        self._last.pop(who, None)
        self._last[who] = seq
        self._idle.discard(who)
        self._moved_at = now
        self._sits_until = 0.0
        self._moved_from = now if who == self._me else max(self._moved_from, self._empty_at)
        self._look_at = self._expected_from()
        self._streak = self._streak + 1 if who == self._me else 0
        if self._streak % _PAUSE_EVERY == 1:
            self._look_at, self._pause_until = now, now + self._put_s * _PAUSE * self._dice.uniform(0.5, 1.5)
        oldest = next(iter(self._last))
        if seq - self._last[oldest] > _FORGET_AFTER:
            del self._last[oldest]
            self._idle.discard(oldest)

    def took(self, seconds: float) -> None:
        """How long an upload of ours took, won or lost."""
        if not self._put_s:
            self._put_s, self._spread_s = seconds, seconds / 4
            return
        self._spread_s = self._spread_s * 0.8 + abs(seconds - self._put_s) * 0.2
        self._put_s = self._put_s * 0.8 + seconds * 0.2

    def lost_again(self, now: float) -> None:
        """Not the first race in a row that we lost, and we have read what stands. Another upload may be under way by now,
        and one that begins in the middle of it only loses again: half of the time, wait for its segment as the next in
        line does. By chance, because whatever is regular can be in step with what others do."""
        if self._dice.random() < 0.5:
            self._sits_until = now + _LATE * self._put_s + _LEEWAY * self._spread_s
            self._look_at = now

    @property
    def ahead(self) -> int:
        """How many go before us."""
        return len(self._before())

    def _before(self) -> list[bytes]:
        if self._me not in self._last:
            return []
        before = []
        for who in self._last:
            if who == self._me:
                break
            if who not in self._idle:
                before.append(who)
        return before

    def is_ours(self, now: float) -> bool:
        """Whether we may try."""
        if self._put_s < _WORTHWHILE_S:
            return True
        before = self._before()
        if before and now - self._moved_at > self._put_s * _PATIENCE:
            self._idle.add(before.pop(0))
            self._moved_at = now
        return not before and now >= self._sits_until and (not self._streak or now >= self._pause_until)

    def wait(self, now: float) -> float:
        """While it is not ours: for how long there is nothing to do. 0.0: look at the chain."""
        return max(0.0, self._look_at - now)

    def found_nothing(self, asked_at: float, now: float) -> None:
        """We looked, and nothing new stood in the chain when we asked."""
        self._empty_at = asked_at
        place = 1 if asked_at < self._sits_until else self.ahead
        if not place:
            # A new writer has to read our segment before it can try: that takes it as long as it took us to look.
            self._look_at = self._pause_until = now + self._put_s * _PAUSE * self._dice.uniform(0.5, 1.5)
            return
        step = self._put_s / _LOOKS * min(place, _LOOKS / 2)
        if place == 1 and asked_at < self._moved_from + _LATE * self._put_s + _LEEWAY * self._spread_s:
            step = max(self._put_s / _LOOKS_OF_NEXT, min(step, self._spread_s))
        self._look_at = max(self._expected_from(), asked_at + step * self._dice.uniform(0.8, 1.2))

    def _expected_from(self) -> float:
        return self._moved_from + self._put_s - _LEEWAY * self._spread_s
