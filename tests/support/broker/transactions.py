"""A transactional producer, request by request, and what a `read_committed` reader sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.format.batches.batch import split
from logstore.format.batches.markers import read_marker
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records
from tests.support.broker.harness import Wire
from tests.support.format.transactional import transactional

COMMITTED = 1


def transactional_batch(
    *values: bytes, producer_id: int, epoch: int, sequence: int, codec_id: int = 0
) -> bytes:
    records = [Record(value, b"k", (), 1_700_000_000_000) for value in values]
    return transactional(records, producer_id=producer_id, epoch=epoch, sequence=sequence, codec_id=codec_id)


class Moved(AssertionError):
    """Another broker leads the partition, or nobody knows at the moment."""


class Transactor:
    """A producer without opinions: it does exactly what a test says, and gives the codes back."""

    def __init__(self, wire: Wire, name: str = "tx", *, timeout_ms: int = 60_000) -> None:
        self.wire, self.name, self.timeout_ms = wire, name, timeout_ms
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def init(self, *, version: int = 4, again: bool = False) -> Code:
        """`again`: as a producer that goes on in a new epoch (KIP-360)."""
        answer = self.wire.ask(
            Api.INIT_PRODUCER_ID,
            version,
            transactional_id=self.name,
            transaction_timeout=self.timeout_ms,
            producer_id=self.producer_id if again else -1,
            producer_epoch=self.epoch if again else -1,
        )
        if answer.error_code == Code.NONE:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return Code(answer.error_code)

    def add(self, topic: str = "t", *partitions: int) -> Code:
        answer = self.wire.ask(
            Api.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": topic, "partitions": list(partitions or (0,))}],
        )
        [found] = {
            row.partition_error_code
            for each in answer.results_by_topic_v3_and_below
            for row in each.results_by_partition
        }
        return Code(found)

    def send(self, *values: bytes, topic: str = "t", partition: int = 0, sequence: int | None = None) -> Code:
        place = (topic, partition)
        first = self.sequences.get(place, 0) if sequence is None else sequence
        raw = transactional_batch(*values, producer_id=self.producer_id, epoch=self.epoch, sequence=first)
        code = self.send_raw(raw, topic, partition)
        if code is Code.NONE:
            self.sequences[place] = first + len(values)
        return code

    def send_raw(self, raw: bytes, topic: str = "t", partition: int = 0) -> Code:
        return self.ended_raw(self.begin_raw(raw, topic, partition))

    def begin_raw(self, raw: bytes, topic: str = "t", partition: int = 0) -> int:
        """Send it and wait for nothing."""
        values = {
            "transactional_id": self.name,
            "acks": -1,
            "timeout": 10_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": raw}]}],
        }
        return self.wire.send(Api.PRODUCE, 9, messages.encode_request(Api.PRODUCE, 9, values))

    def ended_raw(self, number: int) -> Code:
        return Code(self.wire.produced(9, number).error_code)

    def add_offsets(self, group: str = "g") -> Code:
        answer = self.wire.ask(
            Api.ADD_OFFSETS_TO_TXN,
            3,
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return Code(answer.error_code)

    def commit_offset(self, offset: int, group: str = "g", topic: str = "t", partition: int = 0) -> Code:
        row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}
        answer = self.wire.ask(
            Api.TXN_OFFSET_COMMIT,
            3,
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[{"name": topic, "partitions": [row]}],
        )
        return Code(answer.topics[0].partitions[0].error_code)

    def end(self, *, commit: bool = True) -> Code:
        answer = self.wire.ask(
            Api.END_TXN,
            3,
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        return Code(answer.error_code)


def again(step: Callable[[], Code]) -> Code:
    """As clients do: codes that say so are tried again."""
    code = step()
    while code in (
        Code.CONCURRENT_TRANSACTIONS,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
    ):
        code = step()
    return code


def fetch_committed(wire: Wire, offset: int = 0, topic: str = "t", partition: int = 0) -> Any:
    return wire.fetch(topic, offset, partition=partition, isolation=COMMITTED)


def committed_values(wire: Wire, topic: str = "t", partition: int = 0) -> list[bytes]:
    """What a `read_committed` consumer hands to its user, worked out as clients do it: by the list of aborted ones."""
    found: list[bytes] = []
    offset = 0
    while True:
        answer = fetch_committed(wire, offset, topic, partition)
        if answer.error_code == Code.NOT_LEADER_OR_FOLLOWER:
            raise Moved(f"{topic}/{partition}")
        assert answer.error_code == Code.NONE, Code(answer.error_code)
        raw = bytes(answer.records or b"")
        if not raw:
            return found
        starts = sorted((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ())
        aborted: set[int] = set()
        for info in split(raw):
            while starts and starts[0][0] <= info.last_offset:
                aborted.add(starts.pop(0)[1])
            if info.is_control:
                marker = read_marker(raw, info)
                assert marker is not None
                if not marker.is_commit:
                    aborted.discard(marker.producer_id)
            elif not (info.is_transactional and info.producer_id in aborted):
                found += [r.value or b"" for r in decode_records(raw, info, start_offset=offset)]
            offset = info.last_offset + 1


def committed_offset(wire: Wire, group: str = "g", *, stable: bool = True) -> tuple[Code, int]:
    asked = [{"name": "t", "partition_indexes": [0]}]
    answer = wire.ask(Api.OFFSET_FETCH, 7, group_id=group, topics=asked, require_stable=stable)
    row = answer.topics[0].partitions[0]
    return Code(row.error_code), row.committed_offset
