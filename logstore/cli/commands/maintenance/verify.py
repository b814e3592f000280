"""Read every object of a topic, or of all topics, and check every checksum and every record.

Exit code 1 if anything is damaged, also where readers could do without it (an index, a manifest); each object is named. A
topic whose descriptor is damaged does not hide the others. Without a topic, lanes are checked as well.
"""

from __future__ import annotations

import argparse
import re
from contextlib import ExitStack, suppress

import logstore
from logstore.cli.places import add_topic, chosen, find_topic, open_store
from logstore.cli.survey import LOOK_MAX, look_at
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.progress import Progress, is_watched
from logstore.cli.terminal.units import shown_duration, shown_size
from logstore.cli.terminal.usage import Interrupted, UsageError
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.lanes.lane_check import damage_in_lanes
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import CorruptData, LogStoreError, ObjectNotFound, UnknownTopic
from logstore.format.batches.batch import read_info
from logstore.format.batches.records import decode_records
from logstore.format.errors import FormatError
from logstore.format.stored.manifest import Manifest
from logstore.format.stored.segment import SegmentFlags, offset_at, parse_segment
from logstore.layout.catalog import Catalog, TopicDescriptor
from logstore.objects.protocol import ObjectStore
from logstore.objects.wrappers.slices import SlicedStore

Damage = tuple[str, int | None, str]
"""The object's key, the offset if there is one, and what is wrong."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser, optional=True)
    parser.add_argument(
        "--from",
        dest="begin",
        metavar="TOPIC/PARTITION[@OFFSET]",
        type=_place,
        help="leave out what comes before it: to go on after an interruption",
    )


_Place = tuple[str, int, int]


def _place(text: str) -> _Place:
    found = re.fullmatch(r"(.+)/(\d+)(?:@(\d+))?", text)
    if found is None:
        raise ValueError(f"{text!r}: write orders/3, or orders/3@1200")
    return found[1], int(found[2]), int(found[3] or 0)


def _check_place(store: logstore.Store, begin: _Place, only: str | None) -> None:
    """A place that is not there would leave out everything, and look as if all were well."""
    name, number, _ = begin
    if only not in (None, name):
        raise UsageError(f"--from {name}/{number}: that is no partition of {only}")
    with suppress(CorruptData):  # which is what there will be to say
        chosen(find_topic(store, name), number)


def run(args: argparse.Namespace, out: Output) -> int:
    damaged = 0
    begin: _Place = getattr(args, "begin", None) or ("", 0, 0)
    with open_store(args, writer="read_only", cache_bytes=0) as store, ExitStack() as shown:
        if begin[0]:
            _check_place(store, begin, args.topic)
        total = _bytes_in(store, args.topic, begin) if is_watched(out.quiet) else None
        progress = shown.enter_context(out.progress("verifying", total=total, unit="bytes"))
        for name in [args.topic] if args.topic else store.topics():
            if name < begin[0]:
                continue
            try:
                topic = find_topic(store, name)
            except CorruptData as error:
                _print_damage(out, name, None, (error.key, error.offset, error.why))
                damaged += 1
                continue
            except UnknownTopic:
                if args.topic:
                    raise
                continue  # deleted meanwhile
            for log in chosen(topic, None):
                here = (name, log.partition)
                if here >= begin[:2]:
                    start = begin[2] if here == begin[:2] else 0
                    damaged += _verify(SlicedStore(store.objects), log, start, damaged, out, progress)
        for damage in damage_in_lanes(SlicedStore(store.objects)) if not args.topic else ():
            _print_damage(out, None, None, (damage.key, damage.offset, damage.why))
            damaged += 1
        progress.summary(
            f"{progress.records:,} records, {shown_size(progress.bytes)} checked in {shown_duration(progress.seconds)}"
        )
    return 1 if damaged else 0


def _bytes_in(store: logstore.Store, only: str | None, begin: _Place) -> int | None:
    """How much there is to read, for the time that is left; None if that is not known with a few requests."""
    objects = store._runtime.store
    topics = [
        topic
        for name, topic in Catalog(objects).described()
        if isinstance(topic, TopicDescriptor) and only in (None, name) and name >= begin[0]
    ]
    numbers = {
        topic.name: range(begin[1] if topic.name == begin[0] else 0, topic.partitions) for topic in topics
    }
    facts = look_at(objects, topics, numbers, LOOK_MAX).values()
    known = [each for each in facts if isinstance(each, list)]
    return sum(part.bytes for each in known for part in each) if len(known) == len(topics) else None


def _verify(
    objects: ObjectStore, log: PartitionLog, start: int, damaged: int, out: Output, progress: Progress
) -> int:
    """How many objects of the partition are damaged, from `start` on; `damaged`: how many were found before."""
    name = f"{log.topic}/{log.partition}"
    records, found, position = 0, 0, start
    try:
        for damage in _manifest_damage(objects, log):
            _print_damage(out, log.topic, log.partition, damage)
            found += 1
        for ref in log.segments():
            if ref.end_offset <= start:
                continue
            try:
                held = _records_in(objects, ref)
                records += held
                progress.advance(held, ref.size, f"verifying {name}")
            except (FormatError, LogStoreError) as error:
                damage = (ref.key, _offset(ref, objects, error), str(error))
                _print_damage(out, log.topic, log.partition, damage)
                found += 1
            position = ref.end_offset
    except KeyboardInterrupt:
        place = f"{name}@{position}"
        raise Interrupted(
            f"what comes before {place} was checked, {damaged + found} objects are damaged; go on with --from {place}"
        ) from None
    summary = {"topic": log.topic, "partition": log.partition, "records": records, "damaged": found}
    out.row(summary, f"{name}: {records} records read, {found} damaged objects")
    return found


def _print_damage(out: Output, topic: str | None, partition: int | None, damage: Damage) -> None:
    key, offset, why = damage
    fields = {"topic": topic, "partition": partition, "key": key, "offset": offset, "damage": why}
    out.row(fields, f"DAMAGED {key}{'' if offset is None else f' at offset {offset}'}: {why}")


def _manifest_damage(objects: ObjectStore, log: PartitionLog) -> list[Damage]:
    try:
        Manifest.parse(objects.get(log._internal.paths.manifest))
    except ObjectNotFound:
        return []
    except FormatError as error:
        return [(log._internal.paths.manifest, None, str(error))]
    return []


def _records_in(objects: ObjectStore, ref: SegmentRef) -> int:
    """Every batch decoded to its last record, and the offsets where they belong."""
    data = objects.get(ref.key)
    summary, index = parse_segment(data, strict=True)
    if (summary.header.base_offset, summary.header.end_offset) != (ref.base_offset, ref.end_offset):
        raise FormatError(
            f"the object holds offsets {summary.header.base_offset} to {summary.header.end_offset}"
        )
    if SegmentFlags.COLLECTED in summary.header.flags:
        raise FormatError("garbage collection has left only its header, and a row still names it")
    return sum(len(decode_records(data, read_info(data, place))) for place in index["position"].tolist())


def _offset(ref: SegmentRef, objects: ObjectStore, error: Exception) -> int:
    """The offset nearest to the damage, if the index can still be read."""
    try:
        _, index = parse_segment(objects.get(ref.key))
        found = offset_at(index, getattr(error, "position", None))
    except (FormatError, LogStoreError):
        found = None
    return ref.base_offset if found is None else found
