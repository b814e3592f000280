"""T02: a table holds each durable record exactly once, whoever fills it and whatever becomes of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.lake import Materializer
from tests.support.lake.tables import (
    FORMATS,
    Place,
    durable,
    events,
    maintained,
    places,
    places_by_others,
    rows_of,
    target,
)

MakeTopic = Callable[..., logstore.Topic]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logstore.Store]:
    with logstore.open((tmp_path / "log").as_uri()) as opened:
        yield opened


@pytest.fixture(params=FORMATS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return target(request.param, tmp_path / "lake")


def fill(topic: logstore.Topic, first: int, stop: int, **more: object) -> None:
    topic.append_many(events(first, stop, **more))


def test_T02_what_is_durable_is_in_the_table_once_however_often_it_is_copied(
    store: logstore.Store, where: str
) -> None:
    topic = store.create_topic("orders", partitions=2)
    fill(topic, 0, 50)
    first = Materializer(topic, where)
    assert first.run_once().rows == 50
    assert first.run_once().rows == 50, "nothing was new"
    fill(topic, 50, 80)
    assert Materializer(topic, where).run_once().rows == 30, "another one goes on where the table ends"
    found = rows_of(where)
    assert places(found) == durable(topic)
    assert sorted(found["value"].to_pylist()) == sorted(r.value or b"" for r in events(0, 80))
    assert found["headers"].to_pylist()[0][0]["key"] == "h"
    assert first.progress().behind == 0


def test_T02_of_two_that_copy_the_same_records_one_is_refused_and_goes_on(
    store: logstore.Store, where: str
) -> None:
    topic = store.create_topic("orders", partitions=2)
    fill(topic, 0, 50)
    slow, quick = Materializer(topic, where), Materializer(topic, where)
    table: Any = slow._table
    commit, turns = table.commit, [0]

    def late(*given: Any) -> bool:
        """Its files are written, and somebody else is faster with the same records."""
        turns[0] += 1
        if turns[0] == 1:
            fill(topic, 50, 60)
            assert quick.run_once().rows == 60
        return bool(commit(*given))

    table.commit = late
    progress = slow.run_once()
    assert (progress.rows, progress.conflicts) == (0, 1)
    assert places(rows_of(where)) == durable(topic)


def test_T02_a_commit_whose_answer_is_lost_is_found_in_the_table(store: logstore.Store, where: str) -> None:
    topic = store.create_topic("orders")
    fill(topic, 0, 40)
    copier = Materializer(topic, where)
    table: Any = copier._table
    commit = table.commit

    def unanswered(*given: Any) -> bool:
        assert commit(*given)
        return False

    table.commit = unanswered
    progress = copier.run_once()
    assert (progress.conflicts, progress.behind) == (1, 0)
    assert places(rows_of(where)) == durable(topic)


def test_T02_commits_that_never_go_through_end_with_an_error_that_says_so(
    store: logstore.Store, where: str
) -> None:
    topic = store.create_topic("orders")
    fill(topic, 0, 4)
    copier = Materializer(topic, where)
    table: Any = copier._table
    table.commit = lambda *_: False
    with pytest.raises(logstore.StoreUnavailable, match="20 commits in a row did not go through"):
        copier.run_once()


def test_T02_a_topic_that_is_deleted_and_recreated_begins_again_beside_the_old_rows(
    store: logstore.Store, where: str
) -> None:
    topic = store.create_topic("orders")
    fill(topic, 0, 30)
    copier = Materializer(topic, where)
    copier.run_once()
    old = durable(topic)
    store.delete_topic("orders")
    with pytest.raises(logstore.UnknownTopic):
        copier.run_once()
    again = store.create_topic("orders")
    fill(again, 100, 110)
    copier.run_once()  # the very same one: it looks for the topic of that name each time
    found = rows_of(where)
    assert places(found) == old + durable(again)
    assert len({place for place, _, _ in places(found)}) == 2


def test_T02_new_partitions_are_copied_too(store: logstore.Store, where: str) -> None:
    topic = store.create_topic("orders")
    fill(topic, 0, 10)
    copier = Materializer(topic, where)
    copier.run_once()
    store.add_partitions("orders", 3)
    more = store.topic("orders")
    more.partition(2).append(events(10, 20))
    copier.run_once()
    assert places(rows_of(where)) == durable(more)


def test_T02_a_table_that_is_compacted_and_whose_history_is_dropped_still_knows_how_far_it_is(
    store: logstore.Store, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    topic = store.create_topic("orders", partitions=2)
    where = target("delta", tmp_path / "lake")
    for first in range(0, 60, 10):
        fill(topic, first, first + 10)
        copier = Materializer(topic, where, partition_by="hour")
        copier.run_once()
        if first == 30:
            done = copier.compact()
            assert done == {"files_added": 1, "files_removed": 4}
            table = DeltaTable(where.removeprefix("delta:"))
            table.create_checkpoint()
            table.cleanup_metadata()
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert places(rows_of(where)) == durable(topic)


def test_T02_compaction_may_run_between_a_copiers_look_and_its_commit(
    store: logstore.Store, tmp_path: Path
) -> None:
    topic = store.create_topic("orders")
    where = target("delta", tmp_path / "lake")
    for first in (0, 10):
        fill(topic, first, first + 10)
        Materializer(topic, where).run_once()
    copier = Materializer(topic, where)
    table: Any = copier._table
    commit = table.commit

    def late(*given: Any) -> bool:
        Materializer(topic, where).compact()
        return bool(commit(*given))

    table.commit = late
    fill(topic, 20, 30)
    progress = copier.run_once()
    assert (progress.rows, progress.conflicts) == (10, 0)
    assert places(rows_of(where)) == durable(topic)


def test_T02_iceberg_snapshots_that_expire_and_rewrites_by_others_lose_no_offset(
    store: logstore.Store, tmp_path: Path
) -> None:
    topic = store.create_topic("orders")
    where = target("iceberg", tmp_path / "lake")
    for first in range(0, 40, 10):
        fill(topic, first, first + 10)
        copier = Materializer(topic, where)
        copier.run_once()
        table: Any = copier._table._loaded  # type: ignore[attr-defined]
        table.refresh()
        if first == 10:
            table.overwrite(table.scan().to_arrow())  # as a compaction would: the same rows in other files
        if first == 20:
            table.maintenance.expire_snapshots().by_ids(
                [
                    one.snapshot_id
                    for one in table.snapshots()
                    if one.snapshot_id != table.current_snapshot().snapshot_id
                ]
            ).commit()
            table.refresh()
            assert len(table.snapshots()) == 1
    assert places(rows_of(where)) == durable(topic)
    offsets = [one.summary["logstore.offsets"] for one in table.snapshots()]
    assert all(str(topic._internal.descriptor.incarnation) in one for one in offsets), (
        "each snapshot says it, too"
    )


# -- killed ------------------------------------------------------------------------------------------------------------


class Copiers:
    """Processes that copy, some of which are killed."""

    def __init__(self, store_url: str, where: str) -> None:
        self._command = [sys.executable, "-m", "tests.support.lake.copy_job", store_url, "orders", where]
        self._running: list[subprocess.Popen[str]] = []

    def start(self, turns: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*self._command, str(turns)], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        self._running.append(process)
        return process

    def kill_at(self, process: subprocess.Popen[str], word: str) -> bool:
        """SIGKILL when it says so. Whether that hit it: it may end without a word."""
        assert process.stdout is not None
        for line in process.stdout:
            if line.split()[0] == word:
                break
        process.kill()
        return process.wait() == -signal.SIGKILL

    def stop(self) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def race(
    store: logstore.Store,
    store_url: str,
    where: str,
    kills: int,
    rng: random.Random,
    between: Callable[[int], None] | None = None,
) -> None:
    """Two copy side by side while records come, until `kills` of them were killed while they ran; `between` does what it
    likes with the table; in the end one more finishes. In the middle of many kills the topic is deleted and recreated."""
    topic = store.create_topic("orders", partitions=2)
    copiers = Copiers(store_url, where)
    former: Counter[Place] = Counter()
    at = turn = killed = 0
    try:
        while killed < kills:
            assert turn < 10 * kills, f"of {2 * turn} processes {killed} were killed while they ran"
            if killed >= kills // 2 > 0 and not former:
                Materializer(topic, where, schema="infer").run_once()
                former = durable(topic)
                store.delete_topic("orders")
                topic = store.create_topic("orders", partitions=2)
            fill(topic, at, at + 60, **({"colour": "red"} if turn else {}))
            at += 60
            mine, other = copiers.start(3), copiers.start(1)
            killed += copiers.kill_at(mine, rng.choice(["put", "commit", "committed", "refused"]))
            if turn % 2:
                killed += copiers.kill_at(other, rng.choice(["put", "commit", "committed", "level"]))
            else:
                other.communicate(timeout=240)
                assert other.returncode == 0
            if between is not None:
                between(turn)
            turn += 1
    finally:
        copiers.stop()
    Materializer(topic, where, schema="infer").run_once()
    found = rows_of(where)
    assert found.num_rows == len(places(found)) == at
    assert places(found) == former + durable(topic)
    if "s3" not in where.partition("?")[2] and "delta:s3" not in where:
        for reader, read in places_by_others(where).items():
            assert read == places(found), reader


@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", FORMATS)
def test_T02_two_that_race_and_are_killed_leave_each_record_once(
    form: str, store: logstore.Store, tmp_path: Path
) -> None:
    race(store, (tmp_path / "log").as_uri(), target(form, tmp_path / "lake"), 1, random.Random(form))


@pytest.mark.timeout(300)
@pytest.mark.s3
def test_T02_two_that_race_in_a_bucket_leave_each_record_once(moto: Any, tmp_path: Path) -> None:
    url = moto.url()
    with logstore.open(url) as store:
        race(store, url, target("delta", tmp_path / "lake", moto), 1, random.Random(7))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("home", ["folder", "moto", "seaweedfs"])
def test_T02_twenty_kills_leave_each_record_once(
    form: str, home: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The table is compacted and its history dropped between, and the topic is deleted and recreated."""
    server = None if home == "folder" else request.getfixturevalue(home)
    url = (tmp_path / "log").as_uri() if server is None else server.url()
    seed = int(os.environ.get("SOAK_SEED", "1"))
    with logstore.open(url) as store:
        where = target(form, tmp_path / "lake", server)
        rng = random.Random(f"{seed} {form} {home}")
        race(store, url, where, 20, rng, lambda turn: maintained(where, turn))
