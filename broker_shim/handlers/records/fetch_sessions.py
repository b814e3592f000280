"""Fetch sessions (KIP-227): what a broker keeps of a client between two fetches, and how much of that at most.

    full fetch, epoch 0 ──► session `id` ──fetch `id`, epoch 1, 2, 3 …: only what changed──► … ──epoch -1──► closed

A client in a session names only partitions whose position has changed, or that it forgets, and is told only of those that
have something new. Clients without sessions (librdkafka, aiokafka) ask the same thing again and again while there is
nothing to read: such a request is kept and recognised by its bytes, at the same cost.

A session belongs to its connection and ends with it: a client that comes back begins with a full fetch, and nobody can
use another's. What is kept counts by partitions; past the bound the least recently used goes, and its client, who is told
FETCH_SESSION_ID_NOT_FOUND, makes a new one. Event loop only.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from broker_shim.wire.codes import Code

MAX_KEPT_PARTITIONS = 250_000
"""In all sessions and repeated requests together; each takes about 600 bytes."""
NO_SESSION = 0
INITIAL_EPOCH = 0
LAST_EPOCH = 0x7FFFFFFF


class Kept(Protocol):
    """A fetch that waits, or may be asked again. `size`: how many partitions it is about."""

    @property
    def size(self) -> int: ...

    @property
    def is_busy(self) -> bool: ...

    def let_go(self) -> None:
        """It is not kept any more: release what refers to it, once it is answered."""


K = TypeVar("K", bound=Kept)


class KeptFetches(Generic[K]):
    """All that is kept, the least recently used first."""

    def __init__(self, limit: int = MAX_KEPT_PARTITIONS) -> None:
        self._limit = limit
        self._kept: dict[K, int] = {}
        self.partitions = 0

    def __len__(self) -> int:
        return len(self._kept)

    def use(self, fetch: K) -> None:
        """It is being used now, with as many partitions as it has now."""
        size = fetch.size
        self.partitions += size - self._kept.pop(fetch, 0)
        self._kept[fetch] = size
        while self.partitions > self._limit and self._kept:
            self.drop(next(iter(self._kept)))

    def drop(self, fetch: K) -> None:
        size = self._kept.pop(fetch, None)
        if size is not None:
            self.partitions -= size
            fetch.let_go()

    def __contains__(self, fetch: object) -> bool:
        return fetch in self._kept


@dataclass(slots=True)
class Session(Generic[K]):
    session_id: int
    fetch: K
    next_epoch: int = 1

    def step(self) -> None:
        """As in Kafka, 1 follows the largest epoch: 0 and -1 mean something else."""
        self.next_epoch = 1 if self.next_epoch == LAST_EPOCH else self.next_epoch + 1


class ClientFetches(Generic[K]):
    """What is kept for one connection: its session, or the request that it repeats."""

    def __init__(self, kept: KeptFetches[K]) -> None:
        self._kept = kept
        self._session: Session[K] | None = None
        self._repeated: tuple[int, bytes, K] | None = None

    def repeated(self, version: int, body: memoryview) -> K | None:
        """The fetch that this very request was, if it is kept."""
        known = self._repeated
        if known is None:
            return None
        # As bytes: a memoryview would compare element by element.
        if known[0] == version and len(known[1]) == len(body) and known[1] == body.tobytes():
            return known[2] if known[2] in self._kept else None
        self._kept.drop(known[2])  # it has moved on
        self._repeated = None
        return None

    def keep(self, version: int, body: memoryview, fetch: K) -> None:
        """It may be asked again, by the same bytes."""
        if self._repeated is not None:
            self._kept.drop(self._repeated[2])
        self._repeated = (version, body.tobytes(), fetch)
        self._kept.use(fetch)

    def begin(self, fetch: K) -> int:
        """A session around it. Returns its id: 0 if it alone is more than may be kept."""
        self.end()
        self._kept.use(fetch)
        if fetch not in self._kept:
            return NO_SESSION
        self._session = Session(secrets.randbelow(LAST_EPOCH) + 1, fetch)
        return self._session.session_id

    def find(self, session_id: int, epoch: int) -> K | Code:
        """The session's fetch, if this is the session's next request; it is that no more afterwards."""
        session = self._session
        if session is None or session.session_id != session_id or session.fetch not in self._kept:
            return Code.FETCH_SESSION_ID_NOT_FOUND
        if session.next_epoch != epoch or session.fetch.is_busy:
            return Code.INVALID_FETCH_SESSION_EPOCH
        session.step()
        return session.fetch

    def end(self) -> None:
        """The client closes its session, or begins another."""
        if self._session is not None:
            self._kept.drop(self._session.fetch)
            self._session = None

    def close(self) -> None:
        """The client has gone."""
        self.end()
        if self._repeated is not None:
            self._kept.drop(self._repeated[2])
            self._repeated = None
