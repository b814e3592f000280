"""Copy a topic into a table, Delta Lake or Iceberg, each durable record exactly once.

Without --once it goes on until it is interrupted. Several may run at once, and any of them may be killed: the table
itself says how far it is. Retention of the topic waits for the table, up to --hold; --list shows which tables
it waits for, and --forget takes one from that list.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logstore.cli.places import add_topic, find_topic, open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.progress import Progress as Bar
from logstore.cli.terminal.units import duration
from logstore.cli.terminal.usage import Interrupted, UsageError

if TYPE_CHECKING:
    from logstore.lake import Materializer
    from logstore.lake.materializer import Progress
    from logstore.topic import Topic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    parser.add_argument(
        "--to", metavar="TARGET", help="delta:URL, or iceberg:[CATALOG/]NAMESPACE.TABLE[?property=value&…]"
    )
    parser.add_argument(
        "--infer",
        action="store_true",
        help="values are JSON: make columns of their fields (default: keep them raw)",
    )
    parser.add_argument(
        "--avro", metavar="FILE", help="values are Avro, written with the schema in this file"
    )
    parser.add_argument(
        "--protobuf",
        metavar="FILE:MESSAGE",
        help="values are messages of this type; FILE is a descriptor set (protoc --include_imports --descriptor_set_out)",
    )
    parser.add_argument("--partition-by", choices=("day", "hour"), help="by the records' timestamps")
    parser.add_argument(
        "--interval", type=duration, default=60.0, metavar="TIME", help="between two steps: 60s (default), 5m"
    )
    parser.add_argument("--once", action="store_true", help="copy what is there, and end")
    parser.add_argument(
        "--compact", action="store_true", help="make few large files of many small ones, and end"
    )
    parser.add_argument(
        "--hold",
        "--hold-seconds",
        dest="hold_seconds",
        type=duration,
        metavar="TIME",
        help="how much longer than retention says records wait for the table: 7d (default); 0: not at all",
    )
    parser.add_argument(
        "--skip-lost", action="store_true", help="go on behind records that retention took first"
    )
    parser.add_argument("--list", action="store_true", help="the tables that retention waits for")
    parser.add_argument("--forget", metavar="TARGET", help="let retention wait for this table no longer")


def run(args: argparse.Namespace, out: Output) -> int:
    if sum(map(bool, (args.to, args.list, args.forget))) != 1:
        raise UsageError("what is to be done? Exactly one of --to TARGET, --list and --forget TARGET")
    with open_store(args, writer="read_only") as store:
        topic = find_topic(store, args.topic)
        if args.list:
            return _list(topic, out)
        if args.forget:
            return _forget(topic, args.forget, out)
        return _copy(topic, args, out)


def _list(topic: Topic, out: Output) -> int:
    from logstore.lake import registered

    for one in registered(topic):
        fields = {
            "target": one.target,
            "offsets": {str(partition): offset for partition, offset in one.offsets.items()},
            "hold_seconds": one.hold_seconds,
            "updated_at": one.updated_at.isoformat(),
        }
        offsets = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(one.offsets.items()))
        out.row(fields, f"{one.target}  {one.updated_at:%Y-%m-%d %H:%M:%S}  {offsets}")
    return 0


def _forget(topic: Topic, target: str, out: Output) -> int:
    from logstore.lake import forget, registered

    if not forget(topic, target):
        known = ", ".join(one.target for one in registered(topic))
        raise UsageError(f"retention waits for no such table; for {known or 'none'}")
    out.row({"topic": topic.name, "forgotten": target}, f"forgotten: {target}")
    return 0


def _schema(args: argparse.Namespace) -> Any:
    if sum(map(bool, (args.infer, args.avro, args.protobuf))) > 1:
        raise UsageError("values are JSON (--infer), Avro or Protobuf: one of them")
    if args.avro:
        from logstore.lake import Avro

        return Avro(Path(args.avro).read_text())
    if args.protobuf:
        from logstore.lake import Protobuf

        file, colon, message = args.protobuf.rpartition(":")
        if not colon:
            raise UsageError(
                "--protobuf is the file of a descriptor set, a colon, and the full name of a message"
            )
        return Protobuf(Path(file).read_bytes(), message)
    return "infer" if args.infer else None


def _copy(topic: Topic, args: argparse.Namespace, out: Output) -> int:
    try:
        from logstore.lake import Materializer

        given: dict[str, Any] = {} if args.hold_seconds is None else {"hold_seconds": args.hold_seconds}
        copier = Materializer(
            topic,
            args.to,
            schema=_schema(args),
            partition_by=args.partition_by,
            interval=args.interval,
            on_lost="skip" if args.skip_lost else "raise",
            **given,
        )
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    try:
        return _run(copier, topic, args, out)
    except ValueError as error:
        if type(error) is not ValueError:  # Arrow's errors are some, too
            raise
        raise UsageError(str(error)) from error  # the table that is there is another one than these words say


def _run(copier: Materializer, topic: Topic, args: argparse.Namespace, out: Output) -> int:
    if args.compact:
        done = copier.compact()
        out.row(done, f"{done['files_removed']} files became {done['files_added']}")
        return 0

    def say(progress: Any) -> None:
        told = (
            f"{topic.name}: {progress.rows} rows in {progress.commits} commits, {progress.unparsed} unparsed, "
            f"{progress.behind} behind"
        )
        out.row(asdict(progress) | {"offsets": {str(p): n for p, n in progress.offsets.items()}}, told)
        sys.stdout.flush()

    if args.once:
        say(_watched(copier, topic.name, out))
    else:
        copier.run(say)
    return 0


def _watched(copier: Materializer, topic: str, out: Output) -> Progress:
    """One copy, which may take long: how far it is, and where it is when it is interrupted."""
    seen: list[Progress] = []
    with ExitStack() as shown:
        bar: list[Bar] = []
        told = 0

        def watch(progress: Progress) -> None:
            nonlocal told
            seen[:] = [progress]
            if not bar and progress.behind:
                bar.append(
                    shown.enter_context(out.progress(f"copying {topic}", total=progress.behind, unit="rows"))
                )
            if bar:
                bar[0].advance(progress.rows - told)
                told = progress.rows

        try:
            return copier.run_once(watch)
        except KeyboardInterrupt:
            if not seen:
                raise
            done = seen[0]
            raise Interrupted(
                f"{done.rows:,} rows in {done.commits} commits are in the table; the same command goes on there"
            ) from None
