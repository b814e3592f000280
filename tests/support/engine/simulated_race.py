"""Writers that take turns on one chain, in simulated time: what `SharedWriter` does with `Turns`, without the writer.

Every writer always has something to commit. A run is a function of its arguments: no clock, no thread.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from logstore.engine.shared.turns import Turns
from logstore.layout.paths import WishName

_SETTLED_FROM = 0.25  # of the time: before that the writers find each other


@dataclass
class _Writer:
    name: bytes
    turns: Turns
    put_s: float
    tail: int = 0  # how many segments it has seen
    losses: int = 0
    since_s: float = 0.0


@dataclass
class Race:
    """What came of it. `waits`: how long each commit took since its writer's last one, in seconds."""

    put_s: float
    get_s: float
    until_s: float
    hang_s: float
    dice: random.Random
    chain: list[bytes] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    commits: Counter[bytes] = field(default_factory=Counter)
    lost: int = 0
    looks: int = 0
    asked: int = 0
    wished: int = 0
    _wishes: dict[bytes, WishName] = field(default_factory=dict)
    _now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    @property
    def segments(self) -> int:
        return len(self.chain)

    def longest_absence(self, name: bytes) -> int:
        """How many segments of others stand between two of this writer, or before its first or behind its last."""
        places = [-1, *(seq for seq, who in enumerate(self.chain) if who == name), len(self.chain)]
        return max(later - earlier - 1 for earlier, later in itertools.pairwise(places))

    def wait_put_times(self, quantile: float) -> float:
        waits = sorted(self.waits)
        return waits[min(len(waits) - 1, int(len(waits) * quantile))] / self.put_s

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self._now + seconds, self._count, call))

    def run(self) -> None:
        while self._events and self._events[0][0] < self.until_s:
            self._now, _, call = heapq.heappop(self._events)
            call()

    def _hang(self) -> float:
        return self.dice.uniform(0, self.hang_s) if self.hang_s and self.dice.random() < 0.01 else 0.0

    def step(self, writer: _Writer) -> None:
        now, turns = self._now, writer.turns
        if turns.should_hear(now):
            self._ask(writer)
        elif turns.is_ours(now):
            self.after(writer.put_s + self._hang(), lambda: self._put_ended(writer, now))
        elif wait := turns.wait(now):
            self.after(wait, lambda: self.step(writer))
        else:
            self.looks += 1
            self.after(self.get_s / 2, lambda: self._look(writer, now))

    def _look(self, writer: _Writer, asked_at: float) -> None:
        """In the store: what stands there now is what is answered."""
        found = writer.tail < len(self.chain)
        self.after(self.get_s / 2, lambda: self._looked(writer, asked_at, found))

    def _looked(self, writer: _Writer, asked_at: float, found: bool) -> None:
        if found:
            self._take_in(writer)
        else:
            writer.turns.found_nothing(asked_at, self._now)
        self.step(writer)

    def _take_in(self, writer: _Writer) -> None:
        writer.turns.saw(self.chain[writer.tail], writer.tail, self._now)
        writer.tail += 1

    def _ask(self, writer: _Writer) -> None:
        self.asked += 1

        def answer() -> None:
            standing = list(self._wishes.values())
            self.after(self.get_s / 2, lambda: heard(standing))

        def heard(standing: list[WishName]) -> None:
            writer.turns.heard(standing, self._now)
            self.step(writer)

        self.after(self.get_s / 2, answer)

    def _put_ended(self, writer: _Writer, began: float) -> None:
        writer.turns.took(self._now - began)
        if writer.tail < len(self.chain):
            self.lost += 1
            writer.losses += 1
            writer.turns.lost(self._now)
            self.after(self.get_s, lambda: self._catch_up(writer))
            return
        self.chain.append(writer.name)
        self._take_in(writer)
        if self._now > self.until_s * _SETTLED_FROM:
            self.waits.append(self._now - writer.since_s)
            self.commits[writer.name] += 1
        writer.since_s, writer.losses = self._now, 0
        if writer.name in self._wishes:
            self.after(self.get_s, lambda: self._take_wish_back(writer))
            return
        self.after(self.dice.uniform(0, 0.001), lambda: self.step(writer))

    def _catch_up(self, writer: _Writer) -> None:
        on = writer.tail < len(self.chain)
        if on:
            self._take_in(writer)
        if writer.turns.should_wish:
            self.wished += 1
            wish = writer.turns.wish(writer.tail, self._now, int(self._now * 1000))
            self.after(writer.put_s, lambda: self._leave_wish(writer, wish, on))
        else:
            self._caught_up(writer, on)

    def _leave_wish(self, writer: _Writer, wish: WishName, on: bool) -> None:
        self._wishes[writer.name] = wish
        self._caught_up(writer, on)

    def _caught_up(self, writer: _Writer, on: bool) -> None:
        if writer.losses > 1:
            if on:  # to the end, as it may be far
                self.after(self.get_s, lambda: self._catch_up(writer))
                return
            writer.turns.caught_up(self._now)
        self.step(writer)

    def _take_wish_back(self, writer: _Writer) -> None:
        del self._wishes[writer.name]
        self.step(writer)


def simulate(
    writers: int | Sequence[float],
    *,
    put_s: float,
    get_s: float,
    until_s: float,
    hang_s: float = 0.0,
    seed: int = 1,
) -> Race:
    """Let them run. `writers`: how many, or how long an upload of each takes, in `put_s`.
    `hang_s`: one upload in a hundred takes up to so much longer."""
    race = Race(put_s, get_s, until_s, hang_s, random.Random(seed))
    for number, factor in enumerate([1.0] * writers if isinstance(writers, int) else writers):
        name = b"%d" % number
        writer = _Writer(name, Turns(name, random.Random(seed * 1000 + number)), put_s * factor)
        race.after(0.0001 * number, lambda writer=writer: race.step(writer))  # type: ignore[misc]
    race.run()
    return race
