"""Append a record, or one for each line of standard input.

It joins shared writers. A partition that another process writes alone is refused unless that one has closed or is provably
gone; with --take-over it is taken all the same, and that one stops for good with `Fenced`.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from logstore.cli.places import add_topic, find_topic, open_existing
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.progress import Progress
from logstore.cli.terminal.units import shown_duration, shown_size, size
from logstore.cli.terminal.usage import Interrupted, UsageError, complain
from logstore.engine.memory.results import Receipt
from logstore.errors import OutcomeUnknown, PartitionInUse, RecordTooLarge, StoreError
from logstore.format.batches.record import Record
from logstore.topic import Topic

_READ_BYTES = 1 << 20
_LOOK_S = 1.0
"""A Ctrl-C right before the system call that waits for input does not end it: it is seen when that ends by itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    parser.add_argument("value", nargs="?", help="the value; without it, each line of standard input is one")
    parser.add_argument("-k", "--key", help="the key of the value, or of all lines")
    parser.add_argument("-K", "--key-delimiter", metavar="D", help="each line is KEY D VALUE")
    parser.add_argument(
        "-H",
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header, as often as there are",
    )
    parser.add_argument("--tombstone", action="store_true", help="no value at all: marks the key as deleted")
    parser.add_argument(
        "--ack",
        choices=("buffered", "durable"),
        default="durable",
        help="what is waited for (default: durable)",
    )
    parser.add_argument(
        "-p", "--partition", type=int, help="to this one (default: the key picks, or in turn)"
    )
    parser.add_argument(
        "--take-over", action="store_true", help="stop the process that writes the partition now, for good"
    )
    parser.add_argument(
        "--resume",
        type=int,
        default=0,
        metavar="N",
        help="leave out the first N records of the input: what an interrupted append says is stored",
    )
    parser.add_argument(
        "--max-batch-bytes", type=size, metavar="SIZE", help="the largest record (default: 1MiB)"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    _check(args)
    # Without a lane: the last segment in the partition's own chain then says that this writer has closed.
    settings: dict[str, Any] = {"take_over": args.take_over or "if_gone", "lanes": 0}
    if args.max_batch_bytes is not None:
        settings["max_batch_bytes"] = args.max_batch_bytes
    with open_existing(args, **settings) as store:
        topic = find_topic(store, args.topic)
        if args.partition is not None and not 0 <= args.partition < topic.partitions:
            raise UsageError(
                f"--partition {args.partition}: topic {topic.name!r} has partitions 0 to {topic.partitions - 1}"
            )
        limit = store.config.max_batch_bytes
        with _Watched(args, out) as watch:
            code = _append_all(args, out, topic, limit, watch)
        if code == 0:
            watch.summary(topic.name)
    return code


def _append_all(args: argparse.Namespace, out: Output, topic: Topic, limit: int, watch: _Watched) -> int:
    appended = args.resume
    for records in _batches(args, limit):
        try:
            with watch.appending(records):
                receipts = topic.append_many(records, partition=args.partition, ack=args.ack)
        except RecordTooLarge as error:
            raise _too_large(records, appended, limit) from error
        except PartitionInUse as error:
            raise _in_use(error, appended) from error
        appended += len(receipts)
        try:
            if watch.wants_receipts:
                _print_all(receipts, out)
        except OSError as error:
            # Unlike a reader that has seen enough, input that is left over must not look like success; nor must
            # records that are stored look as if they were not.
            out.abandon()
            why = "nobody reads the receipts any more" if isinstance(error, BrokenPipeError) else error
            print(f"logstore append: {why}; stopped after {appended} records", file=sys.stderr)
            return 1
        watch.check()
    return 0


class _Watched:
    """An append that may take long: shows how far it is, and lets Ctrl-C end it between two appends, so that what is said
    to be stored is exactly what is stored. A second Ctrl-C ends it at once."""

    def __init__(self, args: argparse.Namespace, out: Output) -> None:
        self._done = args.resume
        self._under_way = 0
        self._is_durable = args.ack == "durable"
        self._one = args.value is not None or args.tombstone
        self._appending = self._asked = False
        # A file that goes to a terminal: nobody reads a million receipts there, the line and the summary say it all.
        typed = self._one or sys.stdin.isatty()
        self.wants_receipts = not out.quiet and (typed or not out.is_terminal)
        self._progress = Progress(
            f"appending to {args.topic}",
            quiet=out.quiet or typed,
            total=_input_bytes(self._one),
            unit="bytes",
        )
        self._before: Any = None

    @contextmanager
    def appending(self, records: list[Record]) -> Iterator[None]:
        self._appending = True
        self._under_way = len(records)
        try:
            yield
        finally:
            self._appending = False
        self._done += len(records)
        self._progress.advance(len(records), sum(_input_size(record) for record in records))

    def check(self) -> None:
        if self._asked:
            raise KeyboardInterrupt

    def _interrupt(self, *_: object) -> None:
        if self._appending and not self._asked:
            self._asked = True
            return
        raise KeyboardInterrupt

    def __enter__(self) -> _Watched:
        self._progress.__enter__()
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        self._progress.__exit__(None, None, None)
        if isinstance(error, (OutcomeUnknown, StoreError)) and self._is_durable and not self._one:
            complain(
                f"logstore append: the first {self._done} records of the input are stored, and perhaps some of the next "
                f"{self._under_way}"
            )
        if isinstance(error, KeyboardInterrupt) and not self._one:
            if self._appending:
                raise Interrupted(
                    f"the first {self._done} records of the input are stored, and perhaps some after them"
                ) from None
            raise Interrupted(
                f"the first {self._done} records of the input are stored, and none after them; go on with the same "
                f"input and --resume {self._done}"
            ) from None

    def summary(self, topic: str) -> None:
        progress = self._progress
        rate = progress.records / max(progress.seconds, 1e-6)
        progress.summary(
            f"{progress.records:,} records, {shown_size(progress.bytes)} appended to {topic} in "
            f"{shown_duration(progress.seconds)} ({rate:,.0f}/s)"
        )


def _input_bytes(one: bool) -> int | None:
    """How much there is to read, if standard input is a file."""
    if one or sys.stdin is None:
        return None
    found = os.fstat(sys.stdin.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _input_size(record: Record) -> int:
    return len(record.value or b"") + (len(record.key) if record.key else 0) + 1


def _in_use(error: PartitionInUse, appended: int) -> PartitionInUse:
    """In the words of the command line."""
    who = error.owner or "another process"
    got = f"the first {appended} records are stored. " if appended else ""
    return PartitionInUse(f"{error}. {got}Here that is --take-over", who)


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
    if args.resume < 0:
        raise UsageError(f"--resume {args.resume}: it is a number of records")
    if args.resume and (args.tombstone or args.value is not None):
        raise UsageError("--resume is for lines of standard input")
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
    left_out = args.resume
    for lines in _lines(sys.stdin.fileno(), longest):
        if left_out:
            skipped = min(left_out, len(lines))
            left_out, lines = left_out - skipped, lines[skipped:]
            if not lines:
                continue
        yield [
            Record(value, own_key, headers)
            for own_key, value in (_split(line, key, delimiter) for line in lines)
        ]
    if left_out:
        raise UsageError(
            f"--resume {args.resume}: the input ends {left_out} records before that; nothing was appended"
        )


def _lines(descriptor: int, longest: int) -> Iterator[list[bytes]]:
    """The lines of a file, as many at once as are there: what somebody types, or a slow pipe, does not wait for more.

    One that no batch can hold is given as far as it was read, and ends it: it would fill the memory first.
    """
    begun: list[bytes] = []  # of a line whose end has not come: joined once, however many reads it takes
    length = 0
    while length <= longest and (data := _read(descriptor)):
        first, *lines = data.split(b"\n")
        begun.append(first)
        length += len(first)
        if lines:
            rest = lines.pop()
            yield [b"".join(begun), *lines]
            begun, length = [rest], len(rest)
    if any(begun):
        yield [b"".join(begun)]


def _read(descriptor: int) -> bytes:
    while not select.select([descriptor], [], [], _LOOK_S)[0]:
        pass
    return os.read(descriptor, _READ_BYTES)


def _split(line: bytes, key: bytes | None, delimiter: bytes | None) -> tuple[bytes | None, bytes]:
    if delimiter is None:
        return key, line
    before, found, after = line.partition(delimiter)
    return (before, after) if found else (key, line)


def _header(text: str) -> tuple[str, bytes | None]:
    name, found, value = text.partition("=")
    return name, os.fsencode(value) if found else None
