"""B14 from the shell: what Kafka's transactions have committed, and nothing that is open or was aborted."""

from __future__ import annotations

import pytest

import logstore
from logstore.cli import main
from tests.support.engine.producers import Producers, record


@pytest.fixture
def orders(url: str) -> str:
    with logstore.open(url) as store:
        log = store.create_topic("orders").partition(0)
        producers = Producers(log)
        producers.store_snapshot(log._internal.objects)
        for pid, commit in ((1, True), (2, False), (3, True)):
            producers.send(pid, record("k", b"%d" % pid))
            producers.end(pid, commit=commit)
        producers.send(4, record("k", b"open"))
    return url


def test_B14_cat_and_tail_print_committed_records(orders: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["cat", "orders", "--committed"]) == 0
    assert capfd.readouterr().out.split() == ["1", "3"]
    assert main(["tail", "orders", "--committed", "-o", "beginning", "-c", "2"]) == 0
    assert capfd.readouterr().out.split() == ["1", "3"]
    assert main(["cat", "orders", "--durable"]) == 0
    assert capfd.readouterr().out.split() == ["1", "2", "3", "open"]
    assert main(["cat", "orders", "--durable", "--committed"]) == 0
    assert capfd.readouterr().out.split() == ["1", "3"], "what is committed is durable"
