"""One round: a handful of processes on a fresh store, killed, paused and started again; then a judgement.

Topics, by who writes them:

    lone      one exclusive writer with a WAL; all three ack levels; its disk outlives it
    rivals    two writers that take the partition from each other, exclusive or shared anew in each life
    shared    a writer that seldom appends, a busy one, and one whose records are numbered and sent again
    replica   two that feed the same source

Two readers follow the topics of the round, and two maintainers merge, trim and collect with a grace period of 0. Every
life has settings of its own: flushes, grace periods, caches, checkpoints, a wall clock that is years off and jumps.

The judge looks when nobody is left: fresh processes read everything, before and after one more merge and collection, and a
fresh writer appends. `check_history` holds the journal of all processes against that.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from logstore.objects import open_url
from tests.soak.actor import Job
from tests.soak.journal import Journal
from tests.soak.judge import Verdict, judge
from tests.soak.proxy import Doom, Proxy
from tests.support.servers import BUCKET, Server

ACTOR = Path(__file__).with_name("actor.py")
DAY_MS = 24 * 3600 * 1000
END_S = 60.0  # for processes that were asked to come to an end: reaching it is a violation
WORK_BYTES = 2000  # of the journal: some six appends and reads
IDLE_S = 3.0  # without any, and the next one comes all the same
DOOM_S = 2.0  # for one that was to be killed at its next write, and wrote nothing


@dataclass
class Plan:
    """How hard a round is."""

    seed: int
    crashes: int
    topics: tuple[str, ...]
    pause_s: tuple[float, float] = (0.05, 0.4)
    stop_max_s: float = 5.0
    late_max_s: float = 4.0
    sleep_s: tuple[float, ...] = (0.5, 2.0)  # the pace of those that are idle most of the time
    writes: float = 0.15
    reads: float = 0.03
    maintainers: int = 2
    readers: int = 2
    retention_bytes: int | None = None


class Children:
    """The fork server. Not safe for threads: the chaos has one."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(ACTOR)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def start(self, job: Job) -> int:
        return self._ask(asdict(job))

    def reap(self, pid: int) -> int:
        """The exit code of one that has ended."""
        return self._ask({"reap": pid})

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def fork_server(folder: Path) -> Iterator[Children]:
    children = Children(folder / "actors.log")
    try:
        yield children
    finally:
        children.close()


@dataclass
class Slot:
    """A place in the cast, which one process after the other fills. `handle` is the pidfd of the one that does."""

    name: str
    role: str
    topic: str = ""
    lives: int = 0
    process: str = ""
    pid: int = 0
    handle: int = -1
    start_at: float | None = None
    wake_at: float | None = None
    doomed_until: float | None = None
    shot: bool = False

    @property
    def lives_on(self) -> bool:
        return self.handle >= 0


@dataclass
class Round:
    plan: Plan
    folder: Path
    children: Children
    server: Server | None
    prefix: str
    dice: Random = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    proxy: Proxy | None = None

    def __post_init__(self) -> None:
        self.dice = Random(self.plan.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(self.folder / "journal")
        self._ports: dict[str, int] = {}
        self._tick = threading.Event()

    @property
    def where(self) -> str:
        """The store itself, past the proxy."""
        return str(self.folder / "objects") if self.server is None else self.server.url(self.prefix)

    def run(self) -> Verdict:
        self.objects = open_url(self.where)
        judge.prepare(self.objects, self.plan.topics, self.plan.retention_bytes)
        if self.server is None:
            return self._run()
        upstream = urlsplit(self.server.endpoint_url)
        plan = self.plan
        with Proxy(
            upstream.hostname or "",
            upstream.port or 0,
            plan.seed,
            writes=plan.writes,
            reads=plan.reads,
            late_max_s=plan.late_max_s,
        ) as self.proxy:
            verdict = self._run()
        verdict.counts.update({f"proxy: {kind}": count for kind, count in self.proxy.counts.items()})
        return verdict

    def _run(self) -> Verdict:
        self._cast()
        try:
            for slot in self.slots:
                self._start(slot)
            self._rage()
            self._settle()
        finally:
            for slot in self.slots:
                self._kill(slot)
        self.journal.close()
        verdict = judge.judge(
            self.folder / "journal", self.objects, self.plan.topics, self._disk, self.plan.retention_bytes
        )
        verdict.violations[:0] = self.complaints
        verdict.counts.update(self.counts)
        return verdict

    # The cast

    @property
    def _disk(self) -> str:
        return str(self.folder / "disk")

    def _cast(self) -> None:
        roles = {
            "lone": [("lone", "produce")],
            "rivals": [("rival0", "produce"), ("rival1", "produce")],
            "shared": [("sleepy", "produce"), ("busy", "produce"), ("numbered0", "produce_numbered")],
            "replica": [("replica0", "replicate"), ("replica1", "replicate")],
        }
        if self.plan.retention_bytes is not None:
            roles["shared"].pop()  # its numbers are forgotten with its records, and begin at 0 again
        for topic in self.plan.topics:
            self.slots += [Slot(name, role, topic) for name, role in roles[topic]]
        self.slots += [Slot(f"reader{number}", "read") for number in range(self.plan.readers)]
        self.slots += [Slot(f"maintainer{number}", "maintain") for number in range(self.plan.maintainers)]
        if self.proxy is not None:
            self._ports = {slot.name: self.proxy.port(slot.name) for slot in self.slots}

    def _start(self, slot: Slot) -> None:
        slot.start_at = None
        slot.lives += 1
        slot.process = f"{slot.name}.{slot.lives}"
        slot.pid = self.children.start(self._job(slot))
        slot.handle = os.pidfd_open(slot.pid)

    def _job(self, slot: Slot) -> Job:
        dice = self.dice
        settings: dict[str, Any] = {
            "flush_interval": dice.choice((0.005, 0.05, 0.3)),
            "flush_bytes": dice.choice((200, 2000, 8 << 20)),
            "delete_grace": dice.choice((0.0, 0.0, 1.0, 24 * 3600.0)),
            "compression": dice.choice(("zstd", "lz4", "none")),
            "cache_bytes": dice.choice((0, 5000, 64 << 20)),
            "follow_interval": dice.choice((0.02, 0.1, 0.5)),
            "probe_interval": dice.choice((0.02, 0.2, 0.5)),
            "append_timeout": dice.choice((2.0, 10.0)),
        }
        acks: tuple[str, ...] = ("durable",)
        if slot.topic == "lone":
            settings["wal_dir"] = self._disk
            acks = ("buffered", "local", "local", "durable")
        elif slot.topic == "shared":
            settings["writer"] = "shared"
        elif slot.topic == "rivals":
            settings["writer"] = dice.choice(("exclusive", "exclusive", "shared"))
            acks = ("durable",) if settings["writer"] == "shared" else ("durable", "buffered")
        return Job(
            role=slot.role,
            process=slot.process,
            seed=dice.getrandbits(32),
            journal=str(self.folder / "journal"),
            topic=slot.topic
            or ("rivals" if slot.role == "maintain" and "rivals" in self.plan.topics else ""),
            topics=self.plan.topics,
            settings=settings,
            acks=acks,
            alone=slot.topic in ("lone", "shared", "replica"),
            skew_ms=dice.choice((0, 0, 2 * DAY_MS, -2 * DAY_MS, 1000 * DAY_MS)),
            checkpoint_every=dice.choice((2, 5, 64)),
            pace_s=dice.choice(self._paces(slot)),
            target=str(self.folder / "ends"),
            read_timeout_s=dice.choice((0.7, 2.0)),
            **self._home(slot),
        )

    def _paces(self, slot: Slot) -> tuple[float, ...]:
        if slot.name in ("sleepy", "reader1"):
            return self.plan.sleep_s
        return (0.01, 0.05, 0.1) if slot.topic else (0.05, 0.2)

    def _home(self, slot: Slot) -> dict[str, Any]:
        if self.proxy is None:
            return {"folder": self.where}
        endpoint = f"http://127.0.0.1:{self._ports[slot.name]}"
        return {"endpoint_url": endpoint, "bucket": BUCKET, "prefix": self.prefix}

    # Chaos

    @property
    def crashes(self) -> int:
        return self.counts["kill -9"] + self.counts["SIGSTOP"]

    def _rage(self) -> None:
        """The next one when something has been done since the last one: on a busy machine that takes its time."""
        next_at, done = time.monotonic() + 1.0, 0
        while self.crashes < self.plan.crashes:
            now = time.monotonic()
            self._attend(now)
            if now >= next_at and (self._written() > done + WORK_BYTES or now >= next_at + IDLE_S):
                self._strike(now)
                next_at, done = now + self.dice.uniform(*self.plan.pause_s), self._written()
            self._tick.wait(0.02)

    def _written(self) -> int:
        return (self.folder / "journal").stat().st_size

    def _attend(self, now: float) -> None:
        """What is due: to wake one, to start one again, to see that one has ended by itself."""
        for slot in self.slots:
            if slot.lives_on and _has_ended(slot.handle):
                if not slot.shot:
                    self.complaints.append(f"{slot.process} ended by itself: see actors.log")
                self._kill(slot)
                slot.start_at = now + self.dice.uniform(0.0, 0.5)
            if slot.doomed_until is not None and now >= slot.doomed_until:
                slot.doomed_until = None
                if self.proxy is not None:
                    self.proxy.spare(slot.name)
            if slot.wake_at is not None and now >= slot.wake_at:
                slot.wake_at = None
                _send(slot, signal.SIGCONT)
            if slot.start_at is not None and now >= slot.start_at:
                self._start(slot)

    def _strike(self, now: float) -> None:
        slot = self.dice.choice([slot for slot in self.slots if slot.start_at is None])
        if slot.doomed_until is not None:
            return
        stops = slot.wake_at is None and self.dice.random() < 0.4
        at_write = self.proxy is not None and slot.wake_at is None and self.dice.random() < 0.5
        slept = self.dice.uniform(0.05, self.plan.stop_max_s)
        if at_write and self.proxy is not None:
            # In the middle of a commit: its request is on its way, or carried out and not answered.
            slot.doomed_until = now + DOOM_S
            moment = self.dice.choice(("before", "after"))
            hold = self.dice.choice((0.0, 0.3, 2.0))

            def act() -> None:
                self._stop(slot, slept) if stops else self._shoot(slot)

            self.proxy.doom(slot.name, Doom(moment, act, hold))  # type: ignore[arg-type]
        elif stops:
            self._stop(slot, slept)
        else:
            self._shoot(slot)
            self._kill(slot)
            slot.start_at = now + self.dice.uniform(0.0, 0.8)

    def _stop(self, slot: Slot, seconds: float) -> None:
        if _send(slot, signal.SIGSTOP):
            self.counts["SIGSTOP"] += 1
            slot.wake_at = time.monotonic() + seconds

    def _shoot(self, slot: Slot) -> None:
        if _send(slot, signal.SIGKILL):
            self.counts["kill -9"] += 1
            slot.shot = True

    def _kill(self, slot: Slot) -> None:
        """Make sure that it is gone, and write that down."""
        if not slot.lives_on:
            return
        _send(slot, signal.SIGKILL)
        _wait_for_end(slot.handle, END_S)
        self.children.reap(slot.pid)
        os.close(slot.handle)
        slot.handle, slot.wake_at, slot.doomed_until, slot.shot = -1, None, None, False
        self.journal.note("crashed", process=slot.process)

    # The end

    def _settle(self) -> None:
        """Nothing disturbs them any more: each must come to a good end, the writers first, the readers when all is
        written."""
        if self.proxy is not None:
            self.proxy.calm()
        for slot in self.slots:
            if slot.shot:
                self._kill(slot)
            if slot.start_at is not None or not slot.lives_on:
                self._start(slot)
            slot.wake_at = slot.doomed_until = None
            _send(slot, signal.SIGCONT)
        if self.proxy is not None:
            self.proxy.deliver_late_ones()
        self._finish([slot for slot in self.slots if slot.role != "read"])
        ends = judge.ends(self.objects, self.plan.topics)
        (self.folder / "ends").write_text(json.dumps(ends))
        self._finish([slot for slot in self.slots if slot.role == "read"])

    def _finish(self, slots: list[Slot]) -> None:
        # A lone writer is killed once more instead, now and then: the judge finds what its disk holds.
        for slot in slots:
            if slot.topic == "lone" and self.dice.random() < 0.5:
                self._kill(slot)
            _send(slot, signal.SIGTERM)
        for slot in [slot for slot in slots if slot.lives_on]:
            if not _wait_for_end(slot.handle, END_S):
                self.complaints.append(f"{slot.process} did not come to an end in {END_S} s, undisturbed")
                self._kill(slot)
                continue
            code = self.children.reap(slot.pid)
            os.close(slot.handle)
            slot.handle = -1
            if code:
                self.complaints.append(f"{slot.process} ended with {code}: see actors.log")
            self.journal.note("crashed", process=slot.process)


def _send(slot: Slot, number: int) -> bool:
    if not slot.lives_on:
        return False
    try:
        signal.pidfd_send_signal(slot.handle, number)
    except ProcessLookupError:
        return False
    return True


def _has_ended(handle: int) -> bool:
    return _wait_for_end(handle, 0.0)


def _wait_for_end(handle: int, seconds: float) -> bool:
    return bool(select.select([handle], [], [], seconds)[0])
