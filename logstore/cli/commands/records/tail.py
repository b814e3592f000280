"""Print the records of a topic as they come, until interrupted or the topic is deleted.

Records that another process has acked and not yet stored cannot be seen from here.
"""

from __future__ import annotations

import argparse
import threading
from contextlib import suppress
from queue import Queue

from logstore.cli.places import add_reading, open_store, to_read, visibility_of
from logstore.cli.terminal.output import Output
from logstore.config import Visibility
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import UnknownTopic
from logstore.format.batches.record import Record

_WAITING_MAX = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reading(parser, "end")


def run(args: argparse.Namespace, out: Output) -> int:
    with suppress(KeyboardInterrupt):  # the way to end it
        _print_all(args, out)
    return 0


def _print_all(args: argparse.Namespace, out: Output) -> None:
    found: Queue[tuple[PartitionLog, Record] | Exception] = Queue(_WAITING_MAX)
    with open_store(args, writer="read_only") as store:
        for log, start in to_read(store, args, "end"):
            threading.Thread(
                target=_follow, args=(log, start, visibility_of(args), found), daemon=True
            ).start()
        printed = 0
        while args.count is None or printed < args.count:
            item = found.get()
            if isinstance(item, Exception):
                raise item
            log, record = item
            out.record(log.topic, log.partition, record, args.format)
            if found.empty():
                out.flush()
            printed += 1


def _follow(
    log: PartitionLog,
    start: int,
    visibility: Visibility,
    found: Queue[tuple[PartitionLog, Record] | Exception],
) -> None:
    try:
        for record in log.tail(start, visibility=visibility):
            found.put((log, record))
        found.put(UnknownTopic(f"{log._internal.paths}: the topic was deleted"))
    except Exception as error:  # whatever it is: nobody else would ever learn of it
        found.put(error)
