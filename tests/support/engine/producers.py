"""Kafka's transactional producers of one partition, as a broker stores what they send, and what of it is committed."""

from __future__ import annotations

import json

from logstore import Record
from logstore.engine.partition.partition_log import PartitionLog
from logstore.format.batches.batch import split
from logstore.format.batches.markers import Marker, encode_marker
from logstore.format.batches.transactions import Transactions
from logstore.layout.broker import producers_key
from logstore.objects import ObjectStore
from tests.support.format.transactional import transactional

Table = dict[bytes, bytes]


def record(key: str, value: bytes | None) -> Record:
    return Record(value, key=key.encode(), timestamp_ms=1)


class Producers:
    """Some of them, and what they have written: `snapshots` are what brokers have kept of the log at some offset."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}
        self.open: dict[int, list[Record]] = {}
        self.started = 0
        self.known = Transactions()
        self.snapshots: list[tuple[int, str]] = []
        self.committed: list[Record] = []
        self.aborted: set[int] = set()

    @property
    def stable(self) -> int:
        """The last stable offset."""
        firsts = [sent[0].offset or 0 for sent in self.open.values() if sent]
        return min([*firsts, self.log.durable_high_watermark])

    def committed_below(self, stable: int) -> list[Record]:
        """In the order of their offsets."""
        below = [each for each in self.committed if (each.offset or 0) < stable]
        return sorted(below, key=lambda each: each.offset or 0)

    def _append(self, raw: bytes) -> int:
        offset = (
            self.log._internal.submit_batches(memoryview(raw), ack="durable", control=True).result().offset
        )
        [info] = split(raw)
        self.known.replay(raw, info._replace(base_offset=offset))
        return offset

    def plain(self, *records: Record) -> None:
        offset = self.log.append(records).offset
        self.committed += [r._replace(offset=offset + n) for n, r in enumerate(records)]

    def send(self, producer: int, *records: Record, epoch: int = 0) -> None:
        sequence = self.sequences.get(producer, 0)
        offset = self._append(transactional(records, producer_id=producer, epoch=epoch, sequence=sequence))
        self.sequences[producer] = sequence + len(records)
        sent = [r._replace(offset=offset + n) for n, r in enumerate(records)]
        self.open.setdefault(producer, []).extend(sent)

    def end(self, producer: int, *, commit: bool, epoch: int = 0) -> None:
        self.started += 1
        self._append(encode_marker(Marker(producer, epoch, commit, 1, self.started), now_ms=1))
        ended = self.open.pop(producer, [])
        if commit:
            self.committed += ended
        else:
            self.aborted |= {r.offset or 0 for r in ended}

    def snapshot(self) -> None:
        end = self.log.durable_high_watermark
        self.snapshots.append((end, json.dumps(self.known.dump(end))))

    def store_snapshot(self, objects: ObjectStore) -> None:
        """Where a broker has it, with what it knows now."""
        end = self.log.durable_high_watermark
        table = {"offset": end, "producers": [], "cut_off": [], "of_others": 0}
        objects.put(
            producers_key(self.log._internal.paths),
            json.dumps({**table, "transactions": self.known.dump(end)}).encode(),
        )

    def table(self, stable: int) -> Table:
        """Of what is committed below `stable`."""
        return fold(self.committed_below(stable))


def fold(records: list[Record]) -> Table:
    table: Table = {}
    for each in records:
        assert each.key is not None
        if each.value is None:
            table.pop(each.key, None)
        else:
            table[each.key] = each.value
    return table
