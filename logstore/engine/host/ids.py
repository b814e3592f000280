"""Random ids for what is written: of segments, entries and their like."""

from __future__ import annotations

import os
import random
from collections import deque

ID_SIZE = 16
_AT_ONCE = 64


class Ids:
    """Many are drawn at a time: a draw asks the system and lets the other threads run, and a lane's entry takes one id for
    each of its partitions. A forked child draws its own: the same id twice would make two writers one."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._drawn: deque[bytes] = deque()
        self._process = os.getpid()

    def new(self) -> bytes:
        """From any thread."""
        if self._process != os.getpid():
            self._drawn.clear()
            self._process = os.getpid()
        while True:
            try:
                return self._drawn.popleft()
            except IndexError:
                drawn = self._rng.randbytes(_AT_ONCE * ID_SIZE)
                self._drawn.extend(drawn[at : at + ID_SIZE] for at in range(0, len(drawn), ID_SIZE))
