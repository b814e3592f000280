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

A writer whose uploads take longer than those of the others asks for its turn when it has lost several times (`LostRaces`),
and who hears of it lets its own turn pass (`HeardWishes`). One hears by asking now and then, right after a segment of ours,
when nobody waits for us; and when a segment is late, because somebody who heard earlier lets its turn pass. From then on the
slow writer is known, and so is how long its uploads take: it is waited for as long as that needs.
"""

from __future__ import annotations

import random

from logstore.engine.shared.heard_wishes import HeardWishes, patient_s
from logstore.engine.shared.lost_races import LostRaces
from logstore.engine.write.upload_time import UploadTime
from logstore.layout.paths import WishName

_PATIENCE = 2.5  # uploads without a new segment, after which the one ahead of us is thought idle
_LOOKS = 16  # looks in one upload's time, once the segment in front may be there
_LOOKS_OF_NEXT = 64  # the same for the next in line, while the segment is expected
_LATE = 1.125  # uploads after which it is not expected any more: the one in front has let its turn pass, or is slow
_SLOW = 1.5  # uploads of ours, from which on those of another count as slower
_SLOW_MAX = 3.0  # the same: what is slower has to say so, with a wish
_FORGET_AFTER = 64  # segments
_PAUSE_EVERY = 4  # segments of ours in a row
_PAUSE = 0.25  # of an upload's time
_HEAR_EVERY = (12, 20)  # segments of ours; by chance, so that of many writers one asks soon
_HEAR_WHEN_LATE = 0.8  # of the time after which the next in line is thought idle


class Turns:
    """Pure: it is told what was seen and when. One thread at a time."""

    def __init__(self, me: bytes, dice: random.Random) -> None:
        self._me = me
        self._dice = dice
        self._upload = UploadTime()
        self._lost = LostRaces(self._upload)
        self._wishes = HeardWishes(me)
        self._last: dict[bytes, int] = {}  # who → the number of their last segment, oldest first
        self._idle: set[bytes] = set()
        self._moved_at = 0.0  # when the last segment was seen
        self._moved_from = 0.0  # before this it did not stand
        self._empty_at = 0.0  # when we last looked and nothing new stood there
        self._look_at = 0.0
        self._streak = 0
        self._pause_until = 0.0
        self._sits_until = 0.0
        self._uploads_s: dict[bytes, float] = {}  # who is slower than we are → how long an upload takes there
        self._heard_at = -1.0
        self._hear_in = dice.randint(*_HEAR_EVERY)

    def saw(self, who: bytes, seq: int, now: float) -> None:
        """A segment of `who` stands."""
        if who == self._me:
            self.need_no_more()
            self._hear_in -= 1
        else:
            self._lost.passed()
            self._learn(who, seq, now)
        self._last.pop(who, None)
        self._last[who] = seq
        self._idle.discard(who)
        self._moved_at = now
        self._sits_until = 0.0
        self._moved_from = now if who == self._me else max(self._moved_from, self._empty_at)
        self._look_at = self._expected_from()
        self._streak = self._streak + 1 if who == self._me else 0
        if self._streak % _PAUSE_EVERY == 1:
            self._look_at, self._pause_until = now, now + self._pause_s()
        oldest = next(iter(self._last))
        if seq - self._last[oldest] > _FORGET_AFTER:
            del self._last[oldest]
            self._idle.discard(oldest)
            self._uploads_s.pop(oldest, None)

    def _learn(self, who: bytes, seq: int, now: float) -> None:
        """How long the uploads of `who` take, if longer than ours: from its wish, or from how long we looked for it.
        Looking says little, as it may have had nothing to commit for most of that time: so it only goes so far."""
        looked = self._empty_at - self._moved_from
        wish = self._wishes.answered(who, seq)
        if wish is not None:
            self._uploads_s[who] = wish.upload_ms / 1000
        elif who in self._uploads_s:
            self._uploads_s[who] = min(
                self._uploads_s[who], (self._uploads_s[who] + now - self._moved_from) / 2
            )
        elif looked > _SLOW * self._upload.usual_s and (who in self._idle or self._before()[:1] == [who]):
            self._uploads_s[who] = min(looked, _SLOW_MAX * self._upload.usual_s)

    def took(self, seconds: float) -> None:
        """How long an upload of ours took, won or lost."""
        self._upload.took(seconds)

    def lost(self, now: float) -> None:
        """We lost a race."""
        self._lost.add(now)

    def caught_up(self, now: float) -> None:
        """After a loss that was not the first in a row we have read what stands. Another upload may be under way by now, and
        one that begins in the middle of it only loses again: half of the time, wait for its segment as the next in line
        does. By chance, because whatever is regular can be in step with what others do."""
        if self._dice.random() < 0.5:
            self._sits_until = now + _LATE * self._upload.usual_s + self._upload.leeway_s
            self._look_at = now

    # Wishes

    @property
    def should_wish(self) -> bool:
        """Whether we have lost so often that we should ask the others."""
        return self._lost.should_wish

    def wish(self, seq: int, now: float, now_ms: int) -> WishName:
        """Ours, to be left where the others find it. `seq`: the place that we want, or a later one."""
        return self._lost.wish(self._me, seq, now, now_ms)

    def need_no_more(self) -> None:
        """There is nothing to commit any more: it is stored, by us or by others."""
        self._lost.clear()

    def should_hear(self, now: float) -> bool:
        """Whether to ask for wishes before anything else."""
        if self._hear_in <= 0:
            return True
        before = self._before()
        if self._upload.is_cheap or not before:
            return False
        idle_at = self._idle_at(before[0])
        late_at = self._moved_at + _HEAR_WHEN_LATE * (idle_at - self._moved_at)
        has_looked = self._empty_at > self._moved_at  # else it is we who had nothing to commit for a while
        return self._heard_at < late_at and (self._empty_at >= late_at or (has_looked and now > idle_at))

    def heard(self, wishes: list[WishName], now: float) -> None:
        """These stand."""
        self._heard_at = now
        self._hear_in = self._dice.randint(*_HEAR_EVERY)
        if self._wishes.hear(wishes, self._last, now):
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
        if self._lost.has_wished:
            return now >= self._sits_until
        if self._wishes.wait_on(self._moved_at, now):
            return False
        if self._upload.is_cheap:
            return True
        before = self._before()
        if before and now > self._idle_at(before[0]):
            self._idle.add(before.pop(0))
            self._moved_at = now
        return not before and now >= self._sits_until and (not self._streak or now >= self._pause_until)

    def _idle_at(self, who: bytes) -> float:
        """When `who`, the next in line, is thought idle if nothing came until then."""
        theirs = patient_s(_PATIENCE * self._uploads_s[who]) if who in self._uploads_s else 0.0
        return self._moved_at + max(self._upload.usual_s * _PATIENCE, theirs)

    def wait(self, now: float) -> float:
        """While it is not ours: for how long there is nothing to do. 0.0: look at the chain."""
        return max(0.0, self._look_at - now)

    def found_nothing(self, asked_at: float, now: float) -> None:
        """We looked, and nothing new stood in the chain when we asked."""
        self._empty_at = asked_at
        if self._wishes:
            step = patient_s(max(self._upload.usual_s, self._wishes.slowest_s)) / _LOOKS
            self._look_at = asked_at + step * self._dice.uniform(0.8, 1.2)
            return
        place = 1 if asked_at < self._sits_until else self.ahead
        if not place:
            # A new writer has to read our segment before it can try: that takes it as long as it took us to look.
            self._look_at = self._pause_until = now + self._pause_s()
            return
        step = self._upload.usual_s / _LOOKS * min(place, _LOOKS / 2)
        if place == 1 and asked_at < self._moved_from + _LATE * self._upload.usual_s + self._upload.leeway_s:
            step = max(self._upload.usual_s / _LOOKS_OF_NEXT, min(step, self._upload.spread_s))
        self._look_at = max(self._expected_from(), asked_at + step * self._dice.uniform(0.8, 1.2))

    def _pause_s(self) -> float:
        return self._upload.usual_s * _PAUSE * self._dice.uniform(0.5, 1.5)

    def _expected_from(self) -> float:
        return self._moved_from + self._upload.usual_s - self._upload.leeway_s
