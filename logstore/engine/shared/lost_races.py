"""The races that a shared writer has lost in a row, and when they are reason enough to ask the others for a turn.

A writer whose uploads take longer than those of the others is not known to them as long as it loses, and it always does. So
one that has lost several times in a row leaves a *wish* beside the chain, and again later, if that did not help.
"""

from __future__ import annotations

from logstore.engine.write.upload_time import UploadTime
from logstore.layout.paths import WishName

_WISH_AFTER = 3  # races lost in a row
_WISH_AFTER_CHEAP = 32  # the same where all just try: losing is luck there, and costs little
_WISH_PASSED = 48  # segments of others since we lost, and as many since the last wish
_WISH_ANEW_AFTER = 16  # further losses: it may have been thought dead, while an upload of ours hung
_UPLOAD_MS_MAX = 10**6


class LostRaces:
    """Pure: it is told what happened and when."""

    def __init__(self, upload: UploadTime) -> None:
        self._upload = upload
        self._lost = 0
        self._lost_at = 0.0
        self._passed = 0  # segments of others since the first of them
        self._wished_at: tuple[int, int] | None = None  # how many of both when we wished

    @property
    def has_wished(self) -> bool:
        """A wish of ours stands."""
        return self._wished_at is not None

    @property
    def should_wish(self) -> bool:
        """Also while we read what others have committed since we lost: they may be faster than we can read."""
        if self._wished_at is not None:
            lost, passed = self._wished_at
            return self._lost >= lost + _WISH_ANEW_AFTER or self._passed >= passed + _WISH_PASSED
        enough = _WISH_AFTER_CHEAP if self._upload.is_cheap else _WISH_AFTER
        return self._lost >= enough or self._passed >= _WISH_PASSED

    def add(self, now: float) -> None:
        self._lost += 1
        self._lost_at = now

    def passed(self) -> None:
        """A segment of another stands."""
        self._passed += self._lost > 0

    def wish(self, me: bytes, seq: int, now: float, now_ms: int) -> WishName:
        """Ours, for the place `seq` or a later one. How long we have been reading since we lost counts: what they commit
        meanwhile has to be read too, before we can upload."""
        self._wished_at = (self._lost, self._passed)
        upload_s = self._upload.usual_s + self._upload.leeway_s + now - self._lost_at
        return WishName(me, seq, min(max(1, round(upload_s * 1000)), _UPLOAD_MS_MAX), now_ms)

    def clear(self) -> None:
        """The row has ended."""
        self._lost = self._passed = 0
        self._wished_at = None
