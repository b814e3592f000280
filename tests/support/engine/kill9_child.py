"""A process that appends, writes down every ack, and kills itself at a given step: run by `test_kill9`.

It is a fork server: each line on stdin is a job (JSON), each job runs in a fork of its own, and the answer is one line that
says how it ended. A *step* is a system call that changes a disk (write, fsync, link, rename, unlink), or, with
`"count": "store"`, the moment before and the moment after each call to the object store. Kill -9 comes right before step n,
or, if that is a write, when half of its bytes are written.

An ack is written down only after it was given, by one `write` to a file, which kill -9 cannot take back.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import logstore
from logstore.engine.maintenance import checkpoint
from logstore.engine.write.wal import wal_files
from logstore.objects import ObjectStore, open_url

_write = os.write


class Steps:
    """Counts steps across all threads, and ends the process at one of them."""

    def __init__(self, fatal: int) -> None:
        self._fatal = fatal
        self._lock = threading.Lock()
        self.taken = 0

    def step(self, last_words: Callable[[], object] = lambda: None) -> None:
        with self._lock:  # held on purpose while dying: no other thread gets one step further
            self.taken += 1
            if self.taken == self._fatal:
                last_words()
                os.kill(os.getpid(), signal.SIGKILL)


class SteppedStore:
    """An object store, each call of which is two steps."""

    def __init__(self, inner: ObjectStore, steps: Steps) -> None:
        self.inner = inner
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)
        if name not in ("get", "put", "head", "list", "delete"):
            return call

        def stepped(*args: Any, **kwargs: Any) -> Any:
            self._steps.step()
            answer = call(*args, **kwargs)
            self._steps.step()
            return answer

        return stepped


def count_system_calls(steps: Steps) -> None:
    def write(handle: int, data: Any) -> int:
        steps.step(lambda: _write(handle, bytes(data)[: len(data) // 2]))
        return _write(handle, data)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            steps.step()
            return call(*args, **kwargs)

        return stepped

    os.write = write
    for name in ("fsync", "link", "rename", "unlink"):
        setattr(os, name, counted(getattr(os, name)))


class Acks:
    """Where acks are written down: one line each, ack level, first offset, values."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, receipt: logstore.Receipt, values: list[bytes]) -> None:
        line = [receipt.durability, receipt.offset, *(value.decode() for value in values)]
        _write(self._handle, json.dumps(line).encode() + b"\n")


def append_durably(log: logstore.PartitionLog, acks: Acks) -> None:
    """Flushes of one record, of an atomic pair, of a group; several checkpoints on the way."""
    for number in range(3):
        acks.note(log.append(b"d%d" % number), [b"d%d" % number])
    pair = [b"pair-a", b"pair-b"]
    acks.note(log.append(pair), pair)
    group = [log.submit(b"g%d" % number) for number in range(3)]
    for number, future in enumerate(group):
        acks.note(future.result(100), [b"g%d" % number])


def append_locally(log: logstore.PartitionLog, acks: Acks) -> None:
    """WAL frames in several files, some of them made durable on the way, and a buffered tail."""
    for number in range(3):
        acks.note(log.append(b"l%d" % number, ack="local"), [b"l%d" % number])
    pair = [b"pair-a", b"pair-b"]
    acks.note(log.append(pair, ack="local"), pair)
    acks.note(log.append(b"b0", ack="buffered"), [b"b0"])
    log.flush(30)
    for number in range(3, 6):
        acks.note(log.append(b"l%d" % number, ack="local"), [b"l%d" % number])
    acks.note(log.append(b"b1", ack="buffered"), [b"b1"])


SCENARIOS = {"durable": append_durably, "local": append_locally}


def run(job: dict[str, Any], result: int) -> None:
    """In the fork: ends by kill -9, or without closing anything."""
    steps = Steps(job["step"])
    objects = open_url(job["url"])
    if job["count"] == "store":
        objects = SteppedStore(objects, steps)
    else:
        count_system_calls(steps)
        checkpoint.EVERY_SEGMENTS = 2
        wal_files.FILE_BYTES = 300
    store = logstore.open(objects, wal_dir=job["wal_dir"], flush_interval=3600.0)
    log = store.create_topic("t", exist_ok=True).partition(0)
    SCENARIOS[job["scenario"]](log, Acks(job["acks"]))
    _write(result, b"%d" % steps.taken)
    os.kill(os.getpid(), signal.SIGKILL)


def serve() -> None:
    for line in sys.stdin:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                run(json.loads(line), write_end)
            finally:
                os._exit(70)  # an exception, not a kill: its traceback is on stderr
        os.close(write_end)
        _, status = os.waitpid(child, 0)
        taken = os.read(read_end, 20)
        os.close(read_end)
        answer = {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "ended": bool(taken)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
