"""Asks the store, in the background, what others have written to the partitions that somebody looks at.

A page that asked by itself would hang with a store that hangs, and show nothing; this thread may hang, and the page goes on
showing what is known, and why it is not more. Nobody looks: nothing is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from logstore.config import TopicConfig
from logstore.engine.lanes.lane_overview import LaneOverview
from logstore.engine.partition.many_partitions import look_at
from logstore.errors import LogStoreError, UnknownTopic
from logstore.store import Store
from logstore.topic import Topic

EVERY_S = 1.0
TOPICS_EVERY_S = 5.0
LOOKED_AT_S = 10.0

Asked = Callable[[], list[dict[str, Any]]]
"""Asks for groups: `reader`, `topic`, `partition`, `lag` in records, `seconds`, `member`. Or for transactions: `id`,
`state`, `producer`, `partitions`, `seconds`, `timeout_seconds`."""


@dataclass(slots=True)
class Known:
    """`topics`: name, partitions and settings; None until the store has told. `lanes`: those that partitions somebody looks
    at are in; `owners`: who writes through them, by their names. `groups`: each partition of each group of readers, as
    `Asked` gives them; `transactions` that are open, likewise. `trouble`: what the last round could not do, in words."""

    topics: list[tuple[str, int, TopicConfig | None]] | None = None
    lanes: list[LaneOverview] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    transactions: list[dict[str, Any]] = field(default_factory=list)
    trouble: str | None = None


class Refresher:
    """The lock guards what is wanted and what is known; it is never held while the store is asked."""

    def __init__(self, store: Store, groups: Asked | None = None, transactions: Asked | None = None) -> None:
        self._store = store
        self._groups = groups
        self._transactions = transactions
        self._lock = threading.Lock()
        self._wanted: dict[tuple[str, int], float] = {}
        self._looked = 0.0
        self._known = Known()
        self._topics_at = float("-inf")
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="logstore-ui", daemon=True)
        self._thread.start()

    def known(self) -> Known:
        """What there is, as last seen; somebody looks."""
        with self._lock:
            first = not self._looked
            self._looked = time.monotonic()
            found = replace(self._known)
        if first:
            self._wake.set()
        return found

    def want(self, topic: str, partitions: range) -> None:
        """Somebody looks at these."""
        now = time.monotonic()
        with self._lock:
            new = (topic, partitions.start) not in self._wanted
            for number in partitions:
                self._wanted[topic, number] = now
        if new:
            self._wake.set()

    def stop(self) -> None:
        self._ended = True
        self._wake.set()
        self._thread.join(EVERY_S)

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(EVERY_S)
            self._wake.clear()
            if not self._ended and time.monotonic() - self._looked < LOOKED_AT_S:
                trouble = self._round()
                with self._lock:
                    self._known.trouble = trouble

    def _round(self) -> str | None:
        now = time.monotonic()
        try:
            if now - self._topics_at > TOPICS_EVERY_S:
                self._list_topics()
                if self._groups is not None:
                    found = self._groups()
                    with self._lock:
                        self._known.groups = found
                self._topics_at = now
            if self._transactions is not None:
                held = self._transactions()
                with self._lock:
                    self._known.transactions = held
            with self._lock:
                self._wanted = {place: at for place, at in self._wanted.items() if now - at < LOOKED_AT_S}
                wanted = list(self._wanted)
            self._look_at(wanted)
        except (LogStoreError, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _look_at(self, wanted: list[tuple[str, int]]) -> None:
        """All at once: those of one lane cost as much as one of them."""
        topics: dict[str, Topic] = {}
        for name in {name for name, _ in wanted}:
            try:
                topics[name] = self._store.topic(name)
            except UnknownTopic:  # deleted while somebody looks at it: no trouble, but the list has changed
                self._topics_at = float("-inf")
        logs = [
            topics[name].partition(number)._internal
            for name, number in wanted
            if name in topics and number < topics[name].partitions
        ]
        look_at(logs)
        owners = {lane: log.owner_name for log in logs if (lane := log.lane_name) is not None}
        read = [lane for lane in self._store._runtime.lanes.overviews() if lane.name in owners]
        with self._lock:
            self._known.owners, self._known.lanes = owners, read

    def _list_topics(self) -> None:
        found: list[tuple[str, int, TopicConfig | None]] = []
        for name, topic in self._store._described():
            if isinstance(topic, Topic):
                found.append((name, topic.partitions, topic.config))
            else:  # damaged: it is listed all the same
                found.append((name, 0, None))
        with self._lock:
            self._known.topics = found
