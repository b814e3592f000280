"""The fixtures that users get: each does what its docstring says, in a test run of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_S

pytest_plugins = ["pytester"]

SUITE = """
import confluent_kafka
import pytest
import logstore

def test_a_store(logstore_store):
    assert logstore_store.create_topic("t").append(b"x").offset == 0

def test_is_a_new_one(logstore_store, logstore_memory):
    assert logstore_store.topics() == []
    with logstore.open(logstore_memory) as second:
        second.create_topic("shared")
    assert logstore_store.topics() == ["shared"]

@pytest.mark.logstore(writer="read_only")
@pytest.mark.xfail(raises=logstore.UnsupportedStore, reason="there is nothing to read", strict=True)
def test_settings(logstore_store):
    pass

@pytest.mark.logstore(flush_interval=60)
def test_the_clock_stands_still_until_it_is_moved(logstore_store, logstore_clock):
    log = logstore_store.create_topic("t").partition(0)
    receipt = log.append(b"x", ack="buffered")
    assert log.durable_high_watermark == 0
    logstore_clock.advance(61)
    receipt.wait_durable(30)

def test_faults(logstore_store, logstore_faults):
    topic = logstore_store.create_topic("t")
    topic.append(b"x")
    logstore_faults.down()
    with pytest.raises(logstore.AppendTimeout):
        topic.append(b"y", timeout=0.01)

def test_latency(logstore_store, logstore_slow):
    logstore_store.create_topic("t").append(b"x")
    assert logstore_store.metrics()["put"].latency_s(0.5) > 0.001

def test_kafka(logstore_broker):
    producer = confluent_kafka.Producer({"bootstrap.servers": logstore_broker.address})
    producer.produce("orders", b"paid")
    assert producer.flush(30) == 0
    (record,) = logstore_broker.store.topic("orders").partition(0).records()
    assert record.value == b"paid"
"""


def test_every_fixture_does_what_it_says(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["logstore.testing.pytest_plugin"]')
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(passed=6, xfailed=1)


START = """
import sys
from logstore.testing.pytest_plugin import Broker
broker = Broker()
print({"kio", "hypothesis"} & set(sys.modules))
broker.stop()
"""


def test_a_broker_starts_without_the_messages_that_no_client_has_sent_yet() -> None:
    """kio, and hypothesis, which kio imports where it is installed, are half of what the first broker of a run takes."""
    done = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.strip() == "set()"


OWNED = """
import gc, sys
sys.modules["hypothesis"] = None
from broker_shim.__main__ import own_the_process
own_the_process()
print("kio.index" in sys.modules, gc.get_freeze_count() > 0)
"""


def test_B10_a_broker_of_its_own_process_has_them_before_its_first_request() -> None:
    """And before what is loaded is put out of the garbage collector's sight."""
    done = subprocess.run(
        [sys.executable, "-c", OWNED], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.strip() == "True True"
