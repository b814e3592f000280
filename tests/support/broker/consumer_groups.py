"""Members of groups of both protocols, by hand and by librdkafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka

from broker_shim.groups.consumer_group import Held
from broker_shim.groups.subscription import write_assignment
from broker_shim.wire import primitives
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from tests.support.broker.harness import Wire
from tests.support.broker.steps import batch, make_topic
from tests.support.patience import PATIENCE_S

QUICK = {"group_consumer_heartbeat_interval": 0.1, "offsets_partitions": 1}
GROUP = "team"


def consumer(address: str, **settings: Any) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )


def shares(consumers: Iterable[confluent_kafka.Consumer]) -> list[set[int]]:
    return [{each.partition for each in one.assignment()} for one in consumers]


def poll_until(
    consumers: list[confluent_kafka.Consumer], is_there: Callable[[], bool], found: list[Any] | None = None
) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_there():
        assert time.monotonic() < deadline, shares(consumers)
        for each in consumers:
            message = each.poll(0.02)
            if message is not None and message.error() is None and found is not None:
                found.append((message.partition(), message.offset(), message.value()))


def filled(client: Wire, partitions: int = 4, value: bytes = b"first") -> None:
    make_topic(client, partitions=partitions)
    for index in range(partitions):
        assert client.produce("t", batch(value), partition=index).error_code == Code.NONE


def beat(client: Wire, member: str, epoch: int, version: int = 1, group: str = GROUP, **said: Any) -> Any:
    joins = epoch == 0
    base = {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "rebalance_timeout": 60_000 if joins else -1,
        "subscribed_topic_names": ["t"] if joins else None,
        "topic_partitions": [] if joins else None,
    }
    return client.ask(Api.CONSUMER_GROUP_HEARTBEAT, version, **{**base, **said})


def given(answer: Any) -> set[int] | None:
    if answer.assignment is None:
        return None
    return {index for topic in answer.assignment.topic_partitions for index in topic.partitions}


def commit(client: Wire, member: str, epoch: int, offset: int = 1, version: int = 9) -> int:
    answer = client.ask(
        Api.OFFSET_COMMIT,
        version,
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=[
            {
                "name": "t",
                "partitions": [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}],
            }
        ],
    )
    return int(answer.topics[0].partitions[0].error_code)


def subscription(owned: Held, *, topics: tuple[str, ...] = ("t",)) -> bytes:
    """As consumers say it, in version 1."""
    header = b"\0\1" + primitives.array_header(len(topics), False)
    named = b"".join(primitives.string(each, False) for each in topics)
    partitions = write_assignment(("t", index) for _, index in owned)[2:-4]
    return header + named + primitives.binary(None, False) + partitions
