"""Member processes, and what they have handled and committed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals

from tests.support.patience import PATIENCE_S

WORKER = Path(__file__).with_name("worker.py")
Seen = tuple[int, int]
"""Partition and offset."""


class MemberProcess:
    """`handled` are records in the order in which they were printed, `committed` those of batches whose commit returned."""

    def __init__(
        self, url: str, group: str, topic: str, *, timeout: float, batch: int, hold: int = 0
    ) -> None:
        command = [sys.executable, str(WORKER), url, group, topic, str(timeout), str(batch), str(hold)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.handled: list[Seen] = []
        self.committed: set[Seen] = set()
        self.said: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        batch: list[Seen] = []
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break  # cut off by the kill
            with self._changed:
                words = line.split()
                if len(words) == 3:
                    batch.append((int(words[0]), int(words[1])))
                    self.handled.append(batch[-1])
                elif words == ["committed"]:
                    self.committed.update(batch)
                    batch = []
                elif words == ["refused"]:
                    batch = []
                self.said[words[0] if len(words) == 1 else "record"] += 1
                self._changed.notify_all()

    def wait_for(self, word: str, count: int = 1) -> None:
        """Until it has said so, so many times."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.said[word] >= count, PATIENCE_S), (
                f"{word}: {self.said}"
            )

    def stop(self) -> None:
        """SIGSTOP, and not while it holds a file lock: on a folder the others would wait for that."""
        again = threading.Event()
        while True:
            self.process.send_signal(Signals.SIGSTOP)
            locks = Path("/proc/locks").read_text().splitlines()
            if not any(str(self.process.pid) in line.split() for line in locks):
                return
            self.process.send_signal(Signals.SIGCONT)
            again.wait(0.01)

    def go_on(self) -> None:
        """After `stop`, and after `holding`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.process.send_signal(Signals.SIGCONT)

    def end(self, number: Signals) -> int:
        """Send it, and wait until the process and what it said have ended."""
        if number == Signals.SIGTERM:
            self.wait_for("ready")  # from then on it knows what to do
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        return code


@contextmanager
def members(
    url: str, group: str, topic: str, count: int, *, timeout: float, batch: int = 20, hold: int = 0
) -> Iterator[list[MemberProcess]]:
    """So many, all of them joined; none is left at the end. More may be added to the list."""
    made = [MemberProcess(url, group, topic, timeout=timeout, batch=batch, hold=hold) for _ in range(count)]
    try:
        for each in made:
            each.wait_for("ready")
        yield made
    finally:
        for each in made:
            each.process.kill()
            each.process.wait(PATIENCE_S)
