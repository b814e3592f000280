"""Append a record, or one for each line of standard input.

Takes the partition over from a writer that is still running: that one stops with `Fenced`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

from logstore.cli.output import Output
from logstore.cli.places import add_topic, find_topic, open_existing
from logstore.cli.usage import UsageError, positive
from logstore.engine.memory.results import Receipt
from logstore.errors import RecordTooLarge
from logstore.format.record import Record

_READ_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    parser.add_argument("value", nargs="?", help="the value; without it, each line of standard input is one")
    parser.add_argument("-k", "--key", help="the key of the value, or of all lines")
    parser.add_argument("-K", "--key-delimiter", metavar="D", help="each line is KEY D VALUE")
    parser.add_argument("-H", "--header", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--tombstone", action="store_true", help="no value at all: marks the key as deleted")
    parser.add_argument("--ack", choices=("buffered", "durable"), default="durable")
    parser.add_argument(
        "-p", "--partition", type=int, help="to this one (default: the key picks, or in turn)"
    )
    parser.add_argument(
        "--max-batch-bytes", type=positive, metavar="N", help="the largest record (default: 1 MiB)"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    _check(args)
    appended = 0
    settings = {} if args.max_batch_bytes is None else {"max_batch_bytes": args.max_batch_bytes}
    with open_existing(args, **settings) as store:
        topic = find_topic(store, args.topic)
        if args.partition is not None and not 0 <= args.partition < topic.partitions:
            raise UsageError(
                f"--partition {args.partition}: topic {topic.name!r} has partitions 0 to {topic.partitions - 1}"
            )
        limit = store.config.max_batch_bytes
        for records in _batches(args, limit):
            try:
                receipts = topic.append_many(records, partition=args.partition, ack=args.ack)
            except RecordTooLarge as error:
                raise _too_large(records, appended, limit) from error
            appended += len(receipts)
            try:
                _print_all(receipts, out)
            except OSError as error:
                # Unlike a reader that has seen enough, input that is left over must not look like success; nor must
                # records that are stored look as if they were not.
                out.abandon()
                why = "nobody reads the receipts any more" if isinstance(error, BrokenPipeError) else error
                print(f"logstore append: {why}; stopped after {appended} records", file=sys.stderr)
                return 1
    return 0


def _too_large(records: list[Record], appended: int, limit: int) -> RecordTooLarge:
    """Says which record of the input it is, and how far the input got."""
    sizes = [len(record.value or b"") for record in records]
    number = appended + sizes.index(max(sizes)) + 1
    got = (
        f"the first {appended} records are stored, and none after them"
        if appended
        else "nothing was appended"
    )
    return RecordTooLarge(
        f"record {number} of the input is too large for a batch of --max-batch-bytes {limit}; {got}"
    )


def _check(args: argparse.Namespace) -> None:
    if args.tombstone and args.value is not None:
        raise UsageError("a tombstone has no value: leave out the one or the other")
    if args.tombstone and args.key is None:
        raise UsageError("a tombstone deletes a key: say which with --key")
    if args.key_delimiter is not None and (args.tombstone or args.value is not None):
        raise UsageError("--key-delimiter splits lines of standard input: use --key with a value")
    if args.key_delimiter == "":
        raise UsageError("--key-delimiter is empty")
    if args.value is None and not args.tombstone and sys.stdin is None:
        raise UsageError("standard input is closed: pass the value, or lines to read")


def _print_all(receipts: list[Receipt], out: Output) -> None:
    for receipt in receipts:
        place = f"{receipt.topic}/{receipt.partition} @ {receipt.offset}"
        out.row(_fields(receipt), f"{place} ({receipt.durability})")
    out.flush()


def _fields(receipt: Receipt) -> dict[str, object]:
    return {
        "topic": receipt.topic,
        "partition": receipt.partition,
        "offset": receipt.offset,
        "timestamp_ms": receipt.timestamp_ms,
        "durability": receipt.durability,
    }


def _batches(args: argparse.Namespace, longest: int) -> Iterator[list[Record]]:
    headers = tuple(_header(text) for text in args.header)
    key = os.fsencode(args.key) if args.key is not None else None
    if args.tombstone or args.value is not None:
        value = None if args.tombstone else os.fsencode(args.value)
        yield [Record(value, key, headers)]
        return
    delimiter = None if args.key_delimiter is None else os.fsencode(args.key_delimiter)
    for lines in _lines(sys.stdin.fileno(), longest):
        yield [
            Record(value, own_key, headers)
            for own_key, value in (_split(line, key, delimiter) for line in lines)
        ]


def _lines(descriptor: int, longest: int) -> Iterator[list[bytes]]:
    """The lines of a file, as many at once as are there: what somebody types, or a slow pipe, does not wait for more.

    One that no batch can hold is given as far as it was read, and ends it: it would fill the memory first.
    """
    begun: list[bytes] = []  # of a line whose end has not come: joined once, however many reads it takes
    length = 0
    while length <= longest and (data := os.read(descriptor, _READ_BYTES)):
        first, *lines = data.split(b"\n")
        begun.append(first)
        length += len(first)
        if lines:
            rest = lines.pop()
            yield [b"".join(begun), *lines]
            begun, length = [rest], len(rest)
    if any(begun):
        yield [b"".join(begun)]


def _split(line: bytes, key: bytes | None, delimiter: bytes | None) -> tuple[bytes | None, bytes]:
    if delimiter is None:
        return key, line
    before, found, after = line.partition(delimiter)
    return (before, after) if found else (key, line)


def _header(text: str) -> tuple[str, bytes | None]:
    name, found, value = text.partition("=")
    return name, os.fsencode(value) if found else None
