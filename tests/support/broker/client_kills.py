"""A real client's transactions while its broker is killed at one of its writes, and started again as a supervisor would.

The story is the same in every language: three transactions over two partitions and an offset, committed, aborted and
committed; a fourth that is open when the next life of its producer begins, and that the former life then tries to commit;
and a last one, `end`, of the new life. The client tells what it was told, and what its `read_committed` consumer reads.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from logstore.objects.homes.local import LocalStore
from tests.support.broker.harness import LocalBroker, Wire, as_users_have_it
from tests.support.broker.steps import make_topic
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

NEVER = 1 << 30
TOGETHER = 4
ZOMBIE, END = "zombie", "end"


@dataclass
class Told:
    """What the producer's user was told, by value; what is named nowhere was aborted. `read`: by partition. `offset`: what
    the group has committed."""

    committed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    zombie_committed: bool = False
    read: list[list[str]] = field(default_factory=list)
    offset: int | None = None

    def judge(self) -> None:
        assert not self.zombie_committed, "a former life was told that it committed"
        assert END in self.committed
        first, second = self.read
        assert first == second, "all of a transaction, or nothing"
        assert len(set(first)) == len(first), "stored twice"
        assert [value for value in self.committed if value not in first] == []
        assert [value for value in first if value not in (*self.committed, *self.unknown)] == []
        # Transaction n commits the offset n.
        committed = [int(value) for value in first if value != END]
        assert self.offset == max(committed, default=None), "the offset goes with its transaction"


class Supervised:
    """A broker on a folder that is killed once, at its n-th write, and then started again on the same port."""

    def __init__(self, folder: Path, number: int, when: str, lanes: int) -> None:
        self._folder, self._lanes = folder, lanes
        self.was_killed = False
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._is_over = threading.Event()
        self._broker = self._start(number, when)
        self._watcher = threading.Thread(target=self._watch, name="supervisor")

    def __enter__(self) -> Supervised:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._broker.kill()
        self._watcher.join(PATIENCE_S)
        self._broker.kill()
        self._broker.wait(PATIENCE_S)

    def _start(self, number: int, when: str) -> subprocess.Popen[bytes]:
        command = as_users_have_it("tests.support.broker.killed_broker")
        said = [str(self._folder), str(self._port), str(number), when, str(self._lanes)]
        broker = subprocess.Popen([*command, *said], stdout=subprocess.PIPE)
        assert broker.stdout is not None
        with broker.stdout:
            assert broker.stdout.readline().startswith(b"ready")
        return broker

    def _watch(self) -> None:
        self._broker.wait()
        if not self._is_over.is_set():
            self.was_killed = True
            self._broker = self._start(NEVER, "before")


def killed_at(folder: Path, number: int, when: str, lanes: int, story: Callable[[str], Told]) -> bool:
    """Whether it came to the n-th write. What the client was told, and reads, is true either way."""
    with LocalBroker(LocalStore(folder), lanes=lanes) as before, Wire(before.port) as wire:
        make_topic(wire, partitions=2)
    with Supervised(folder, number, when, lanes) as broker:
        story(broker.address).judge()
        return broker.was_killed


def at_every_write(folder: Path, when: str, lanes: int, story: Callable[[str], Told]) -> int:
    """Until the story is over before its broker is killed. How many kills that were. Several brokers run beside each other:
    a story waits most of its time, for a broker's start and for its client's backoff."""

    def kill(number: int) -> bool:
        return killed_at(folder / str(number), number, when, lanes, story)

    with ThreadPoolExecutor(TOGETHER) as pool:
        for first in count(1, TOGETHER):
            came = list(pool.map(kill, range(first, first + TOGETHER)))
            if not all(came):
                return first - 1 + sum(came)
    raise AssertionError("there is always a last write")
