"""Append a record, or one for each line of standard input.

Takes the partition over from a writer that is still running: that one stops with `Fenced`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from logstore.cli.output import Output
from logstore.cli.places import add_partition, add_topic, open_store
from logstore.engine.results import Receipt
from logstore.format.record import Record

_LINES_AT_ONCE = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    parser.add_argument("value", nargs="?", help="the value; without it, each line of standard input is one")
    parser.add_argument("-k", "--key", help="the key of the value, or of all lines")
    parser.add_argument("-K", "--key-delimiter", metavar="D", help="each line is KEY D VALUE")
    parser.add_argument("-H", "--header", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--tombstone", action="store_true", help="no value at all: marks the key as deleted")
    parser.add_argument("--ack", choices=("buffered", "durable"), default="durable")
    add_partition(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args) as store:
        topic = store.topic(args.topic)
        for records in _batches(args):
            for receipt in topic.append_many(records, partition=args.partition, ack=args.ack):
                out.row(
                    _fields(receipt),
                    f"{receipt.topic}/{receipt.partition} @ {receipt.offset} ({receipt.durability})",
                )
    return 0


def _fields(receipt: Receipt) -> dict[str, object]:
    return {
        "topic": receipt.topic,
        "partition": receipt.partition,
        "offset": receipt.offset,
        "timestamp_ms": receipt.timestamp_ms,
        "durability": receipt.durability,
    }


def _batches(args: argparse.Namespace) -> Iterator[list[Record]]:
    headers = tuple(_header(text) for text in args.header)
    key = args.key.encode() if args.key is not None else None
    if args.tombstone or args.value is not None:
        value = None if args.tombstone else args.value.encode()
        yield [Record(value, key, headers)]
        return
    waiting: list[Record] = []
    for line in sys.stdin.buffer:
        value = line.rstrip(b"\n")
        own_key = key
        if args.key_delimiter is not None:
            before, found, after = value.partition(args.key_delimiter.encode())
            own_key, value = (before, after) if found else (key, value)
        waiting.append(Record(value, own_key, headers))
        if len(waiting) == _LINES_AT_ONCE:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _header(text: str) -> tuple[str, bytes | None]:
    name, found, value = text.partition("=")
    return name, value.encode() if found else None
