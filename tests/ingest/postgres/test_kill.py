"""kill -9 at any moment: nothing is lost, doubled, torn or confirmed too early, and the slot reaches the end
of WAL.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

import logstore
from logstore.ingest.postgres.slot import connect, slot_state
from tests.support.ingest.ingester import switch_for
from tests.support.ingest.pg_end import ROOT, wait_for_the_end
from tests.support.ingest.pg_load import SCHEMA, TABLES, Load
from tests.support.ingest.pg_story import events, fold, same_rows, session
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.postgres


def ingester(dsn: str, store: Path, slot: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.ingest.ingester", dsn, str(store), slot], cwd=ROOT
    )


def audits_stored(store: Path) -> set[int]:
    with logstore.open(str(store), writer="read_only") as reader:
        topics = reader.topics()
    if "public.audit" not in topics:
        return set()
    return {row["id"] for row in fold(events(str(store), "public.audit")).values()}


def check_confirmed(dsn: str, store: Path, slot: str, load: Load) -> None:
    """Everything that was committed before the confirmed position is in the store. Nobody is writing now."""
    with connect(dsn) as connection:
        state = slot_state(connection, slot)
    if state is None:
        return  # killed before the first snapshot was stored
    stored = audits_stored(store)
    owed = {audit for lsn, audit in list(load.committed) if lsn <= state.confirmed}
    assert owed <= stored, (
        f"confirmed {state.confirmed:x}, but {sorted(owed - stored)[:5]} are not in the store"
    )


def check_no_transaction_is_torn(store: Path) -> None:
    """A transaction's records, over all topics and partitions, are numbered without a gap, and each share ends.

    Of the snapshots only the last one has to be whole: those before it were killed, and it says so by a truncate.
    """
    ordinals = defaultdict(list)
    last_in: dict[tuple[str, int, int], tuple[int, bool]] = {}
    snapshots = set()
    for topic in TABLES:
        for event in events(str(store), topic):
            transaction, ordinal = event["position"]
            if event["source"]["snapshot"] == "true":
                snapshots.add(transaction)
            ordinals[transaction].append(ordinal)
            share = (topic, event["partition"], transaction)
            assert share not in last_in or last_in[share] < (ordinal, False), f"{share} goes on after its end"
            last_in[share] = (ordinal, event["end"])
    left_behind = snapshots - {max(snapshots)}
    for transaction, found in ordinals.items():
        if transaction not in left_behind:
            assert sorted(found) == list(range(len(found))), f"transaction {transaction:x}"
    for (topic, partition, transaction), (_, ended) in last_in.items():
        assert ended or transaction in left_behind, f"{topic}/{partition} has a part of {transaction:x}"


def run_and_kill(dsn: str, tmp_path: Path, kills: int, seed: int) -> None:
    """The moments are random on purpose. In every second run the object store goes away before the kill."""
    store, slot, rng = (
        tmp_path / "store",
        "killed_" + dsn.split("dbname=")[1].split()[0],
        random.Random(seed),
    )
    off, pause = switch_for(store), threading.Event()
    with session(dsn) as sql:
        sql.execute(SCHEMA)
    with Load(dsn, seed) as load:
        for number in range(kills):
            child = ingester(dsn, store, slot)
            pause.wait(rng.uniform(0.5, 2.5))
            if number % 2:
                off.touch()
                pause.wait(rng.uniform(0.0, 1.0))
            child.send_signal(signal.SIGKILL)
            child.wait(PATIENCE_S)
            off.unlink(missing_ok=True)
            check_confirmed(dsn, store, slot, load)
        child = ingester(dsn, store, slot)
        pause.wait(1.5)
        off.touch()
        pause.wait(1.0)
    off.unlink()
    try:
        wait_for_the_end(dsn, slot, child)
    finally:
        child.terminate()
        child.wait(PATIENCE_S)
    check_confirmed(dsn, store, slot, load)
    assert {audit for _, audit in load.committed} <= audits_stored(store)
    check_no_transaction_is_torn(store)
    for table in TABLES:
        assert same_rows(str(store), dsn, table), table


def test_F14_killed_4_times_the_topics_equal_the_tables(dsn: str, tmp_path: Path) -> None:
    run_and_kill(dsn, tmp_path, kills=4, seed=11)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_F14_killed_20_times_the_topics_equal_the_tables(dsn: str, tmp_path: Path, seed: int) -> None:
    run_and_kill(dsn, tmp_path, kills=20, seed=seed)
