"""Spark's commit on a topic that a service writes alone: which of the two goes on, and who is told what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.errors import PartitionInUse
from logstore.objects import LocalStore, ObjectStore
from logstore.process.presence import Machine
from logstore.spark.options.write_options import write_options
from logstore.spark.write.publish import store_job, store_once
from logstore.spark.write.txn_ledger import Ledger
from tests.support.engine.other_process import OtherProcess
from tests.support.spark.staging import PARTITIONS, QUERY, keys, stage

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    home = LocalStore(tmp_path)
    with logstore.open(home) as opened:
        opened.create_topic("out", partitions=PARTITIONS)
    return home


def sizes(store: ObjectStore) -> list[int]:
    with logstore.open(store, writer="read_only") as opened:
        topic = opened.topic("out")
        return [topic.partition(number).durable_high_watermark for number in range(PARTITIONS)]


@pytest.mark.parametrize("publish", [store_once, store_job])
def test_W17_a_job_stops_no_service_and_stores_nothing_at_all(
    store: ObjectStore, tmp_path: Path, publish: Callable[..., None]
) -> None:
    """The service has one partition of three: the job is refused before it has touched the others."""
    with OtherProcess(tmp_path, "out") as service:
        assert service.append("from the service", partition=1) == [1, 0]
        parts = stage(store, QUERY, 5)
        with pytest.raises(PartitionInUse, match=f"out/1: process {service.pid} "):
            publish(store, QUERY, parts)
        assert sizes(store) == [0, 1, 0]
        assert Ledger(store, QUERY).pending() is None
        assert service.append("goes on", partition=1) == [1, 1]
        publish(store, QUERY, parts, True)
        assert sum(sizes(store)) == 2 + len(keys(5))
        assert service.append("stopped", partition=1)["error"] == "Fenced"


def test_W17_from_another_machine_a_job_cannot_know_so_it_asks(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logstore.open(store) as service:
        service.topic("out").append(b"x", key=b"k")
    stranger = Machine(b"another machine.", 1, 1)
    with monkeypatch.context() as patched:
        patched.setattr("logstore.process.presence.this_machine", lambda: stranger)
        with pytest.raises(PartitionInUse, match="has not said that it closed"):
            store_job(store, QUERY, stage(store, QUERY, 5))
    store_job(store, QUERY, stage(store, QUERY, 5))  # here the kernel says that its store is closed
    assert sum(sizes(store)) == 1 + len(keys(5))


def test_W17_a_service_that_opens_behind_a_job_joins_and_the_next_job_goes_on(store: ObjectStore) -> None:
    store_job(store, QUERY, stage(store, QUERY, 5))
    with logstore.open(store) as service:
        for number in range(PARTITIONS):
            service.topic("out").append(b"x", partition=number)
        store_once(store, QUERY, stage(store, QUERY, 6))
        assert sum(sizes(store)) == len(keys(5)) + PARTITIONS + len(keys(6))
        for number in range(PARTITIONS):
            service.topic("out").append(b"not stopped", partition=number)
    assert len(set(stored_values(store)) & set(keys(5) + keys(6))) == 120


def stored_values(store: ObjectStore) -> list[bytes]:
    with logstore.open(store, writer="read_only") as opened:
        topic = opened.topic("out")
        return [record.value or b"" for n in range(PARTITIONS) for record in topic.partition(n).records()]


def test_W17_the_option_says_take_over() -> None:
    for given, expected in ({}, False), ({"takeOver": "true"}, True), ({"takeover": "False"}, False):
        options = write_options({"path": "s3://b", "topic": "out", **given}, streaming=False)
        assert options.take_over is expected
    with pytest.raises(ValueError, match="takeOver='yes': it is true or false"):
        write_options({"path": "s3://b", "takeOver": "yes"}, streaming=False)
