"""The slot against the collector's boundary, all the time: with an object store that goes away and comes back, an ingester
that stands still for so long that the server pings it, or gives it up, and kill -9.

Nothing here has to happen within some time: each step waits for what the server or the ingester shows.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.ingest.postgres.slot import connect, slot_state
from tests.support.ingest.ingester import looks_beside, switch_for
from tests.support.ingest.pg_end import ROOT, wait_for_the_end
from tests.support.ingest.pg_interleaved import TABLES, Interleaved
from tests.support.ingest.pg_story import catch_up, session, settings
from tests.support.ingest.pg_waits import wait_until
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.postgres, pytest.mark.soak, pytest.mark.timeout(3_000)]

KILLS = 12


class Round:
    """One slot, one store, and one ingester after the other."""

    def __init__(self, dsn: str, folder: Path, seed: int, timeout_s: int, kind: str = "") -> None:
        self.store, self.notes = folder / "store", folder / "notes"
        self.slot = f"watched{seed}"
        self.pauses: Counter[str] = Counter()
        self._dsn = dsn
        self._folder = folder
        self._timeout_s = timeout_s
        self._kind = kind
        self._off = switch_for(self.store)
        self._pause = threading.Event()
        self._rng = random.Random(seed)
        self._children: list[subprocess.Popen[bytes]] = []
        Interleaved.create(dsn)
        catch_up(str(self.store), settings(dsn, slot=self.slot))

    def __enter__(self) -> Round:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def child(self) -> subprocess.Popen[bytes]:
        return self._children[-1]

    @property
    def violations(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    @property
    def looks(self) -> int:
        looks = looks_beside(self.notes)
        return looks.stat().st_size if looks.exists() else 0

    def begin(self, number: int) -> None:
        wait_until(lambda: self._waits() is None)
        began = self._confirmed()  # nobody has the slot: it stays
        impatient = f"{self._dsn} options='-c wal_sender_timeout={self._timeout_s}s'"
        command = [
            sys.executable,
            "-m",
            "tests.support.ingest.ingester",
            impatient,
            str(self.store),
            self.slot,
        ]
        with (self._folder / f"ingester-{number}.log").open("wb") as log:
            child = subprocess.Popen(
                [*command, str(self.notes), str(began), self._kind], cwd=ROOT, stdout=log, stderr=log
            )
        self._children.append(child)
        self._until(lambda: self._waits() is not None)

    def trouble(self) -> None:
        """At any time."""
        self._pause.wait(self._rng.uniform(0.2, 1.5))
        self._off.touch()
        self._pause.wait(self._rng.uniform(0.0, 1.0))
        self._stand_still(given_up=self._rng.random() < 0.5)

    def trouble_inside(self, load: Interleaved) -> None:
        """Short ones are stored and others are owed, all of them younger than the rows that the server sends."""
        self._until(lambda: load.is_open)
        self._pause.wait(self._rng.uniform(0.2, 0.6))
        self._off.touch()
        self._until(lambda: not load.is_open)
        self._pause.wait(self._rng.uniform(0.0, 0.3))
        self._stand_still(given_up=False)

    def _stand_still(self, *, given_up: bool) -> None:
        """The store is away. The ingester stands still, until it was pinged or given up, and goes on: is the boundary still
        what the server is told?"""
        self.child.send_signal(signal.SIGSTOP)
        wait_until(lambda: self._waits() is None or (not given_up and self._was_pinged()))
        self.pauses[self._waits() or "given up"] += 1
        self.child.send_signal(signal.SIGCONT)
        self._pause.wait(self._rng.uniform(0.0, 0.5))
        looks = self.looks
        self._until(lambda: self.looks > looks + 10)

    def store_returns(self) -> None:
        self._off.unlink()

    def kill(self) -> None:
        for child in self._children:
            child.kill()
            child.wait(PATIENCE_S)
        self._off.unlink(missing_ok=True)

    def end(self) -> None:
        wait_for_the_end(self._dsn, self.slot, self.child)
        self.kill()

    def stored(self, table: str) -> list[int]:
        """The rows of a table that the store has, as often as it has them, in order."""
        found: list[int] = []
        with logstore.open(str(self.store), writer="read_only") as store:
            topic = store.topic(f"public.{table}")
            for partition in range(topic.partitions):
                records = topic.partition(partition).records(visibility="durable")
                found += [json.loads(record.key or b"")["id"] for record in records]
        return sorted(found)

    def check_confirmed(self, load: Interleaved) -> None:
        """What was committed before the slot's position is stored. The ingester is dead."""
        wait_until(lambda: self._waits() is None)
        confirmed = self._confirmed()
        for table in TABLES:
            stored = set(self.stored(table))
            missing = [row for row in range(1, load.owed(table, confirmed) + 1) if row not in stored]
            assert not missing, f"confirmed {confirmed:x}, but of {table} {missing[:5]} are not in the store"

    def _until(self, done: Callable[[], bool]) -> None:
        def look() -> bool:
            assert self.child.poll() is None, f"the ingester ended by itself: {self.child.returncode}"
            return done()

        wait_until(look)

    def _confirmed(self) -> int:
        with connect(self._dsn) as connection:
            state = slot_state(connection, self.slot)
        assert state is not None
        return state.confirmed

    def _waits(self) -> str | None:
        """What the server waits for, while somebody has the slot."""
        with session(self._dsn) as sql:
            sql.execute(
                "select coalesce(a.wait_event, 'nothing') from pg_replication_slots s "
                "join pg_stat_activity a on a.pid = s.active_pid where s.slot_name = %s",
                (self.slot,),
            )
            row = sql.fetchone()
        return None if row is None else str(row[0])

    def _was_pinged(self) -> bool:
        with session(self._dsn) as sql:
            sql.execute(
                "select clock_timestamp() - r.reply_time > make_interval(secs => %s) from pg_stat_replication r "
                "join pg_replication_slots s on s.active_pid = r.pid where s.slot_name = %s",
                (self._timeout_s * 0.6, self.slot),
            )
            row = sql.fetchone()
        return row is not None and bool(row[0])


@pytest.mark.parametrize("timeout_s", [3, 1])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_F02_the_slot_is_never_confirmed_past_the_boundary_and_no_row_is_lost_or_doubled(
    dsn: str, tmp_path: Path, seed: int, timeout_s: int
) -> None:
    with Round(dsn, tmp_path, seed, timeout_s) as watched:
        with Interleaved(dsn, watched.slot, seed) as load:
            for number in range(KILLS):
                watched.begin(number)
                watched.trouble()
                watched.store_returns()
                watched.trouble_inside(load)
                if number % 2:
                    watched.store_returns()
                watched.kill()
                watched.check_confirmed(load)
                assert watched.violations == []
            watched.begin(KILLS)
        watched.end()
    assert watched.violations == []
    with session(dsn) as sql:
        for table in TABLES:
            rows = [row for (row,) in sql.execute(f"select id from {table} order by id").fetchall()]
            assert watched.stored(table) == rows, table
            print(f"{table}: {len(rows):,} rows")
    print(
        f"seed {seed}, {timeout_s} s: {KILLS} kills, {watched.looks:,} looks, pauses {dict(watched.pauses)}"
    )


def test_F02_the_soak_notices_a_client_that_confirms_at_a_keepalive(dsn: str, tmp_path: Path) -> None:
    """The same, with the one client that we had and that did it: else all of this would prove nothing."""
    with Round(dsn, tmp_path, 1, 3, kind="hasty") as watched, Interleaved(dsn, watched.slot, 1) as load:
        for number in range(3 * KILLS):
            watched.begin(number)
            watched.trouble_inside(load)
            watched.kill()
            if watched.violations:
                print(watched.violations[0], number, dict(watched.pauses))
                return
    raise AssertionError(f"nothing was noticed in {dict(watched.pauses)}")
