"""What a lane asks of the writer of a partition."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from logstore.engine.chain.bases import Settled
from logstore.engine.chain.link import Link
from logstore.engine.chain.view import ChainView
from logstore.engine.memory.flush_window import FlushWindow
from logstore.engine.memory.results import Receipt
from logstore.errors import LogStoreError
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim

Released = tuple[Future[Receipt], Receipt]
"""One who waited for a commit, and what he is told."""


class Flushed(Protocol):
    """A writer whose windows a lane commits."""

    claim_key: ClaimKey
    claim: Claim
    failed: LogStoreError | None

    @property
    def waiting_bytes(self) -> int:
        """What its next window would hold, about."""
        ...

    def prepare(self) -> FlushWindow | None:
        """Take what there is to commit; None if that is nothing."""
        ...

    def committed(self, window: FlushWindow, link: Link, seconds: float) -> list[Released]:
        """Its oldest window is. Returns who waited for that."""
        ...

    def acked(self, released: list[Released]) -> None:
        """Tell them."""
        ...

    def attempt_failed(self, error: Exception) -> int:
        """An upload failed, and there will be another."""
        ...

    def settled(self) -> Settled | None:
        """What is known of the partition's chain before the parts of the claim; None if that is not well known."""
        ...

    def replace_view(self, view: ChainView) -> None:
        """Some of its parts were split out of the lane, and lie elsewhere now."""
        ...

    def stop(self, error: LogStoreError) -> None:
        """For good."""
        ...
