"""Show what the store holds: a topic's segments, or one object in detail.

TARGET is a topic, or the key of a segment or of a lane's entry (as the listing prints it).
"""

from __future__ import annotations

import argparse

from logstore.cli.places import add_partition, chosen, find_topic, open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import shown_moment
from logstore.errors import CorruptData
from logstore.format.batches.area import MAX_TIMESTAMP_MS
from logstore.format.batches.batch import read_info
from logstore.format.errors import FormatError
from logstore.format.stored.entry import Entry
from logstore.format.stored.segment import parse_segment
from logstore.layout.paths import LANES_PREFIX
from logstore.objects.protocol import ObjectStore
from logstore.objects.wrappers.slices import SlicedStore, is_slice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TARGET", help="a topic, or the key of a segment or of a lane's entry"
    )
    add_partition(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only") as store:
        if is_slice(args.target) or args.target.endswith(".seg"):
            is_entry = args.target.startswith(LANES_PREFIX) and not is_slice(args.target)
            (_one_entry if is_entry else _one_segment)(SlicedStore(store.objects), args.target, out)
            return 0
        out.table(
            [
                {
                    "key": ref.key,
                    "offsets": f"{ref.base_offset}-{ref.end_offset - 1}",
                    "bytes": ref.size,
                    "newest": _time(ref.max_timestamp_ms),
                }
                for log in chosen(find_topic(store, args.target), args.partition)
                for ref in log.segments()
            ],
            f"{args.target} holds no segments yet",
        )
    return 0


def _one_segment(objects: ObjectStore, key: str, out: Output) -> None:
    try:
        data = objects.get(key)
        summary, index = parse_segment(data)
    except FormatError as damage:
        raise CorruptData(key, None, str(damage)) from damage
    header = summary.header
    fields = {
        "key": key,
        "seq": header.seq,
        "epoch": header.epoch,
        "mode": header.mode.name.lower(),
        "flags": header.flags.name or "none",
        "base_offset": header.base_offset,
        "end_offset": header.end_offset,
        "records": summary.records,
        "reserved_until": header.reserved_until,
        "writer_id": header.writer_id.hex(),
        "created": _time(header.created_at_ms),
    }
    out.row(fields, "\n".join(f"{name:15}{value}" for name, value in fields.items()))
    batches = [
        {
            "base": base,
            "position": position,
            "bytes": size,
            "offsets": count,
            "records": read_info(data, position).count,
            "oldest": _time(low),
            "newest": _time(high),
        }
        for base, position, size, count, high, low, _ in index.tolist()
    ]
    out.table(batches)


def _one_entry(objects: ObjectStore, key: str, out: Output) -> None:
    try:
        entry = Entry.parse(objects.get(key))
    except FormatError as damage:
        raise CorruptData(key, None, str(damage)) from damage
    header = entry.header
    fields = {
        "key": key,
        "seq": header.seq,
        "kind": header.kind.name.lower(),
        "id": header.id.hex(),
        "prev": header.prev.hex(),
        "seals": ", ".join(claim.prefix for claim in entry.seals),
        "created": _time(header.created_at_ms),
    }
    out.row(fields, "\n".join(f"{name:15}{value}" for name, value in fields.items()))
    out.table(
        [
            {
                "partition": part.claim.prefix,
                "epoch": part.claim.epoch,
                "seq": part.seq,
                "offsets": f"{part.base_offset}-{part.end_offset - 1}",
                "position": part.position,
                "bytes": part.size,
            }
            for part in entry.parts
        ]
    )


def _time(milliseconds: int) -> str:
    if milliseconds > MAX_TIMESTAMP_MS:  # of a segment that cannot be read
        return "unknown"
    return shown_moment(milliseconds)
