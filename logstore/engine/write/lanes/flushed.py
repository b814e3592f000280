"""What a lane asks of the writer of a partition."""

from __future__ import annotations

import threading
from collections.abc import Collection
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from logstore.engine.chain.bases import Settled
from logstore.engine.chain.link import Link
from logstore.engine.chain.view import ChainView
from logstore.engine.host.counters import FlushDone
from logstore.engine.memory.flush_window import FlushWindow
from logstore.engine.memory.results import Receipt
from logstore.errors import LogStoreError
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim, Extras

Released = tuple[Future[Receipt], Receipt]
"""One who waited for a commit, and what he is told."""


class Committed(NamedTuple):
    """What there is to do once a window is committed. `local_wait_s`: how long the oldest `local` ack took. `slice_key`: of
    a lane's entry, if it is in one."""

    done: FlushDone
    released: list[Released]
    local_wait_s: float | None
    slice_key: str | None


class Atomic(Protocol):
    """An append over several partitions, as each of them knows it."""

    def fail(self, error: LogStoreError) -> None:
        """Tell whoever waits for it."""


class Flushed(Protocol):
    """A writer whose windows a lane commits."""

    claim_key: ClaimKey
    claim: Claim
    extras: Extras
    """What each of its parts says: its claim."""
    failed: LogStoreError | None
    hands_over: bool
    """Whether its last window, which says that it has closed, ends its claim, too."""

    @property
    def waiting_bytes(self) -> int:
        """What there is for its next windows, about."""

    @property
    def is_under_way(self) -> bool:
        """Whether a window of it waits for its commit."""

    @property
    def reserves_alone(self) -> bool:
        """Whether its next window holds no record, because somebody waits for what it reserves."""

    @property
    def lock(self) -> threading.Lock:
        """The partition's."""

    def prepare(self, atomics: Collection[Atomic], most: int) -> FlushWindow | None:
        """Take what there is to commit, all that belongs to `atomics` and nothing of another atomic append, else `most`
        bytes or one append; None if that is nothing. The rest is due when it was."""

    def waiting_until(self, atomic: Atomic) -> int:
        """How many bytes must be taken to take that one."""

    def withdraw(self, atomic: Atomic) -> list[Released]:
        """That one has failed: what follows it moves up. Returns who need not wait any more."""

    def commit(self, window: FlushWindow, link: Link, seconds: float, now: float) -> Committed | None:
        """Its oldest window is committed, `seconds` after it was sent; None if it has stopped meanwhile. Holds the lock."""

    def committed(self, done: Committed) -> None:
        """The rest of that, without the lock. The lane itself gives back what all took of the budget, and tells the watch
        over uploads without an answer, which names a writer by its `str`."""

    def acked(self, released: list[Released]) -> None:
        """Tell them."""

    def attempt_failed(self, error: Exception) -> int:
        """An upload failed, and there will be another."""

    def settled(self) -> Settled | None:
        """What is known of the partition's chain before the parts of the claim; None if that is not well known."""

    def replace_view(self, view: ChainView) -> None:
        """Some of its parts were split out of the lane, and lie elsewhere now."""

    def stop(self, error: LogStoreError) -> None:
        """For good."""
