"""A load of long transactions, each open while many short ones commit: their rows stand in the WAL before the ends of the
short ones, and are sent after them.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from tests.support.ingest.pg_story import session
from tests.support.patience import PATIENCE_S

TABLES = ("long", "short")
LONG_ROWS = 10_000
"""Of 1.5 kB: a transaction is more than the sockets' buffers hold, so a server that is not read from is inside of one."""
LAG_MAX = 8_000_000
"""The next long one waits while the slot is further behind: the ingester is at the end of the WAL when it comes, and what is
left to do in the end does not depend on the machine."""


class Interleaved:
    """Runs until it is left. `committed[table]` has (where the WAL ended after the commit, the newest id then)."""

    def __init__(self, dsn: str, slot: str, seed: int) -> None:
        self.committed: dict[str, list[tuple[int, int]]] = {table: [] for table in TABLES}
        self.is_open = False
        """Does a long one stand in the WAL with all of its rows, while short ones commit?"""
        self.failures: list[BaseException] = []
        self._dsn = dsn
        self._slot = slot
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,)) for run in (self._long, self._short)
        ]

    @staticmethod
    def create(dsn: str) -> None:
        with session(dsn) as sql:
            for table in TABLES:
                sql.execute(f"create table {table} (id serial primary key, v text)")

    def owed(self, table: str, confirmed: int) -> int:
        """The newest id of those that were committed before `confirmed`. One thread writes each table, so ids only rise."""
        return max((newest for end, newest in list(self.committed[table]) if end <= confirmed), default=0)

    def __enter__(self) -> Interleaved:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.failures == []

    def _guarded(self, run: Any) -> None:
        try:
            with session(self._dsn) as sql:
                run(sql)
        except BaseException as error:
            self.failures.append(error)

    def _long(self, sql: Any) -> None:
        while not self._stop.is_set():
            if self._lag(sql) > LAG_MAX:
                self._stop.wait(0.2)
                continue
            sql.execute("begin")
            sql.execute(
                "insert into long (v) select repeat('y', 1500) from generate_series(1, %s)", (LONG_ROWS,)
            )
            self.is_open = True
            self._stop.wait(1.0)
            sql.execute("commit")
            self.is_open = False
            self._note(sql, "long")

    def _short(self, sql: Any) -> None:
        while not self._stop.wait(self._rng.uniform(0.0, 0.05)):
            sql.execute("insert into short (v) values ('x')")
            self._note(sql, "short")

    def _note(self, sql: Any, table: str) -> None:
        sql.execute("select pg_current_wal_lsn() - '0/0'")
        end = int(sql.fetchone()[0])
        sql.execute(f"select max(id) from {table}")
        self.committed[table].append((end, sql.fetchone()[0]))

    def _lag(self, sql: Any) -> int:
        sql.execute(
            "select pg_current_wal_lsn() - confirmed_flush_lsn from pg_replication_slots where slot_name = %s",
            (self._slot,),
        )
        return int(sql.fetchone()[0])
