"""What a store holds, at a glance: `topics`, `describe`, `ping`; also of a store with very many partitions."""

from __future__ import annotations

import gc
import json
import time

import pytest

import logstore
from logstore.cli import main, survey
from logstore.cli.survey import LOOK_MAX
from logstore.engine.chain import many_chains
from logstore.objects.wrappers.metered import MeteredStore
from tests.support.engine.harness import crash
from tests.support.engine.newer_release import newer_segment


def lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_topics_shows_records_bytes_age_retention_writer_and_cost(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logstore.open(url) as store:
        store.create_topic("empty")
        orders = store.create_topic("orders", 2, retention_seconds=604800)
        stamp = time.time_ns() // 1_000_000 - 5_000
        orders.partition(0).append([logstore.Record(b"x" * 1000, timestamp_ms=stamp)] * 3)
        size = sum(ref.size for ref in orders.partition(0).segments())
    assert main(["topics", "--json"]) == 0
    empty, found = lines(capfd)
    assert (empty["records"], empty["newest_seconds_ago"], empty["writer"]) == (0, None, "none")
    assert (found["records"], found["bytes"], found["segments"]) == (3, size, 1)
    assert (found["retention_seconds"], found["retention_bytes"], found["writer"]) == (
        604800,
        None,
        "exclusive",
    )
    assert 5 <= float(str(found["newest_seconds_ago"])) < 120
    assert found["storage_dollars_a_month"] == pytest.approx(size / 1e9 * 0.023)
    assert main(["topics"]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert shown[0].split() == [
        "topic",
        "partitions",
        "records",
        "size",
        "segments",
        "age",
        "kept",
        "writer",
        "a",
        "month",
    ]
    assert " 7 d " in shown[2]
    assert "for ever" in shown[1]


def test_topics_counts_records_and_not_what_was_lost(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    before = logstore.open(url, flush_interval=3600)
    log = before.create_topic("t").partition(0)
    log.append(b"stored")
    log.append(b"not stored", ack="buffered")
    crash(before)
    with logstore.open(url) as store:
        store.topic("t").partition(0).append(b"after")
    assert main(["topics", "--json"]) == 0
    (found,) = lines(capfd)
    assert found["records"] == 2
    assert int(str(found["offsets"])) > 2
    assert main(["describe", "t", "--json"]) == 0
    topic, partition = lines(capfd)
    assert (topic["records"], partition["records"], partition["epoch"]) == (2, 2, 2)


def test_describe_shows_the_settings_and_every_partition(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url, writer="shared") as store:
        store.create_topic("t", 3, retention_bytes=10**9).partition(1).append([b"a", b"b"])
    assert main(["describe", "t"]) == 0
    shown = capfd.readouterr().out
    assert "t: 3 partition(s), 2 records" in shown
    assert "retention-bytes 1.0 GB" in shown
    assert main(["describe", "t", "-p", "1", "--json"]) == 0
    _, partition = lines(capfd)
    assert (partition["partition"], partition["durable"], partition["writer"]) == (1, 2, "shared")
    assert main(["describe", "nope"]) == 1


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every request of every store from here on."""
    made: list[str] = []
    monkeypatch.setattr(
        MeteredStore, "_count", lambda self, operation, *args, **options: made.append(operation)
    )
    return made


def test_partitions_in_no_lane_are_listed_by_the_catalog_alone_unless_all_are_asked_for(
    url: str, capfd: pytest.CaptureFixture[str], requests: list[str]
) -> None:
    """10,000 partitions: the few of the first topic are looked at, the others cost one request for each topic."""
    with logstore.open(url, lanes=0) as store:
        store.create_topic("a", 2).partition(0).append(b"x")
        for name in ("b", "c"):
            store.create_topic(name, 5_000)
    requests.clear()
    assert main(["topics", "--json"]) == 0
    a, b, c = lines(capfd)
    assert (a["records"], b["records"], c["partitions"]) == (1, None, 5000)
    assert len(requests) < 4 * LOOK_MAX
    assert main(["topics"]) == 0
    assert "…" in capfd.readouterr().out
    with logstore.open(url, lanes=0) as store:
        store.create_topic("d", LOOK_MAX)
    assert main(["topics", "--exact", "--json"]) == 0
    assert lines(capfd)[-1]["records"] == 0


def test_partitions_that_nobody_has_written_are_known_by_the_lane_in_which_their_topic_begins(
    url: str, capfd: pytest.CaptureFixture[str], requests: list[str]
) -> None:
    with logstore.open(url) as store:
        store.create_topic("wide", 5_000).partition(7).append(b"x")
    requests.clear()
    assert main(["topics", "--json"]) == 0
    (found,) = lines(capfd)
    assert (found["partitions"], found["records"]) == (5000, 1)
    assert len(requests) < 40


def fill_a_lane(url: str, topics: int, partitions: int) -> None:
    with logstore.open(url, lanes=1, flush_interval=3600, close_timeout=3600) as store:
        made = [store.create_topic(f"t{number:04d}", partitions) for number in range(topics)]
        acks = [topic.partition(p).submit(b"x") for topic in made for p in range(partitions)]
        store.flush()
        assert all(ack.done() for ack in acks)


@pytest.mark.parametrize(
    ("topics", "partitions"),
    [
        (1, LOOK_MAX + 44),
        (30, 10),
        pytest.param(1, 10_000, marks=pytest.mark.soak),
        pytest.param(1_000, 10, marks=pytest.mark.soak),
    ],
)
def test_O01_all_partitions_of_a_lane_are_listed_with_a_few_requests(
    topics: int, partitions: int, url: str, capfd: pytest.CaptureFixture[str], requests: list[str]
) -> None:
    """More of them than are looked at one by one: what is in a lane comes with it."""
    fill_a_lane(url, topics, partitions)
    requests.clear()
    assert main(["topics", "--json"]) == 0
    found = lines(capfd)
    assert [row["records"] for row in found] == [partitions] * topics
    assert [row["segments"] for row in found] == [partitions] * topics
    # One for each topic's descriptor, and those of one lane: at most 63 entries behind its checkpoint.
    assert len(requests) <= topics + 80


def test_O01_nothing_is_collected_while_partitions_are_looked_at(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fill_a_lane(url, 1, 2)
    seen: list[bool] = []

    def load_some(*args: object) -> object:
        seen.append(gc.isenabled())
        return many_chains.load_some(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(survey, "load_some", load_some)
    assert main(["topics", "--json"]) == 0
    assert seen == [False]
    assert gc.isenabled()
    assert [row["records"] for row in lines(capfd)] == [2]


def test_partitions_in_no_lane_do_not_hide_those_in_one(
    url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logstore.cli.commands.topics.topics.LOOK_MAX", 6)
    with logstore.open(url, lanes=0) as store:
        store.create_topic("a", 40).partition(0).append(b"x")
    fill_a_lane(url, 2, 20)
    assert main(["topics", "--json"]) == 0
    assert [row["records"] for row in lines(capfd)] == [None, 20, 20]
    assert main(["topics", "--exact", "--json"]) == 0
    assert [row["records"] for row in lines(capfd)] == [1, 20, 20]
    assert main(["describe", "t0000", "-p", "3", "--json"]) == 0
    _, partition = lines(capfd)
    assert (partition["partition"], partition["records"]) == (3, 1)
    assert partition["lane"]


def test_a_partition_of_a_newer_release_spoils_its_own_topic_alone(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logstore.open(url) as store:
        for name in ("bad", "good"):
            store.create_topic(name).partition(0).append(b"x")
        paths = store.topic("bad").partition(0)._internal.paths
        store.objects.put(paths.segment(2), newer_segment(2, 1))
    assert main(["topics", "--json"]) == 1
    bad, good = lines(capfd)
    assert (bad["records"], good["records"]) == (None, 1)


def test_ping_times_the_store(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    logstore.open(url).close()
    assert main(["ping", "-c", "3", "--write", "--json"]) == 0
    found = lines(capfd)
    assert [row["operation"] for row in found] == ["get"] * 4 + ["put"] * 4
    assert float(str(found[3]["median_ms"])) > 0
    with logstore.open(url) as store:
        assert not list(store.objects.list("probe/"))
