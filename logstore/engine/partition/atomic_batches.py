"""Atomic appends over several partitions, of one topic or of several: what `Store.atomic` stands on, and the broker.

They are stored together or not at all, whatever crashes, and an ack is durable. All of their partitions must commit through
the same lane of this process; where that cannot be, `NotAtomic` says so before anything is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial

from logstore.engine.host.clock import waitable
from logstore.engine.memory.results import Receipt
from logstore.engine.partition.internal import Partition
from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.write.admission import admit_batches, check_batch_keys
from logstore.engine.write.exclusive_writer import ExclusiveWriter
from logstore.engine.write.lanes.atomic_append import AtomicAppend, all_locked
from logstore.engine.write.lanes.lane import Lane
from logstore.engine.write.lanes.lane_queue import ENTRY_BYTES
from logstore.errors import AppendTimeout, Closed, NotAtomic, RecordTooLarge
from logstore.format.batches.batch import BatchInfo
from logstore.objects.fan_out import fan_out

Batches = list[tuple[memoryview, BatchInfo]]


def checked(log: PartitionLog, raw: bytes | bytearray | memoryview, *, control: bool = False) -> Batches:
    """The first half of an atomic append of Kafka v2 batches, for one part, in a thread that has the time: checks every
    byte, takes nothing. `control`: a broker's own batches are taken, too. Raises `InvalidRecord` and `RecordTooLarge`."""
    inner = log._internal
    batches = admit_batches(raw, inner.config.max_batch_bytes, control=control)
    if inner.is_compacted:
        check_batch_keys(batches)
    return batches


def atomic_checked(
    parts: Sequence[tuple[PartitionLog, Batches]], *, timeout: float | None = None
) -> Future[list[Receipt]]:
    """The second half: append what `checked` gave to several partitions, all of it or none. Internal: for `broker_shim`. A
    partition may be named once.

    Returns at once if the writers of all partitions are open (`PartitionLog.open_writer`) and there is room in the buffer;
    else it waits for that, up to `timeout` seconds (`append_timeout`; with 0 it never waits), and raises `BufferFull` or
    `StoreUnavailable`, having appended nothing. Also raises `RecordTooLarge`, `NotAtomic`, `Fenced` and `Closed`.

    The future has a receipt for each part, in their order, once all are durable. Until then none is shown, and what is
    appended behind them in the same partitions, at whatever ack, is not shown or acked either. It fails with `Fenced` if one
    of the partitions turned out to have another writer: nothing is stored then, and what followed has the offsets instead.
    Its callbacks run on the thread that uploads: they may append, and must not wait for an append.
    """
    inner = [(log._internal, batches) for log, batches in parts]
    return begin_atomic(inner, inner[0][0].deadline(timeout)).future


def begin_atomic(parts: list[tuple[Partition, Batches]], deadline: float) -> AtomicAppend:
    """Give the batches of all parts their offsets, all of them or none. `finish_atomic` waits for the ack."""
    return _begin(_common_lane([log for log, _ in parts]), parts, deadline)


def finish_atomic(atomic: AtomicAppend, deadline: float) -> list[Receipt]:
    """Wait until all of it is durable. Raises `AppendTimeout` at the deadline: it may still become durable, all or none."""
    try:
        return atomic.future.result(waitable(left(atomic, deadline)))
    except FutureTimeout:
        raise late(atomic) from None
    except CancelledError:
        raise Closed("the store was closed while an atomic append waited for its ack") from None


def left(atomic: AtomicAppend, deadline: float) -> float:
    """How many seconds there are until then, by the store's clock."""
    log = atomic.receipts[0]._log
    assert isinstance(log, Partition), "of this process"
    return deadline - log.clock.monotonic()


def late(atomic: AtomicAppend) -> AppendTimeout:
    """The error for an ack that did not come in time."""
    where = ", ".join(f"{receipt.topic}/{receipt.partition}" for receipt in atomic.receipts)
    return AppendTimeout(
        f"an atomic append to {where} was not acked in time; it is still queued and may become durable, all of it or none: "
        "read back before you append it again"
    )


def _begin(lane: Lane, parts: list[tuple[Partition, Batches]], deadline: float) -> AtomicAppend:
    logs = [log for log, _ in parts]
    size = sum(info.size for _, batches in parts for _, info in batches)
    limit = min(ENTRY_BYTES, logs[0].config.max_buffered_bytes)
    if size > limit:
        raise RecordTooLarge(
            f"an atomic append of {size} bytes does not fit one object of {limit} bytes: nothing was appended; split it"
        )
    opened = fan_out(partial(log.writer, deadline) for log in logs)
    writers = [writer for writer in opened if isinstance(writer, ExclusiveWriter) and writer.lane is lane]
    if len(writers) < len(logs):
        raise NotAtomic(
            f"{', '.join(str(log.paths) for log in logs)}: one of them has shared writers, which commit each partition by "
            "itself: nothing was appended; close those first, or open with take_over=True"
        )
    writers[0].make_room(size, deadline)
    receipts = [
        Receipt(log, -1, -1, max(info.max_timestamp_ms for _, info in batches), "durable")
        for log, batches in parts
    ]
    atomic = AtomicAppend(writers, receipts, size)
    try:
        with all_locked(writers):
            for writer in writers:
                writer.check_open()
            lane.add_atomic(atomic)
            for writer, receipt, (_, batches) in zip(writers, receipts, parts, strict=True):
                writer.place(atomic, receipt, batches)
            size = 0
    finally:
        writers[0].return_room(size)
    return atomic


def _common_lane(logs: list[Partition]) -> Lane:
    """The lane of all of them. Raises before a writer is opened."""
    if not logs or len({*logs}) < len(logs):
        raise ValueError("an atomic append names each of its partitions once, and one at least")
    for log in logs:
        log.check_writable()
    lanes = {log.lane for log in logs}
    lane = lanes.pop()
    names = ", ".join(str(log.paths) for log in logs)
    if lane is None:
        raise NotAtomic(
            f"{names}: partitions are committed together by a lane, and this store has none: nothing was appended; open it "
            'with lanes=1 and writer="exclusive"'
        )
    if lanes:
        raise NotAtomic(
            f"{names}: they commit through different lanes of this store, which are separate objects: nothing was appended; "
            "open it with lanes=1"
        )
    return lane
