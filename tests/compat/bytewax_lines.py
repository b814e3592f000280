"""A bytewax flow from topic to topic: `python bytewax_lines.py HOST:PORT`."""

from __future__ import annotations

import sys
from typing import Any

import bytewax.connectors.kafka as kafka
import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.dataflow import Dataflow
from bytewax.testing import run_main
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ADDRESS = sys.argv[1]
SENT = [f"line {number}".encode() for number in range(300)]


def upper(message: Any) -> Any:
    return KafkaSinkMessage(message.key, message.value.upper())


def main() -> None:
    admin = AdminClient({"bootstrap.servers": ADDRESS})
    for made in admin.create_topics([NewTopic("in", 2), NewTopic("out", 1)]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": ADDRESS})
    for value in SENT:
        producer.produce("in", value, key=value)
    producer.flush(60)
    flow = Dataflow("lines")
    # Without a tail it ends at the end of each partition.
    read = kafka.KafkaSource([ADDRESS], ["in"], tail=False)
    stream = op.map("upper", op.input("read", flow, read), upper)
    op.output("write", stream, kafka.KafkaSink([ADDRESS], "out"))
    run_main(flow)
    reader = Consumer({"bootstrap.servers": ADDRESS, "group.id": "r"})
    reader.assign([TopicPartition("out", 0, 0)])
    found: list[bytes] = []
    while len(found) < len(SENT):
        message = reader.poll(60)
        if message is None:
            break
        found.append(message.value())
    reader.close()
    name = "a flow from topic to topic"
    is_all = sorted(found) == sorted(value.upper() for value in SENT)
    print(f"ok {name}" if is_all else f"failed {name}: {len(found)} of {len(SENT)} came")


main()
