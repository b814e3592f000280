"""A broker that kills itself with SIGKILL at its n-th write to the store: before it, or after it, before the answer.

    python -m tests.support.broker.killed_broker FOLDER PORT NUMBER before|after LANES

Writes are counted from the moment the broker is ready; what it writes to become that is not.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import broker_shim.__main__ as entry
from broker_shim import server
from broker_shim.config import BrokerConfig
from logstore.objects import ObjectInfo
from logstore.objects.homes.local import LocalStore
from logstore.objects.protocol import Buffer


class KillingStore:
    def __init__(self, folder: Path, number: int, when: str) -> None:
        self._inner = LocalStore(folder)
        self._left = number
        self._when = when
        self._lock = threading.Lock()
        self.is_armed = False

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._inner.get(key, start, end)

    def head(self, key: str) -> ObjectInfo | None:
        return self._inner.head(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, start_after)

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        with self._lock:
            self._left -= self.is_armed
            is_last = self.is_armed and self._left == 0
        if is_last and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return self._inner.put(key, data, if_absent=if_absent, if_match=if_match)
        finally:
            if is_last:  # also where its condition does not hold: that answer is lost as well
                os.kill(os.getpid(), signal.SIGKILL)

    def delete(self, key: str) -> None:
        self._inner.delete(key)


def main(folder: str, port: str, number: str, when: str, lanes: str) -> int:
    store = KillingStore(Path(folder), int(number), when)

    class Armed(server.Server):
        def __init__(self, config: BrokerConfig) -> None:
            super().__init__(config, store)

        async def start(self) -> None:
            await super().start()
            store.is_armed = True

    vars(server)["Server"] = Armed
    where = ["--store", f"file://{folder}", "--listen", f"127.0.0.1:{port}"]
    return entry.main([*where, "--lanes", lanes, "--log-level", "error"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
