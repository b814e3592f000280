"""A load like pgbench's, with what pgbench has not: huge and empty transactions, rollbacks, deletes,
changed keys.

Each transaction leaves a row in `audit`; the load remembers where the WAL ended right after its commit. So
for any confirmed position it is known, from the server alone, which transactions the store must hold by
then.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from tests.support.ingest.pg_story import session
from tests.support.patience import PATIENCE_S

TABLES = ("public.accounts", "public.items", "public.notes", "public.audit")
SCHEMA = """
    create table accounts (id int primary key, balance bigint not null);
    create table items (id serial primary key, name text, price numeric(10, 2));
    create table notes (id int primary key, body text, seen int);
    create table audit (id serial primary key, kind text);
    insert into accounts select i, 1000 from generate_series(1, 200) i;
    alter table notes alter body set storage external
"""
BIG_ROWS = 3_000


class Load:
    """Runs on a thread of its own until it is stopped."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.committed: list[tuple[int, int]] = []
        """(where the WAL ended after the commit, the audit row's id)"""
        self.failure: BaseException | None = None
        self._dsn = dsn
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with session(self._dsn) as sql:
                while not self._stop.wait(self._rng.random() * 0.01):
                    self._transaction(sql)
        except BaseException as error:
            self.failure = error

    def _transaction(self, sql: Any) -> None:
        rng = self._rng
        kind = rng.choices(
            ["transfer", "insert", "delete", "note", "key", "rollback", "empty", "big"],
            [8, 4, 3, 3, 2, 2, 2, 0.3],
        )[0]
        sql.execute("begin")
        getattr(self, "_" + kind)(sql)
        sql.execute("insert into audit (kind) values (%s) returning id", (kind,))
        (audit,) = sql.fetchone()
        if kind == "rollback":
            sql.execute("rollback")
            return
        sql.execute("commit")
        sql.execute("select pg_current_wal_insert_lsn() - '0/0'")
        self.committed.append((int(sql.fetchone()[0]), audit))

    def _transfer(self, sql: Any) -> None:
        giver, taker = self._rng.sample(range(1, 201), 2)
        amount = self._rng.randint(1, 50)
        sql.execute("update accounts set balance = balance - %s where id = %s", (amount, giver))
        sql.execute("update accounts set balance = balance + %s where id = %s", (amount, taker))

    def _insert(self, sql: Any) -> None:
        for _ in range(self._rng.randint(1, 20)):
            sql.execute(
                "insert into items (name, price) values (%s, %s)", ("é\t\\" * 3, self._rng.random() * 100)
            )

    def _delete(self, sql: Any) -> None:
        sql.execute("delete from items where id in (select id from items order by random() limit 5)")

    def _note(self, sql: Any) -> None:
        number = self._rng.randint(1, 30)
        if self._rng.random() < 0.5:
            sql.execute(
                "insert into notes values (%s, %s, 0) on conflict (id) do update set body = excluded.body",
                (number, "x" * 20_000),
            )
        else:
            sql.execute("update notes set seen = seen + 1 where id = %s", (number,))  # the large value stays

    def _key(self, sql: Any) -> None:
        sql.execute("update items set id = nextval('items_id_seq') where id = (select min(id) from items)")

    def _rollback(self, sql: Any) -> None:
        self._insert(sql)

    def _empty(self, sql: Any) -> None:
        """Nothing but the audit row."""

    def _big(self, sql: Any) -> None:
        sql.execute(
            "insert into items (name) select repeat('y', 100) from generate_series(1, %s)", (BIG_ROWS,)
        )
        sql.execute("delete from items where name like 'yyy%' and id % 3 = 0")
