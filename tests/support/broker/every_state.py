"""Every order of moves in a small world that copies itself as bytes: for the state machines of groups."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Iterable
from typing import Protocol


class World(Protocol):
    def key(self) -> Hashable:
        """Worlds with the same key are the same."""

    def moves(self) -> Iterable[tuple[str, int]]: ...
    def do(self, move: str, index: int) -> object: ...

    def finish(self) -> object:
        """From here everybody must get through, or it raises."""


def every_state(world: World, depth: int, leaving_out: frozenset[str] = frozenset()) -> int:
    """Try every order of up to `depth` moves; each new state is finished. Returns how many there are."""
    seen = {world.key()}
    level = [pickle.dumps(world)]  # as bytes: to read them back is the quickest copy
    for _ in range(depth):
        following = []
        for state in level:
            for move, index in pickle.loads(state).moves():
                if move in leaving_out:
                    continue
                after: World = pickle.loads(state)
                after.do(move, index)
                key = after.key()
                if key not in seen:
                    seen.add(key)
                    following.append(pickle.dumps(after))
                    after.finish()
        level = following
    return len(seen)
