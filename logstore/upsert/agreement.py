"""Do the writers of a view have the same input? What a peer has stored is compared with what we hold for the same times.

Only a time that our input has completed can be judged, and only if the log has a change at it: a peer may declare times
complete that it was given nothing for, and what we hold for those is dropped like everything below the frontier. Judged
after each time: every change in the log is one that we hold, and what else we hold changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from logstore.errors import DivergentWriters
from logstore.upsert.stash import Latest


class Agreement:
    """One thread at a time. `held_at` gives our updates at a time, or None if they are not complete or there are none."""

    def __init__(self, where: str, held_at: Callable[[int], Latest | None]) -> None:
        self.time = -1  # the one that is being read
        self.held: Latest | None = None  # what we hold for it
        self._where = where
        self._held_at = held_at
        self._seen: set[bytes] = set()

    def begin(self, time: int, value_of: Callable[[bytes], bytes | None]) -> None:
        """The log goes on at `time`. `value_of`: the values before it."""
        self.end(value_of)
        self.time, self.held = time, self._held_at(time)

    def saw(self, key: bytes, new: bytes | None) -> None:
        """It gives `key` the value `new`. Only while something is held."""
        assert self.held is not None
        ours = self.held.get(key)
        if ours is None:
            raise self._divergent(key, f"a peer stored {new!r}, and we hold no update of it")
        if ours[1] != new:
            raise self._divergent(key, f"a peer stored {new!r}, and we hold {ours[1]!r}")
        self._seen.add(key)

    def end(self, value_of: Callable[[bytes], bytes | None]) -> None:
        """The log has nothing more for this time."""
        held, self.held = self.held, None
        if held is not None:
            for key, (_, value) in held.items():
                if key not in self._seen and value_of(key) != value:
                    raise self._divergent(key, f"we hold {value!r}, and a peer stored no change of it")
            self._seen = set()
        self.time = -1

    def _divergent(self, key: bytes, why: str) -> DivergentWriters:
        return DivergentWriters(
            f"{self._where}: key {key!r} at time {self.time}: {why}: the writers do not get the same input. This one has "
            "stopped; find out which is right before any goes on"
        )
