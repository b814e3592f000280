"""A writer in numbers, as an operator sees it: typed inside, a dict at the edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_PROGRESS = ("upload_failures", "last_error", "last_progress_seconds_ago")
_OF_APPENDS = (
    "next_offset",
    "unflushed_records",
    "unflushed_bytes",
    "unflushed_seconds",
    *_PROGRESS,
    "held_at_offset",
    "mode",
    "state",
    "epoch",
)
_STALL = ("stalled", "unanswered_seconds")
_LINES = {
    "exclusive": (*_OF_APPENDS, "wal_error", *_STALL),
    "shared": (*_OF_APPENDS, "frontier", "lag", "races_lost", "duplicates", *_STALL),
    "replicated": (
        *("writer_id", "mode", "state", *_STALL, "epoch", "frontier", "lag", "dropped_below_upper"),
        *("races_lost", "commits", "peer_commits", *_PROGRESS, "held_at_source_offset"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterHealth:
    """One writer, of whichever mode, at one moment.

    `state`: writing, standby, stalled (holds data and makes no progress), stopped (for good). `frontier`: up to where the
    partition is written as this writer has seen it; for a replicated one a source offset. `lag`: by how much the partition
    is ahead of that, or of what a replicated writer was fed. `unanswered_seconds`: for how long the upload that is under
    way has had no answer, also after attempts that failed; None if none is. `held_at_…`: where it stalls. `unflushed_…`:
    what was appended and is not in the store yet, and for how long the oldest of it has waited.
    """

    mode: str
    state: str
    epoch: int
    frontier: int
    upload_failures: int
    last_error: str | None
    last_progress_seconds_ago: float
    unanswered_seconds: float | None
    writer_id: str = ""
    lag: int = 0
    races_lost: int = 0
    dropped_below_upper: int = 0
    duplicates: int = 0
    commits: int = 0
    peer_commits: int = 0
    next_offset: int = 0
    unflushed_records: int = 0
    unflushed_bytes: int = 0
    unflushed_seconds: float = 0.0
    wal_error: str | None = None
    held_at_offset: int | None = None
    held_at_source_offset: int | None = None

    @property
    def stalled(self) -> bool:
        return self.state == "stalled"

    def as_dict(self) -> dict[str, Any]:
        """The lines that a writer of its mode has."""
        return {line: getattr(self, line) for line in _LINES[self.mode]}
