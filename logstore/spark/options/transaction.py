"""Whose write this is, and where it keeps its ledger and what it stages.

Everything is derived from the application's name and the number of its write, so every attempt comes to the same names.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from logstore.layout.paths import SPARK_PREFIX

MAX_VERSION = 2**63 - 1
"""Of a transaction: names of staged objects have room for it, and sort by it."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Whose write this is: version 8 of app A is stored once, however often it is tried.

    `run` is new each time a stream's query is started; it is empty where nobody says which run this is.
    """

    app: str
    version: int
    run: str = ""

    @property
    def home(self) -> str:
        """The app's folder: its name may hold anything, so its digest stands for it."""
        return f"{SPARK_PREFIX}{hashlib.blake2b(self.app.encode(), digest_size=16).hexdigest()}/"

    @property
    def ledger(self) -> str:
        return self.home + "ledger"

    @property
    def staged(self) -> str:
        return f"{self.home}staged/{self.version:020d}/"

    def producer_id(self, task: int) -> int:
        """Of the batches that a task writes, whichever attempt of it: a number that Kafka's producers would not get."""
        return self._digest(f"task {task}", 8) >> 1 | 1 << 62

    def segment_id(self, topic: str, incarnation: str, partition: int, number: int) -> bytes:
        """Of the `number`-th segment that this transaction adds to a partition: every attempt to commit has the same."""
        return self._digest(f"{topic}/{incarnation}/{partition}/{number}", 16).to_bytes(16, "big")

    def _digest(self, what: str, size: int) -> int:
        name = f"{self.app}\0{self.version}\0{what}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=size).digest(), "big")
