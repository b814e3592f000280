"""What others do with the same records, behind one small interface.

A `Peer` appends rows and gives them back in order. `level` says in words what is true when `append` has returned: only peers
of one level are compared. Each is made by a function of its own module that imports its package inside, so that a package
that is not installed leaves that peer out (and says so), not the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

from benchmarks.material import Row
from benchmarks.measure import Figures


class Peer(Protocol):
    level: str

    def append(self, rows: Sequence[Row]) -> None:
        """All of them, at `level`, before it returns."""
        ...

    def scan(self) -> Iterator[Row]:
        """Everything that was appended, in order."""
        ...


class Missing(Exception):
    """This peer cannot run here; says what is missing."""


Opener = Callable[[], AbstractContextManager[Peer]]


def open_all(stack: ExitStack, openers: dict[str, Opener], figures: Figures, suite: str) -> dict[str, Peer]:
    """All that can be opened; what cannot is reported as skipped."""
    peers: dict[str, Peer] = {}
    for name, opener in openers.items():
        try:
            peers[name] = stack.enter_context(opener())
        except (ImportError, Missing) as missing:
            figures.skip(suite, name, str(missing))
    return peers


def check_scan(peer: Peer, rows: Sequence[Row], rounds: int) -> None:
    """Every row of every round is there, in order, and nothing else."""
    found = peer.scan()
    for number in range(rounds):
        for wanted in rows:
            got = next(found, None)
            assert got == wanted, f"round {number} of {rounds}: {got!r}, not {wanted!r}"
    assert next(found, None) is None, "more came back than was appended"
