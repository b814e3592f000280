"""Members in real processes, on a folder: killed, stopped for a while, and ended as they should be."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.groups import describe, lag
from tests.support.groups.members import MemberProcess, Seen, members
from tests.support.patience import PATIENCE_S
from tests.support.servers import Server

TOPIC = "jobs"
PARTITIONS = 4


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def wait_until(done: Callable[[], bool], what: str) -> None:
    """Looks again and again: what is waited for happens in other processes."""
    again, deadline = threading.Event(), PATIENCE_S
    while not done():
        again.wait(0.05)
        deadline -= 0.05
        assert deadline > 0, what


def is_done(store: logstore.Store, group: str) -> bool:
    return all(each.position == each.end for each in lag(store, group))


def all_of(store: logstore.Store) -> set[Seen]:
    return {(record.partition, record.offset or 0) for record in store.topic(TOPIC).records()}


def check_commits(everybody: list[MemberProcess]) -> None:
    """No record is committed by two. Who was taken for dead wrongly, on a busy machine, has done nothing worse than handle
    records that another handles, too: its commit was refused."""
    committed = [each for worker in everybody for each in worker.committed]
    assert len(committed) == len(set(committed))


def test_P01_P02_kill_9_no_record_is_skipped_and_no_committed_one_is_seen_again(url: str) -> None:
    with logstore.open(url) as store:
        topic = store.create_topic(TOPIC, partitions=PARTITIONS)
        with members(url, "g", TOPIC, 3, timeout=1.0) as workers:
            wait_until(lambda: all(describe(store, "g").members.values()), "each has a share")
            for number in range(300):
                topic.append(b"%d" % number, ack="buffered")
            store.flush()
            workers[0].wait_for("record", 20)
            workers[0].end(signal.SIGKILL)
            workers.append(MemberProcess(url, "g", TOPIC, timeout=1.0, batch=20))
            for number in range(300, 600):
                topic.append(b"%d" % number, ack="buffered")
            store.flush()
            wait_until(lambda: is_done(store, "g"), "the others take over")
            for worker in workers[1:]:
                assert worker.end(signal.SIGTERM) == 0
            handled = [each for worker in workers for each in worker.handled]
            assert set(handled) == all_of(store)
            assert len(set(handled)) == 600
            check_commits(workers)
            for worker in workers:
                again = {each for other in workers if other is not worker for each in other.handled}
                unsaved = {each for other in workers for each in set(other.handled) - other.committed}
                assert worker.committed & again <= unsaved, "only what somebody had not saved"


def test_P01_a_clean_stop_hands_over_at_once_and_no_record_is_seen_twice(url: str) -> None:
    """The time-out is so long that the test would not end if anybody waited for it."""
    with logstore.open(url) as store:
        topic = store.create_topic(TOPIC, partitions=PARTITIONS)
        for number in range(200):
            topic.append(b"%d" % number, ack="buffered")
        store.flush()
        with members(url, "g", TOPIC, 1, timeout=6000.0, batch=3) as workers:
            for turn in range(3):
                workers[-1].wait_for("committed")
                assert workers[-1].end(signal.SIGTERM) == 0
                workers.append(MemberProcess(url, "g", TOPIC, timeout=6000.0, batch=200 if turn == 2 else 3))
            wait_until(lambda: is_done(store, "g"), "the last one handles the rest")
            assert workers[-1].end(signal.SIGTERM) == 0
        handled = [each for worker in workers for each in worker.handled]
        assert len(handled) == len(set(handled)) == 200
        assert describe(store, "g").members == {}


def test_P02_a_member_that_was_stopped_is_replaced_and_its_late_save_is_refused(url: str) -> None:
    with logstore.open(url) as store:
        topic = store.create_topic(TOPIC, partitions=PARTITIONS)
        with members(url, "g", TOPIC, 1, timeout=1.0, batch=1, hold=3) as workers:
            for number in range(400):
                topic.append(b"%d" % number, ack="buffered")
            store.flush()
            stalled = workers[0]
            stalled.wait_for("holding")
            stalled.stop()
            workers.append(MemberProcess(url, "g", TOPIC, timeout=1.0, batch=50))
            wait_until(lambda: is_done(store, "g"), "the other takes over")
            before = {(each.topic, each.partition): each.position for each in lag(store, "g")}
            stalled.go_on()
            stalled.wait_for("refused")
            assert {(each.topic, each.partition): each.position for each in lag(store, "g")} == before
            for worker in workers:
                assert worker.end(signal.SIGTERM) == 0
            check_commits(workers)
            handled = [each for worker in workers for each in worker.handled]
            assert set(handled) == all_of(store)


@pytest.mark.soak
@pytest.mark.s3
@pytest.mark.timeout(900)
@pytest.mark.parametrize("home", ["moto", "seaweedfs"])
def test_P01_P02_members_are_killed_again_and_again(home: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(home)
    url = server.url()
    with logstore.open(url) as store:
        topic = store.create_topic(TOPIC, partitions=8)
        with members(url, "g", TOPIC, 4, timeout=3.0) as workers:
            dead = []
            for turn in range(10):
                for number in range(200):
                    topic.append(b"%d-%d" % (turn, number), ack="buffered")
                store.flush()
                victim = workers[turn]
                victim.wait_for("record")
                victim.end(signal.SIGKILL)
                dead.append(victim)
                workers.append(MemberProcess(url, "g", TOPIC, timeout=3.0, batch=20))
                workers[-1].wait_for("ready")
            wait_until(lambda: is_done(store, "g"), "all of it is handled")
            for worker in workers[len(dead) :]:
                assert worker.end(signal.SIGTERM) == 0
        handled = [each for worker in workers for each in worker.handled]
        assert set(handled) == all_of(store)
        check_commits(workers)
