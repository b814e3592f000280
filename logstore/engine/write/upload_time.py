"""How long an upload of ours takes: what it usually does, and by how much it differs."""

from __future__ import annotations

_WORTHWHILE_S = 0.005  # an upload that takes less is cheaper than waiting for a turn
LONGEST_S = 10.0
"""No upload counts as longer. One during which the process was stopped, or its machine asleep, says nothing about the store:
who took it for what uploads take would then wait for as long before its next one."""
_LEEWAY = 3  # the usual deviations from the usual time, by which one may be earlier or later


class UploadTime:
    def __init__(self) -> None:
        self.usual_s = 0.0
        self.spread_s = 0.0

    def took(self, seconds: float) -> None:
        """One upload, won or lost."""
        seconds = min(seconds, LONGEST_S)
        if not self.usual_s:
            self.usual_s, self.spread_s = seconds, seconds / 4
            return
        self.spread_s = self.spread_s * 0.8 + abs(seconds - self.usual_s) * 0.2
        self.usual_s = self.usual_s * 0.8 + seconds * 0.2

    @property
    def leeway_s(self) -> float:
        return _LEEWAY * self.spread_s

    @property
    def is_cheap(self) -> bool:
        return self.usual_s < _WORTHWHILE_S
