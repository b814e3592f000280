"""The numbers of a store as a Prometheus server gets them: right, cheap to ask for, and all of them documented."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import logstore
from logstore.cost.prices import EXPRESS, STANDARD
from logstore.ingest import FlushTracker
from logstore.metrics import FAMILIES, collector
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.patience import PATIENCE_S


def scrape(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample by its name and labels, as the text format has them."""
    lines = generate_latest(registry).decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_O01_appends_flushes_and_requests_are_counted_as_they_were_made(registry: CollectorRegistry) -> None:
    with logstore.open(MemoryStore(), flush_interval=3600) as store:
        collector(store, registry=registry)
        topic = store.create_topic("t", partitions=2)
        for _ in range(3):
            topic.append(b"durable", partition=0)
        topic.partition(1).append([b"a", b"b"], ack="durable")
        for _ in range(5):
            topic.append(b"buffered", partition=0, ack="buffered")
        found = scrape(registry)
        assert found['logstore_appended_records_total{ack="durable",topic="t"}'] == 5
        assert found['logstore_appended_records_total{ack="buffered",topic="t"}'] == 5
        assert found['logstore_durable_lag_records{topic="t"}'] == 5
        assert found['logstore_flushed_records_total{topic="t"}'] == 5
        assert found["logstore_buffered_bytes"] > 0
        held = found['logstore_appended_bytes_total{topic="t"}']
        store.flush()
        found = scrape(registry)
        assert found['logstore_appended_records_total{ack="buffered",topic="t"}'] == 5
        assert found['logstore_durable_lag_records{topic="t"}'] == 0
        assert found['logstore_durable_lag_seconds{topic="t"}'] == 0
        assert found['logstore_flushed_records_total{topic="t"}'] == 10
        assert found['logstore_appended_bytes_total{topic="t"}'] == held, "it does not matter where they are"
        flushes = found['logstore_flushes_total{topic="t"}']
        assert found['logstore_flush_seconds_count{topic="t"}'] == flushes
        assert found['logstore_durable_ack_seconds_count{topic="t"}'] == flushes - 1, (
            "one moved a reservation alone"
        )
        puts = store.metrics()["put"].requests
        answers = [
            value
            for name, value in found.items()
            if name.startswith('logstore_requests_total{operation="put"')
        ]
        assert sum(answers) == puts
        assert found['logstore_request_seconds_count{operation="put"}'] == puts
        assert found['logstore_cost_dollars_total{operation="put"}'] == pytest.approx(puts * 5e-6)


def test_O01_counters_outlive_a_writer_and_say_what_it_took_along(registry: CollectorRegistry) -> None:
    objects = MemoryStore()
    with (
        pytest.raises(logstore.OutcomeUnknown, match="offsets 1 to 2"),
        logstore.open(objects, flush_interval=3600) as store,
        logstore.open(objects) as other,
    ):
        collector(store, registry=registry)
        log = store.create_topic("t").partition(0)
        log.append(b"stored")
        log.append([b"a", b"b"], ack="buffered")
        other.topic("t").partition(0).append(b"the owner now")
        with pytest.raises(logstore.Fenced):
            log.append(b"too late")
        found = scrape(registry)
        assert found['logstore_fenced_total{topic="t"}'] == 1
        assert found['logstore_dropped_records_total{topic="t"}'] == 3
        assert found['logstore_partitions{state="stopped",topic="t"}'] == 1
        taken = found['logstore_appended_records_total{ack="durable",topic="t"}']
        log.reopen().append(b"back")
        found = scrape(registry)
        assert found['logstore_appended_records_total{ack="durable",topic="t"}'] == taken + 1
        store.delete_topic("t")
        assert not any('topic="t"' in name for name in scrape(registry)), "nothing is kept of a deleted topic"


def test_O01_local_acks_and_shared_writers_are_counted_too(
    registry: CollectorRegistry, tmp_path: object
) -> None:
    with logstore.open(MemoryStore(), wal_dir=str(tmp_path), flush_interval=3600) as store:
        collector(store, registry=registry)
        store.create_topic("local").append(b"x", ack="local")
        found = scrape(registry)
        assert found['logstore_appended_records_total{ack="local",topic="local"}'] == 1
        assert found['logstore_local_ack_seconds_count{topic="local"}'] == 1
    objects, shared = MemoryStore(), CollectorRegistry()
    with (
        logstore.open(objects, writer="shared") as one,
        logstore.open(objects, writer="shared") as two,
    ):
        collector(one, registry=shared)
        topic = one.create_topic("shared")
        for number in range(4):
            topic.append(b"one")
            two.topic("shared").append(b"two %d" % number)
        found = scrape(shared)
        assert found['logstore_appended_records_total{ack="durable",topic="shared"}'] == 4
        assert found['logstore_flushed_records_total{topic="shared"}'] == 4
        assert found['logstore_durable_ack_seconds_count{topic="shared"}'] == 4


def test_O01_several_stores_of_a_process_are_told_apart_and_a_registry_takes_one_collector(
    registry: CollectorRegistry,
) -> None:
    with logstore.open(MemoryStore()) as orders, logstore.open(MemoryStore()) as audit:
        for store, count in ((orders, 2), (audit, 3)):
            store.create_topic("t").append_many([b"x"] * count)
        both = collector(
            {"orders": orders, "audit": audit}, registry=registry, readers={"r": lambda: {("t", 0): 7}}
        )
        found = scrape(registry)
        assert found['logstore_flushed_records_total{store="orders",topic="t"}'] == 2
        assert found['logstore_flushed_records_total{store="audit",topic="t"}'] == 3
        assert found['logstore_flush_seconds_count{store="audit",topic="t"}'] == 1
        assert found['logstore_reader_lag_records{partition="0",reader="r",topic="t"}'] == 7
        assert generate_latest(registry).count(b"# TYPE logstore_flushes_total counter") == 1
        with pytest.raises(ValueError, match=r"collector\(\{"):
            collector(audit, registry=registry)
        registry.unregister(both)
        collector(audit, registry=registry)
        assert scrape(registry)['logstore_flushed_records_total{topic="t"}'] == 3


def test_O01_replicated_writers_are_counted_too(registry: CollectorRegistry) -> None:
    with logstore.open(MemoryStore()) as store:
        collector(store, registry=registry)
        writer = store.create_topic("t").partition(0).replicated("a")
        writer.compare_and_append([b"x", b"y"], 0, 2)
        found = scrape(registry)
        assert found['logstore_flushed_records_total{topic="t"}'] == 2
        assert found['logstore_appended_records_total{ack="durable",topic="t"}'] == 2


def test_O01_failures_retries_and_a_full_buffer_are_seen(registry: CollectorRegistry) -> None:
    objects = FaultyStore(MemoryStore(), seed=1)
    with logstore.open(objects, max_buffered_bytes=20_000, probe_interval=0.01) as store:
        collector(store, registry=registry)
        log = store.create_topic("t").partition(0)
        log.append(b"x")
        objects.fail("put", with_=Fault.UNAVAILABLE, times=2)
        log.append(b"y")
        objects.fail("list", with_=Fault.UNAVAILABLE)
        assert store.topics() == ["t"]
        down = objects.down()
        with pytest.raises(logstore.BufferFull):
            while True:
                log.submit(b"z" * 5000, timeout=0)
        found = scrape(registry)
        objects.remove(down)
        assert found['logstore_flush_failures_total{topic="t"}'] >= 2
        assert found["logstore_request_retries_total"] == 1
        assert found["logstore_buffer_full_total"] == 1
        assert any("outcome=" in name and 'outcome="ok"' not in name for name in found)


def test_O01_a_store_that_hangs_is_degraded_with_its_reason_before_it_is_stalled(
    registry: CollectorRegistry,
) -> None:
    objects, clock = GatedStore(MemoryStore()), ManualClock()
    with logstore.open(objects, clock=clock, stall_after=60) as store:
        store._metered._clock = clock.monotonic
        collector(store, registry=registry)
        log = store.create_topic("t").partition(0)
        log.append(b"x")
        with objects.hold("put") as gate:
            waiting = log.submit(b"y")
            gate.wait_held()
            assert store.health()["degraded"] is None
            clock.advance(5.5)
            health = store.health()
            assert health["degraded"].endswith("has had no answer for 5.5 s")
            assert health["degraded"].startswith("put lanes/")
            assert not health["stalled"]
            found = scrape(registry)
            assert found["logstore_store_degraded"] == 1
            assert found["logstore_store_stalled"] == 0
            assert found["logstore_unanswered_seconds"] == pytest.approx(5.5)
            assert found['logstore_durable_lag_seconds{topic="t"}'] == pytest.approx(5.5)
        waiting.result(PATIENCE_S)
        assert store.health()["degraded"] is None


def test_O01_by_partition_has_the_watermarks_and_handed_in_lags_are_shown(
    registry: CollectorRegistry,
) -> None:
    tracker: FlushTracker[int] = FlushTracker(0, lambda boundary: None)
    tracker.register("sink")
    tracker.commit(7, ["sink"])
    with logstore.open(MemoryStore()) as store:
        collector(
            store,
            registry=registry,
            by="partition",
            readers={"mailer": lambda: {("t", 1): 4}},
            trackers={"orders": tracker},
        )
        store.create_topic("t", partitions=2).partition(1).append([b"a", b"b"])
        found = scrape(registry)
    assert found['logstore_durable_high_watermark{partition="1",topic="t"}'] == 2
    assert found['logstore_writer_epoch{partition="1",topic="t"}'] == 1
    assert found['logstore_flushed_records_total{partition="1",topic="t"}'] == 2
    assert found['logstore_reader_lag_records{partition="1",reader="mailer",topic="t"}'] == 4
    assert found['logstore_tracker_outstanding{tracker="orders"}'] == 1
    assert 'logstore_tracker_oldest_seconds{tracker="orders"}' in found


def test_O01_the_catalogue_has_every_family_and_every_label_that_is_ever_shown(
    registry: CollectorRegistry,
) -> None:
    with logstore.open(MemoryStore()) as store:
        made = collector(store, by="partition", readers={"r": lambda: {("t", 0): 0}})
        store.create_topic("t").append(b"x")
        for metric in made.collect():
            name = metric.name + ("_total" if metric.type == "counter" else "")
            family = FAMILIES[name]
            assert family.kind == metric.type
            for sample in metric.samples:
                assert set(sample.labels) <= {*family.labels, "le", "partition"}, name
        assert {metric.name for metric in made.describe()} == {
            name.removesuffix("_total") for name in FAMILIES
        }


def test_O04_requests_are_priced_as_their_storage_class_is(registry: CollectorRegistry) -> None:
    assert STANDARD.of("put", 1e6, 0) == pytest.approx(5.0)
    assert STANDARD.of("get", 1e6, 1e9) == pytest.approx(0.4)
    assert EXPRESS.of("put", 1e6, 1e9) == pytest.approx(1.13 + 0.0032)
    assert STANDARD.of("delete", 1e6, 0) == 0
    with logstore.open(MemoryStore()) as store:
        collector(store, registry=registry, storage="express")
        store.create_topic("t").append(b"x")
        puts = store.metrics()["put"]
        assert scrape(registry)['logstore_cost_dollars_total{operation="put"}'] == pytest.approx(
            EXPRESS.of("put", puts.requests, puts.bytes)
        )
        with pytest.raises(ValueError, match="storage='gold'"):
            collector(store, storage="gold")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="by='shelf'"):
            collector(store, by="shelf")  # type: ignore[arg-type]
