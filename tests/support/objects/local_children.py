"""What child processes do to a local folder in `test_local.py`; importable, because they are spawned."""

from __future__ import annotations

import os
import signal
from multiprocessing.synchronize import Barrier

from logstore.errors import PreconditionFailed
from logstore.objects import LocalStore


def create_each(root: str, me: int, rounds: int, start: Barrier) -> list[int]:
    """Try to create object 0, 1, 2 …, each together with all other processes; the numbers that were won."""
    store = LocalStore(root)
    won = []
    for number in range(rounds):
        start.wait()
        try:
            store.put(f"race/{number}", b"by %d" % me, if_absent=True)
        except PreconditionFailed:
            continue
        won.append(number)
    return won


def add_ones(root: str, times: int, start: Barrier) -> int:
    """Read, add one, write if nobody else did, `times` times; how often somebody else did."""
    store = LocalStore(root)
    lost = 0
    start.wait()
    for _ in range(times):
        while True:
            seen = store.head("counter")
            assert seen is not None
            value = int(store.get("counter"))
            try:
                # The value may be newer than the etag, never older: then the etag no longer matches.
                store.put("counter", b"%d" % (value + 1), if_match=seen.etag)
                break
            except PreconditionFailed:
                lost += 1
    return lost


def die_at(root: str, call: str, if_absent: bool) -> None:
    """Put an object and be killed just before the named call of `os`."""

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    store = LocalStore(root)
    setattr(os, call, die)
    store.put("log/victim", b"x" * 100_000, if_absent=if_absent)
