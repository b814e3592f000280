"""B08: a broker dies while it compacts the log of a coordinator: at any of its writes, another one finds what was acked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from broker_shim.partitions import state_log
from broker_shim.wire.codes import Code
from logstore.layout.broker import INTERNAL_TOPIC, TRANSACTION_TOPIC
from logstore.objects.homes.memory import MemoryStore
from logstore.objects.wrappers.wrapped import WrappedStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.load import commit, committed
from tests.support.broker.steps import make_topic
from tests.support.broker.transactions import Transactor, again

T = TypeVar("T")
Start = Callable[..., LocalBroker]
ONE: dict[str, Any] = {"offsets_partitions": 1}


class Images(WrappedStore):
    """Keeps what is in the store after each write, as it is for whoever starts then, and what was acked before."""

    def __init__(self) -> None:
        self._now = MemoryStore()
        super().__init__(self._now)
        self.acked = 0
        self.all: list[tuple[int, MemoryStore]] = []

    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        done = call()
        if operation in ("put", "delete"):
            image = MemoryStore()
            with self._now._lock:
                image._objects, image._keys = dict(self._now._objects), list(self._now._keys)
                image._version = self._now._version
            self.all.append((self.acked, image))
        return done


@pytest.fixture(params=[0, 1], ids=["chains", "lane"])
def lanes(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> Images:
    monkeypatch.setattr(state_log, "COMPACT_FROM_RECORDS", 12)
    monkeypatch.setattr(state_log, "SLICE_RECORDS", 2)
    return Images()


def was_compacted(broker: LocalBroker, topic: str) -> None:
    broker.until(lambda: low(broker, topic) > 10)


def low(broker: LocalBroker, topic: str) -> int:
    hosted = broker.server.broker.partitions.hosted(topic, 0)
    return 0 if hosted is None else hosted.low_watermark


def test_B08_committed_offsets_survive_a_kill_at_every_write_of_a_compaction(
    start_broker: Start, images: Images, lanes: int
) -> None:
    broker = start_broker(images, lanes=lanes, **ONE)
    groups = [f"g{number}" for number in range(5)]
    with Wire(broker.port) as wire:
        make_topic(wire)
        for number in range(40):
            assert commit(wire, groups[number % len(groups)], number) == Code.NONE
            images.acked = number + 1
        was_compacted(broker, INTERNAL_TOPIC)
    for acked, image in images.all:
        with LocalBroker(image, lanes=lanes, node_id=2, **ONE) as next_one, Wire(next_one.port) as wire:
            for place, group in enumerate(groups):
                newest = max((number for number in range(place, acked, len(groups))), default=-1)
                if newest >= 0:
                    assert committed(wire, group) in (newest, newest + len(groups))


def test_B14_transactional_ids_survive_a_kill_at_every_write_of_a_compaction(
    start_broker: Start, images: Images, lanes: int
) -> None:
    """Who begins again under its id is known: it gets a later epoch of the same producer."""
    broker = start_broker(images, lanes=lanes, **ONE)
    told: list[tuple[str, int, int]] = []
    with Wire(broker.port) as wire:
        for number in range(40):
            producer = Transactor(wire, f"tx{number % 5}")
            assert again(producer.init) is Code.NONE
            told.append((producer.name, producer.producer_id, producer.epoch))
            images.acked = len(told)
        was_compacted(broker, TRANSACTION_TOPIC)
    for acked, image in images.all:
        last = {name: (producer_id, epoch) for name, producer_id, epoch in told[:acked]}
        with LocalBroker(image, lanes=lanes, node_id=2, **ONE) as next_one, Wire(next_one.port) as wire:
            for name, (producer_id, epoch) in last.items():
                producer = Transactor(wire, name)
                assert again(producer.init) is Code.NONE
                assert producer.producer_id == producer_id
                assert producer.epoch > epoch
