"""How long an upload of ours usually takes."""

from __future__ import annotations

_WORTHWHILE_S = 0.005  # an upload that takes less is cheaper than asking others to make it
LONGEST_S = 10.0
"""No upload counts as longer. One during which the process was stopped, or its machine asleep, says nothing about the store:
who took it for what uploads take would then wait for as long before its next one."""


class UploadTime:
    def __init__(self) -> None:
        self.usual_s = 0.0

    def took(self, seconds: float) -> None:
        """One upload, won or lost."""
        seconds = min(seconds, LONGEST_S)
        self.usual_s = self.usual_s * 0.8 + seconds * 0.2 if self.usual_s else seconds

    @property
    def is_cheap(self) -> bool:
        return self.usual_s < _WORTHWHILE_S
