"""What operators touch: flags, environment, logs, health, metrics. And the object store of last resort: real S3."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from broker_shim import logs
from broker_shim.__main__ import parse
from broker_shim.config import BrokerConfig
from broker_shim.metrics import Counters, render, writer_samples
from broker_shim.server import Server
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import FaultyStore
from logstore.writers import WriterMetrics
from tests.docs import metrics_page
from tests.support.broker.clients import Confluent, Sent
from tests.support.broker.harness import BrokerProcess, LocalBroker, Wire
from tests.support.broker.steps import batch, owned
from tests.support.engine.harness import until
from tests.support.patience import PATIENCE_S


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_B10_flags_beat_the_environment_and_both_beat_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_SHIM_STORE", "memory://from-env")
    monkeypatch.setenv("BROKER_SHIM_FLUSH_ON_ACK", "false")
    monkeypatch.setenv("BROKER_SHIM_NODE_ID", "7")
    config = parse(["--node-id", "9"])
    assert (config.store, config.flush_on_ack, config.node_id) == ("memory://from-env", False, 9)
    assert config.num_partitions == BrokerConfig(store="x").num_partitions
    assert parse(["--flush-on-ack"]).flush_on_ack is True


def test_B10_every_setting_is_a_flag_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for field in fields(BrokerConfig):
        assert "--" + field.name.replace("_", "-") in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "no store"),
        (["--store", "memory://x", "--listen", "nowhere"], "host:port"),
        (["--store", "memory://x", "--listen", "0.0.0.0:9092"], "--insecure"),
        (["--store", "memory://x", "--listen", "0.0.0.0:9092", "--insecure"], "--advertise"),
        (["--store", "memory://x", "--listen", "[::]:9092", "--insecure"], "--advertise"),
        (["--store", "memory://x", "--listen", ":9092", "--insecure"], "--advertise"),
        (["--store", "memory://x", "--advertise", "0.0.0.0:9092"], "--advertise"),
        (["--store", "memory://x", "--tls-cert", "c.pem"], "go together"),
        (["--store", "memory://x", "--flush-on-ack", "maybe"], "it is true or false"),
        (["--store", "memory://x", "--heartbeat-interval", "5"], "three times"),
        (["--store", "memory://x", "--no-such-flag"], "unrecognized"),
        (["--store", "memory://x", "--log-level", "loud"], "debug, info, warning, error"),
        (["--store", "memory://x", "--num-partitions", "0"], "--num-partitions is more than 0"),
        (["--store", "memory://x", "--offsets-partitions", "0"], "--offsets-partitions is more than 0"),
        (["--store", "memory://x", "--stall-timeout", "0"], "--stall-timeout is more than 0"),
        (["--store", "memory://x", "--drain-timeout", "-1"], "--drain-timeout is a number from 0 on"),
        (["--store", "memory://x", "--flush-interval", "nan"], "--flush-interval is a number from 0 on"),
    ],
)
def test_B10_a_flag_that_makes_no_sense_exits_with_2_and_a_reason(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKER_SHIM_STORE", raising=False)
    with pytest.raises(SystemExit) as stopped:
        parse(arguments)
    assert stopped.value.code == 2
    assert reason in capsys.readouterr().err


def test_B10_health_readiness_and_metrics_of_a_running_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with BrokerProcess(
        f"file://{tmp_path}/store", "--metrics", "127.0.0.1:0", "--log-format", "json", log=log
    ) as broker:
        Confluent().produce(broker.address, "t", [(b"k", b"v" * 100, [])])
        port = broker.metrics_port
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/readyz") == (200, "ready\n")
        assert get(port, "/nowhere")[0] == 404
        metrics = dict(line.rsplit(" ", 1) for line in _without_types(get(port, "/metrics")[1]))
        assert float(metrics['broker_shim_requests_total{api="PRODUCE"}']) >= 1
        assert float(metrics["broker_shim_produced_bytes_total"]) >= 100
        assert float(metrics["broker_shim_produce_seconds_count"]) >= 1
        assert metrics["broker_shim_owned_partitions"] == "1"
        writer = '{topic="t",partition="0",mode="exclusive"}'
        assert metrics[f"broker_shim_writer_frontier{writer}"] == "1"
        assert metrics[f"broker_shim_writer_stalled{writer}"] == "0"
        assert float(metrics["broker_shim_store_reachable"]) == 1
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"time", "level", "logger", "message"} <= entries[0].keys()
    assert entries[-1]["message"] == "stopped"


def test_O01_the_metrics_port_has_what_the_page_says_and_nothing_else(
    start_broker: Callable[..., LocalBroker],
) -> None:
    broker = start_broker(metrics="127.0.0.1:0")
    with Wire(broker.port) as client:
        owned(client, broker)
        client.produce("t", batch(b"x"))
    lines = _without_types(get(broker.server.metrics_port, "/metrics")[1])
    known = metrics_page.names()
    shown = {line.split("{")[0].split(" ")[0] for line in lines}
    shown = {name if name in known else re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    assert shown <= known
    assert {"logstore_requests_total", "broker_shim_produce_seconds", "logstore_flush_seconds"} <= shown


def test_O02_the_metrics_port_has_the_page_on_loopback_or_with_a_token(
    start_broker: Callable[..., LocalBroker],
) -> None:
    broker = start_broker(metrics="127.0.0.1:0")
    with Wire(broker.port) as client:
        owned(client, broker)
        client.produce("t", batch(b"x"))
    port = broker.server.metrics_port
    assert "<title>logstore</title>" in get(port, "/")[1]
    until(lambda: '"name": "t"' in get(port, "/api/now?topic=t")[1])
    assert json.loads(get(port, "/api/records?topic=t&partition=0")[1])["records"][0]["offset"] == 0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/events?topic=t", timeout=PATIENCE_S) as stream:
        assert stream.readline().startswith(b"data: {")  # and the broker stops although somebody listens
    guarded = start_broker(metrics="127.0.0.1:0", ui_token="s3cret")
    assert get(guarded.server.metrics_port, "/")[0] == 403
    assert get(guarded.server.metrics_port, "/?token=s3cret")[0] == 200
    assert get(guarded.server.metrics_port, "/healthz")[0] == 200


def test_O01_O02_kafka_groups_and_open_transactions_are_on_the_page_and_in_the_metrics(
    start_broker: Callable[..., LocalBroker],
) -> None:
    broker = start_broker(metrics="127.0.0.1:0")
    port = broker.server.metrics_port
    with Wire(broker.port) as client:
        owned(client, broker)
        for value in (b"a", b"b", b"c"):
            client.produce("t", batch(value))
    servers = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
    reader = confluent_kafka.Consumer({**servers, "group.id": "mailer", "enable.auto.commit": False})
    committed = reader.commit(offsets=[confluent_kafka.TopicPartition("t", 0, 1)], asynchronous=False)
    assert committed[0].error is None
    reader.close()
    producer = confluent_kafka.Producer({**servers, "transactional.id": "billing"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", b"d", partition=0)
    assert producer.flush(PATIENCE_S) == 0

    def now() -> dict[str, Any]:
        told: dict[str, Any] = json.loads(get(port, "/api/now")[1])
        return told

    until(lambda: bool(now()["readers"]) and bool(now()["transactions"]))
    (group,) = now()["readers"]
    assert (group["reader"], group["topic"], group["partition"]) == ("mailer", "t", 0)
    behind = broker.server.store.topic("t").partition(0).buffered_high_watermark - 1
    assert behind >= 3, "b, c and what is not committed yet"
    assert group["lag"] == behind
    (held,) = now()["transactions"]
    assert (held["id"], held["state"], held["partitions"]) == ("billing", "Ongoing", ["t/0"])
    shown = get(port, "/metrics")[1]
    assert f'logstore_reader_lag_records{{reader="mailer",topic="t",partition="0"}} {behind}' in shown
    assert "broker_shim_open_transactions 1" in shown
    producer.commit_transaction(PATIENCE_S)
    until(lambda: now()["transactions"] == [])
    assert "broker_shim_open_transactions 0" in get(port, "/metrics")[1]


def test_B10_not_ready_while_the_store_is_down(start_broker: Callable[..., LocalBroker]) -> None:
    store = FaultyStore(MemoryStore(), seed=1)
    broker = start_broker(store, metrics="127.0.0.1:0")
    port = broker.server.metrics_port
    with Wire(broker.port) as client:
        owned(client, broker)
        assert get(port, "/readyz")[0] == 200
        store.down()
        client.produce("t", batch(b"x"), timeout=100)
        broker.until(lambda: broker.server.broker.problem is not None)
        assert get(port, "/readyz") == (503, "the object store cannot be reached\n")
        assert get(port, "/healthz")[0] == 200
        store.heal()
        broker.until(lambda: broker.server.broker.problem is None)


def test_B09_a_broker_whose_metrics_port_is_taken_is_not_left_standing_as_alive() -> None:
    store = MemoryStore()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = BrokerConfig(store="memory://unused", listen="127.0.0.1:0", metrics=address)
        with pytest.raises(OSError, match="in use"):
            asyncio.run(Server(config, store).start())
    assert list(store.list("broker/node/")) == []


def test_B10_the_http_port_answers_nothing_but_get(start_broker: Callable[..., LocalBroker]) -> None:
    broker = start_broker(metrics="127.0.0.1:0")
    request = urllib.request.Request(
        f"http://127.0.0.1:{broker.server.metrics_port}/metrics", method="DELETE"
    )
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request, timeout=PATIENCE_S)


def test_B10_large_numbers_are_shown_to_the_last_digit() -> None:
    text = render([("a", {}, 123_456_789), ("b", {}, (1 << 53) + 1), ("c", {}, 0.25), ("d", {}, True)])
    assert _without_types(text) == ["a 123456789", "b 9007199254740993", "c 0.25", "d 1"]


def test_B10_samples_of_one_metric_stand_together_below_its_type() -> None:
    """As the text format demands: a strict parser refuses a metric that comes in two pieces."""
    counters = Counters()
    counters.produced(0.002)
    writer = WriterMetrics("t", 0, "", "exclusive", "idle", 1, 2, 0, 0, 0, 0.5, None)
    samples = [*counters.samples(), *writer_samples([writer, writer._replace(partition=1)])]
    lines = render(samples).splitlines()
    types = [line.split()[2:] for line in lines if line.startswith("#")]
    assert ["broker_shim_produce_seconds", "histogram"] in types
    assert ["broker_shim_produced_bytes_total", "counter"] in types
    assert ["broker_shim_writer_lag", "gauge"] in types
    assert len({name for name, _ in types}) == len(types), "each metric is announced once"
    for place, line in enumerate(lines):
        if line.startswith("broker_shim_writer_lag"):
            assert lines[place - 1].startswith(("# TYPE broker_shim_writer_lag ", "broker_shim_writer_lag{"))


def _without_types(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("# TYPE ")]


def test_B10_a_stalled_writer_is_shown_with_the_offset_that_holds_it() -> None:
    writer = WriterMetrics(
        "t", 3, "replica-1", "replicated", "stalled", 4, 1_000_000, 7, 12, 5, 61.5, 1_000_000
    )
    lines = _without_types(render(writer_samples([writer])))
    labels = '{topic="t",partition="3",mode="replicated",writer="replica-1"}'
    assert lines == [
        f"broker_shim_writer_epoch{labels} 4",
        f"broker_shim_writer_frontier{labels} 1000000",
        f"broker_shim_writer_lag{labels} 7",
        f"broker_shim_writer_dropped_below_upper_total{labels} 12",
        f"broker_shim_writer_races_lost_total{labels} 5",
        f"broker_shim_writer_last_progress_seconds{labels} 61.5",
        f"broker_shim_writer_stopped{labels} 0",
        f"broker_shim_writer_stalled{labels} 1",
        f"broker_shim_writer_stalled_at_offset{labels} 1000000",
    ]
    moving = render(writer_samples([writer._replace(stalled_at=None)]))
    assert "stalled_at_offset" not in moving
    assert f"broker_shim_writer_stalled{labels} 0" in moving


def test_B10_metrics_are_a_true_histogram() -> None:
    counters = Counters()
    for seconds in (0.0005, 0.002, 0.002, 99.0):
        counters.produced(seconds)
    counters.errors['a"b\nc'] += 1
    text = render(counters.samples())
    assert 'broker_shim_produce_seconds_bucket{le="0.0025"} 3' in text
    assert 'broker_shim_produce_seconds_bucket{le="+Inf"} 4' in text
    assert 'broker_shim_errors_total{code="a\\"b\\nc"} 1' in text


def test_B10_a_log_line_is_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "it %s", ("broke",), (type(error), error, error.__traceback__)
        )
    assert "\n" not in logs.OneLine().format(record)
    assert json.loads(logs.Json().format(record))["message"] == "it broke"


def test_B10_it_runs_on_the_standard_event_loop_too(start_broker: Callable[..., LocalBroker]) -> None:
    import asyncio

    broker = start_broker(loop_factory=asyncio.SelectorEventLoop)
    records: list[Sent] = [(b"k", b"%d" % i * 1000, []) for i in range(300)]
    Confluent().produce(broker.address, "t", records)
    found = Confluent().consume(broker.address, "t", 300)
    assert [value for _, _, value, _ in found] == [value for _, value, _ in records]


@pytest.mark.s3
def test_B02_on_a_real_s3_server(seaweed_url: Callable[[], str], tmp_path: Path) -> None:
    url = seaweed_url()
    with BrokerProcess(url, log=tmp_path / "log") as broker:
        Confluent().produce(broker.address, "t", [(b"k", b"%d" % i, []) for i in range(50)])
    with BrokerProcess(url, log=tmp_path / "log") as again:
        found = Confluent().consume(again.address, "t", 50)
        assert [value for _, _, value, _ in found] == [b"%d" % i for i in range(50)]
