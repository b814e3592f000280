"""Who of several shared writers commits, and how often the others look: hints, for only the create decides.

Whoever has created the last segment goes on, with what the others have put aside; now and then it lists whether they have,
and after every commit once it has found something. Nothing of that delays its own uploads, so the chain is as fast as with
one writer. A writer that loses follows: it puts its appends aside and reads what comes. When nothing comes for two and a
half uploads' times, the one that has come has nothing to append, is slow, or died: then the follower whose append is the
oldest commits for all, and goes on from there. So a slow writer holds nobody up, and one that is eight times slower needs a
few of its own requests, like everybody else.

(`docs/decisions/0013-the-winner-commits-for-all.md` has the simulation that this rule was chosen by.)
"""

from __future__ import annotations

import random

from logstore.engine.write.upload_time import UploadTime

_LOOK_EVERY = 4  # commits, as long as nobody else is seen
_QUIET_AFTER = 4  # looks that found nothing, until nobody else is thought there
_LOSSES = 2  # in a row, until we follow: the first one may only say that we have not looked for long
_LOSSES_CHEAP = 8  # the same where an upload takes no time worth mentioning
_PATIENCE = 2.5  # uploads' times, or places' times, without a new segment
_SLOWEST = 4  # uploads of ours: a place that takes longer to come counts as this
_POLL = 0.5  # of the time in which a place comes
_AHEAD = 2  # uploads of ours: as many places as come meanwhile are read at once
READ_MAX = 48


class Pace:
    """Pure: it is told what was seen and when. One thread at a time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._upload = UploadTime()
        self._place_s = 0.0  # how long it takes until there is another segment, as followers see it
        self._moved_at = 0.0
        self._leads = True  # ours is the last segment that we know of
        self._losses = 0
        self._follows = False
        self._watches_since = 0.0
        self._passed_over = 0
        self._commits = 0
        self._quiet = _QUIET_AFTER

    @property
    def is_cheap(self) -> bool:
        return self._upload.is_cheap

    @property
    def usual_s(self) -> float:
        """An upload of ours."""
        return self._upload.usual_s

    def took(self, seconds: float) -> None:
        """An upload of ours, won or lost."""
        self._upload.took(seconds)

    # Committing

    def won(self, now: float) -> None:
        self._leads, self._follows = True, False
        self._losses = 0
        self._moved_at = now
        self._commits += 1

    def lost(self) -> None:
        self._leads = False
        self._losses += 1
        self._follows = self._losses >= (_LOSSES_CHEAP if self.is_cheap else _LOSSES)

    def should_look(self) -> bool:
        """After a commit: whether others have put something aside."""
        return self._quiet < _QUIET_AFTER or self._commits % _LOOK_EVERY == 0

    def looked(self, found: bool) -> None:
        self._quiet = 0 if found else self._quiet + 1

    def should_read_first(self) -> bool:
        """Others were there last, so their segments may be where we would commit."""
        return not self._leads and not self._losses

    # Following

    def follows(self, now: float) -> bool:
        """Whether to let others commit. Not if nothing has come for long: then nobody may be there."""
        self._follows = self._follows and now - self._moved_at <= self._patience
        return self._follows

    @property
    def _patience(self) -> float:
        return _PATIENCE * max(self._upload.usual_s, self._place_s)

    def put_aside(self, now: float) -> None:
        """From now on we watch."""
        self._watches_since = now
        self._passed_over = 0

    @property
    def read_width(self) -> int:
        """How many places to read at once."""
        usual_s = max(self._upload.usual_s, 0.001)
        return max(1, min(READ_MAX, int(_AHEAD * usual_s / (self._place_s or usual_s))))

    @property
    def first_width(self) -> int:
        """The same beside putting something aside: others went on while we were told of the last ack."""
        return min(READ_MAX, self.read_width * 3 // 2)

    def moved(self, places: int, now: float) -> None:
        """So many segments of others have come since we looked."""
        self._leads = False
        if places and self._moved_at:
            seconds = min((now - self._moved_at) / places, _SLOWEST * self._upload.usual_s)
            self._place_s = self._place_s * 0.8 + seconds * 0.2 if self._place_s else seconds
        self._moved_at = now
        self._passed_over = 0

    def acked(self) -> None:
        """Another's segment holds what is ours."""
        self._losses = 0

    def wait(self, now: float) -> float | None:
        """Nothing came: how long until the next look. None: nobody commits, so one of us must."""
        if now - max(self._moved_at, self._watches_since) > self._patience:
            return None
        return max(0.001, self._place_s * _POLL) * self._rng.uniform(0.8, 1.2)

    def is_ours(self, rank: int, now: float) -> bool:
        """Whether we are the one, if so many have waited longer. Each of them is waited for once."""
        if rank <= self._passed_over:
            return True
        self._passed_over += 1
        self._watches_since = now
        return False
