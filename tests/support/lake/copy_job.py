"""A materializer in a process of its own, to be killed: `python -m tests.support.lake.copy_job STORE TOPIC TARGET TURNS`.

Says on stdout what it is about to do, so that whoever kills it knows roughly where it was hit. Ends when the table
was level in a turn that began after `TURNS` of them, or when it is killed.
"""

from __future__ import annotations

import sys
from typing import Any

import logstore
from logstore.lake import Materializer


def say(what: str) -> None:
    print(what, flush=True)


def main(store_url: str, name: str, target: str, turns: int) -> None:
    with logstore.open(store_url, writer="read_only") as store:
        copier = Materializer(store.topic(name), target, schema="infer", commit_bytes=2_000)
        table: Any = copier._table
        put, commit = table.put, table.commit

        def told_put(*given: Any) -> None:
            say("put")
            put(*given)

        def told_commit(*given: Any) -> bool:
            say("commit")
            done = bool(commit(*given))
            say("committed" if done else "refused")
            return done

        table.put, table.commit = told_put, told_commit
        for _ in range(turns):
            progress = copier.run_once()
            say(f"level {progress.rows} {progress.conflicts}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
