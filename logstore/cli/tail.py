"""Print the records of a topic as they come, until interrupted.

Records that another process has acked and not yet stored cannot be seen from here.
"""

from __future__ import annotations

import argparse
import threading
from queue import Queue

from logstore.cli.output import Output
from logstore.cli.places import add_partition, add_range, add_topic, chosen, open_store, start_offset
from logstore.engine.partition_log import PartitionLog
from logstore.errors import LogStoreError
from logstore.format.record import Record

_WAITING_MAX = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    add_partition(parser)
    add_range(parser, "an offset, beginning, end (default), -N (the last N) or @MILLISECONDS")


def run(args: argparse.Namespace, out: Output) -> int:
    found: Queue[tuple[PartitionLog, Record] | LogStoreError] = Queue(_WAITING_MAX)
    with open_store(args, writer="read_only") as store:
        for log in chosen(store.topic(args.topic), args.partition):
            start = start_offset(log, args.start or "end")
            threading.Thread(target=_follow, args=(log, start, args.durable, found), daemon=True).start()
        printed = 0
        while args.count is None or printed < args.count:
            item = found.get()
            if isinstance(item, LogStoreError):
                raise item
            log, record = item
            out.record(log.topic, log.partition, record, args.format)
            out.stream.flush()
            printed += 1
    return 0


def _follow(
    log: PartitionLog, start: int, durable: bool, found: Queue[tuple[PartitionLog, Record] | LogStoreError]
) -> None:
    try:
        for record in log.tail(start, visibility="durable" if durable else "buffered"):
            found.put((log, record))
    except LogStoreError as error:
        found.put(error)
