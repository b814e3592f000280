"""Who of several shared writers commits, and how the others read: hints, for only the create decides.

Whoever has created the last segment goes on, with what the others have put aside; now and then it lists whether they have,
and after every commit once it has found something. Nothing of that delays its own uploads, so the chain is as fast as with
one writer. A writer that loses follows: it puts its appends aside and reads what comes. When nothing comes for two and a
half uploads' times, the one that has come has nothing to append, is slow, or died: then the follower whose append is the
oldest commits for all, and goes on from there. So a slow writer holds nobody up. One to whom the others are much faster
follows at once, and reads as many places as it may side by side: it cannot win, and would not catch up.

(`docs/decisions/0013-the-winner-commits-for-all.md` has the simulation that this rule was chosen by.)
"""

from __future__ import annotations

import random

from logstore.engine.shared.chain_cursor import READ_MAX
from logstore.engine.write.upload_time import UploadTime

_LOOK_EVERY = 4  # commits, as long as nobody else is seen
_LOSSES = 2  # in a row, until we follow: the first one may only say that we have not looked for long
_PATIENCE = 2.5  # uploads of ours, without a new segment or an answer
_POLL = 0.5  # of the time in which a segment comes
_MUCH_FASTER = 2  # segments of others, during one upload of ours
_STILL = 2  # looks that find nothing, until one place is looked at instead of many
_FADE = 0.8


class Pace:
    """Pure: it is told what was seen and when. One thread at a time. `upload`: how long ours take, won or lost."""

    def __init__(self, rng: random.Random, now: float) -> None:
        self._rng = rng
        self.upload = UploadTime()
        self._watched_s = self._places = 0.0  # how many segments of others came lately, and in how long
        self._moved_at = now
        self._leads = True  # ours is the last segment that we know of
        self._losses = 0  # since we have won, or nobody was there
        self._passed_over = 0  # who have waited longer, since the last segment came
        self._passed_at = now
        self._commits = 0
        self._found = False  # something, when we last looked
        self._still = 0  # looks in a row that nothing had come

    @property
    def patience_s(self) -> float:
        return _PATIENCE * self.upload.usual_s

    @property
    def _place_s(self) -> float:
        """How long it takes until there is another segment; 0 if that is not known."""
        return self._watched_s / self._places if self._places else 0.0

    # Committing

    def won(self, now: float) -> None:
        self._leads, self._losses = True, 0
        self._moved_at = now
        self._commits += 1

    def lost(self) -> None:
        self._leads = False
        self._losses += 1

    def should_look(self) -> bool:
        """After a commit: whether others have put something aside."""
        return self._found or self._commits % _LOOK_EVERY == 0

    def looked(self, found: bool) -> None:
        self._found = found

    def should_read_first(self) -> bool:
        """Others were there last, so their segments may be where we would commit."""
        return not self._leads and not self._losses

    # Following

    def follows(self, now: float) -> bool:
        """Whether to let others commit. Not if nothing has come for long: then nobody may be there."""
        if now - self._moved_at > self.patience_s:
            self._losses = 0
            return False
        return self._losses >= _LOSSES or self._others_are_faster

    @property
    def _others_are_faster(self) -> bool:
        return 0 < _MUCH_FASTER * self._place_s < self.upload.usual_s

    @property
    def ahead(self) -> int:
        """How many places to read at once: one, unless many come while we read it. Not again and again if nothing does."""
        return READ_MAX if self._others_are_faster and self._still < _STILL else 1

    def read(self, places: int, now: float) -> None:
        """So many segments of others have come since we looked."""
        self._still = 0 if places else self._still + 1
        if places:
            self._watched_s = self._watched_s * _FADE + now - self._moved_at
            self._places = self._places * _FADE + places
            self._leads = False
            self._moved_at = now
            self._passed_over = 0

    def wait(self, now: float) -> float | None:
        """Nothing came: how long until the next look. None: nobody commits, so one of us must."""
        left = self.patience_s - (now - max(self._moved_at, self._passed_at))
        if left < 0:
            return None
        poll = min(self._place_s * _POLL, left)  # segments may have come hours apart
        return max(0.001, poll) * self._rng.uniform(0.8, 1.2)

    def is_ours(self, rank: int, now: float) -> bool:
        """Whether we are the one, if so many have waited longer. Each of them is waited for once."""
        if rank <= self._passed_over:
            return True
        self._passed_over += 1
        self._passed_at = now
        return False
