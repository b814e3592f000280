"""What this broker's coordinators know, for the metrics and the page: how far groups are behind, and which transactions are
open.

From memory, of the shards that are loaded and the partitions that are open here: whoever looks must not make a broker take
anything. Called on the loop and on the page's thread, so each dict is copied, which is one step, before it is walked.
"""

from __future__ import annotations

from typing import Any

from broker_shim.groups.coordinator import Coordinator
from broker_shim.transactions.transaction import State
from broker_shim.transactions.transaction_coordinator import TransactionCoordinator
from logstore.store import Store

_OPEN = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)


class Coordinated:
    def __init__(self, store: Store, groups: Coordinator, transactions: TransactionCoordinator) -> None:
        self._store = store
        self._groups = groups
        self._transactions = transactions

    def groups(self) -> list[dict[str, Any]]:
        """Each committed partition of each group. `lag`: in records; None of a partition that is not open here."""
        ends = {
            (each.topic, each.partition): each.overview.marks.buffered
            for each in self._store._health_report().partitions
            if each.overview is not None
        }
        found: list[dict[str, Any]] = []
        for shard in self._groups.shards:
            for name, places in sorted(dict(shard.offsets).items()):
                for place, committed in sorted(dict(places).items()):
                    end = ends.get(place)
                    lag = None if end is None else max(0, end - committed.offset)
                    found.append({"reader": name, "topic": place[0], "partition": place[1], "lag": lag})
        return found

    def lags(self) -> dict[str, dict[tuple[str, int], int]]:
        """By group: how many records before it reaches the end, of each partition of which that is known."""
        found: dict[str, dict[tuple[str, int], int]] = {}
        for row in self.groups():
            if row["lag"] is not None:
                found.setdefault(row["reader"], {})[row["topic"], row["partition"]] = row["lag"]
        return found

    def transactions(self) -> list[dict[str, Any]]:
        """Those that are open or not yet ended everywhere, the oldest first: readers of committed records wait for them."""
        now_ms = self._transactions.now_ms()
        found = [
            {
                "id": name,
                "state": known.state.shown,
                "producer": f"{known.producer_id}, epoch {known.epoch}",
                "partitions": [f"{topic}/{index}" for topic, index in sorted(known.places)],
                "seconds": max(0, now_ms - known.started_ms) / 1000,
                "timeout_seconds": known.timeout_ms / 1000,
            }
            for shard in self._transactions.shards
            for name, known in dict(shard.transactions).items()
            if known.state in _OPEN
        ]
        return sorted(found, key=lambda each: -float(str(each["seconds"])))
