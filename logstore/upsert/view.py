"""The latest value for each key, kept as a changelog in a partition that any number of writers feed.

Every writer gets the same input: updates `(key, value, order, time)`, and now and then the promise that all of them below
some time have come (`advance`). The partition holds, for each time, how the values changed. The log's *frontier* is the
first time that it does not hold yet.

* **State is learned from the committed log alone.** What a writer emits changes nothing here until it is read back from the
  log, like a peer's. So all writers, whatever they saw and when, agree with the log and thus with each other.
* **Emission.** For a time t, when the input for t is complete and the frontier is t: each key's update is compared with its
  value and the difference is emitted. One commit carries as many consecutive times as are complete; within it later times
  see the earlier ones through an overlay that is thrown away. It is all or nothing: if a peer was faster, its changes are
  read, and what is left is recomputed.
* **The three-way rule**, at every step and not only at the start: an update below the frontier is dropped and counted, for
  the log has that time already; at it, it is emitted; above it, it is kept. Nothing can pin the frontier.
* **Checked on reading.** A change whose old value is not the value of its key is a damaged log: `CorruptData` names both.
  A peer's changes that are not those of our own input are `DivergentWriters` (`agreement`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.replicated.source_ranges import Applied
from logstore.errors import CorruptData, DivergentWriters, LogStoreError, OffsetOutOfRange, fresh
from logstore.format.batches.record import Record
from logstore.upsert.agreement import Agreement
from logstore.upsert.changes import decode_change
from logstore.upsert.emission import Emission, emission
from logstore.upsert.stash import TIME_MAX, Latest, Stash
from logstore.upsert.values import Values

_READ_BYTES = 8 << 20
UPDATES_IN_COMMIT = 100_000
"""A commit takes in whole times until it has this many updates, or their changes take half of the store's buffer."""


class UpsertView:
    """`partition` should hold nothing else, and keep everything: its topic has no retention. `writer_id` names this writer.

    Safe for threads. `_feeding` is held by whoever feeds or drains, during I/O too; `_reading` guards values and frontier
    and is held for memory work only (and for the spill file), so `get` never waits for the store.
    """

    def __init__(
        self,
        partition: PartitionLog,
        writer_id: str,
        *,
        standby: bool = False,
        max_memory_bytes: int | None = None,
        spill_dir: str | Path | None = None,
    ) -> None:
        if partition.low_watermark > 0:
            raise OffsetOutOfRange(
                partition.low_watermark,
                partition.durable_high_watermark,
                0,
                f"{partition!r} (cut by retention)",
            )
        self._log = partition
        self._writer = partition.replicated(writer_id, standby=standby)
        self._feeding = threading.RLock()
        self._reading = threading.Lock()
        self._stash = Stash()
        self._values = Values(max_memory_bytes, spill_dir)
        self._position = 0
        self._frontier = 0
        self._input_upper = 0
        self._dropped = 0
        self._under_way: tuple[Future[Applied], int] | None = None
        self._emission: Emission | None = None
        self._agreement = Agreement(repr(partition), self._held_complete_at)
        self._broken: LogStoreError | None = None
        self.refresh()

    # Reading

    @property
    def frontier(self) -> int:
        """The first time that the log does not hold yet, as last seen. What `get` shows is the state just before it."""
        return self._frontier

    @property
    def dropped(self) -> int:
        """How many updates were below the frontier when their turn came: a peer had stored their time."""
        return self._dropped + self._stash.late

    @property
    def stashed(self) -> int:
        """How many updates wait for their time."""
        with self._feeding:
            return len(self._stash)

    def get(self, key: bytes) -> bytes | None:
        """The value of the key at the frontier; None if it has none."""
        with self._reading:
            self._check_sound()
            return self._values.get(key)

    def __len__(self) -> int:
        """How many keys have a value."""
        return len(self._values)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key that has a value. Raises RuntimeError if the view moves on meanwhile, as a dict would."""
        with self._reading:
            self._check_sound()
            frontier, items = self._frontier, self._values.items()
        while True:
            with self._reading:
                if self._frontier != frontier:
                    raise RuntimeError(
                        f"the view moved from {frontier} to {self._frontier} while it was iterated"
                    )
                page = [pair for _, pair in zip(range(1000), items, strict=False)]
            if not page:
                return
            yield from page

    def snapshot(self, at: int | None = None) -> dict[bytes, bytes]:
        """The contents just before time `at` (the frontier, if it is not given), at most the frontier. An earlier time reads
        the log from its start."""
        with self._feeding:
            self._check_sound()
            if at is None or at == self._frontier:
                with self._reading:
                    return dict(self._values.items())
            if not 0 <= at < self._frontier:
                raise ValueError(f"at={at}: the log holds the times 0 to {self._frontier}")
            found: dict[bytes, bytes] = {}
            for value, key, _, _, offset in self._log.records(0, self._position, visibility="durable"):
                try:
                    _, new, time = decode_change(value)
                except ValueError as error:
                    raise self._foreign(offset, error) from error
                if time >= at:
                    break
                if new is None:
                    found.pop(key or b"", None)
                else:
                    found[key or b""] = new
            return found

    # Feeding

    def apply(self, key: bytes, value: bytes | None, *, order: Any, time: int) -> None:
        """At `time`, `key` has `value` (None: it is deleted). Within one key and time the highest `order` wins.

        An update below the frontier is dropped and counted. Raises ValueError for a time that `advance` has declared
        complete and the log does not hold yet.
        """
        self.apply_many(((key, value, order, time),))

    def apply_many(self, updates: Iterable[tuple[bytes, bytes | None, Any, int]]) -> None:
        """`apply` for many `(key, value, order, time)`, faster."""
        with self._feeding:
            self._stash.add_many(updates, self._frontier, self._input_upper)

    def advance(self, time: int, *, timeout: float | None = None) -> int:
        """Every update below `time` has been applied: store what is due. Returns the frontier, now at least `time` (for a
        standby: what the active writer has stored).

        Raises what `ReplicatedWriter.compare_and_append` does; it may then be called again.
        """
        with self._feeding:
            if type(time) is not int or not 0 <= time <= TIME_MAX:
                raise ValueError(f"time={time!r}: it is an int from 0 to {TIME_MAX}")
            self._input_upper = max(self._input_upper, time)
            self._stash.complete(self._input_upper)
            return self.drain(timeout=timeout)

    def drain(self, *, timeout: float | None = None) -> int:
        """Store what is due. Returns the frontier. With nothing due it asks the store nothing and costs O(1)."""
        with self._feeding:
            if self._writer.is_passive:
                return self.refresh()
            self._check_sound()
            if self._under_way is not None:
                self._finish(timeout)
            while self._take_in() < self._input_upper:
                self._begin()
                self._finish(timeout)
            return self._frontier

    def refresh(self) -> int:
        """Take in what peers have stored: asks the store. Returns the frontier."""
        with self._feeding:
            self._check_sound()
            self._writer.upper()
            if self._under_way is not None and self._under_way[0].done():
                self._finish(0)
            return self._take_in()

    def promote(self, *, timeout: float | None = None) -> int:
        """Become the only writer: fence every other one off, then store what is due. Returns the frontier."""
        with self._feeding:
            self._check_sound()
            self._writer.promote(timeout)
            return self.drain(timeout=timeout)

    def health(self) -> dict[str, Any]:
        """What an operator wants to see, from memory alone: the writer's lines, and what waits here.

        `lag`: how many times the log is ahead of our input. `held_at_time`: the earliest that waits.
        """
        with self._reading:
            return self._writer.health() | {
                "frontier": self._frontier,
                "input_upper": self._input_upper,
                "lag": max(0, self._frontier - self._input_upper),
                "dropped_below_upper": self.dropped,
                "live_keys": len(self._values),
                "held_at_time": self._stash.first,
            }

    def close(self) -> None:
        """Let go of the spill file. The partition's store closes the writer."""
        with self._feeding, self._reading:
            self._values.close()

    def _check_sound(self) -> None:
        """Once the log was found damaged, or not ours, what is in memory may be half of a commit: nothing more is told."""
        if self._broken is not None:
            raise fresh(self._broken)

    # Out: what is due, as changes

    def _begin(self) -> None:
        """One commit from the frontier on. Whoever wins, `_take_in` reads what is in the log afterwards."""
        due, upper = self._due()
        with self._reading:
            known = self._values.get_many(key for _, latest in due for key in latest)
            self._emission = made = emission(due, known, self._position, self._writer.max_range_bytes // 2)
        upper = upper if made.left_from is None else made.left_from
        submitted = self._writer.submit_exactly(made.keys, made.changes, self._frontier, upper)
        self._under_way = (submitted, upper)

    def _finish(self, timeout: float | None) -> None:
        """A commit whose outcome is not known in time is still under way: it is waited for, not sent again."""
        assert self._under_way is not None
        submitted, upper = self._under_way
        applied = self._writer.wait_for(submitted, timeout)
        self._under_way = None
        if applied.by == "us":
            self._stash.drop_below(upper)  # they did their work; what is below because of a peer is counted
        else:
            self._emission = None

    def _due(self) -> tuple[list[tuple[int, Latest]], int]:
        """The next times to emit, and up to which time that is complete."""
        due: list[tuple[int, Latest]] = []
        count = 0
        for time, latest in self._stash.eligible():
            if count >= UPDATES_IN_COMMIT:
                return due, time
            due.append((time, latest))
            count += len(latest)
        return due, self._input_upper

    # In: what is in the log

    def _take_in(self) -> int:
        """Read what was committed since; drop what it makes obsolete. Returns the frontier.

        A commit may be more than one read brings. The frontier moves with the values, by whole times: what has come of a
        time that may go on is kept until the rest is there, so nobody sees half of one.
        """
        upper, end = self._writer.progress
        kept: list[Record] = []
        read_from = self._position
        while read_from < end:
            result = self._log.read(read_from, _READ_BYTES, visibility="durable")
            # A reader in this process may have followed the chain further than our writer has.
            records = list(result.records())
            if result.next_offset > end:
                records = [record for record in records if (record.offset or 0) < end]
            read_from = min(result.next_offset, end)
            if read_from == end:
                kept += records
                break
            whole = self._whole_times(kept, records)
            if whole is None:
                kept += records
            else:
                complete, time = whole
                self._absorb(kept + records[:complete], time)
                kept = records[complete:]
                self._position = kept[0].offset or 0
        if kept or upper > self._frontier:
            self._absorb(kept, upper)
        self._position = max(self._position, read_from)
        return self._frontier

    def _whole_times(self, kept: list[Record], records: list[Record]) -> tuple[int, int] | None:
        """How many of `records` belong to times before the last one, and that one; None if it is that of `kept` too.
        `kept` is of one time."""
        if not records:
            return None
        last = self._time_of(records[-1])
        at = len(records) - 1
        while at and self._time_of(records[at - 1]) == last:
            at -= 1
        if at == 0 and (not kept or self._time_of(kept[-1]) == last):
            return None
        return at, last

    def _time_of(self, record: Record) -> int:
        try:
            return decode_change(record.value)[2]
        except ValueError as error:
            with self._breaking():
                raise self._foreign(record.offset, error) from error

    def _held_complete_at(self, time: int) -> Latest | None:
        return self._stash.held_at(time) if time < self._input_upper else None

    def _absorb(self, records: list[Record], frontier: int) -> None:
        """Take in the changes at `_position`: all that the log has below `frontier`."""
        made, self._emission = self._emission, None
        with self._reading, self._breaking():
            if made is not None and made.stands_in(records, self._position):
                live, grown = self._values.working_set(made.keys), made.grown
                live.update(zip(made.keys, made.values, strict=True))
            else:
                live = self._values.working_set(record.key or b"" for record in records)
                grown = self._fold(records, live, frontier)
            self._values.update(live, grown)
            self._agreement.end(self._values.get)
            self._frontier = frontier
        self._dropped += self._stash.drop_below(frontier)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """What is raised inside leaves half of a commit in memory: this view has ended, and so has its writer."""
        try:
            yield
        except (CorruptData, DivergentWriters) as error:
            self._broken = error
            self._writer.stop(error)
            raise

    def _fold(self, records: list[Record], live: dict[bytes, bytes | None], upper: int) -> int:
        """Apply changes to `live`. Returns by how many keys it grew."""
        grown, lowest, get, agreement = 0, self._frontier, live.get, self._agreement
        compacted = self._log._internal.is_compacted

        def value_of(key: bytes) -> bytes | None:
            return live[key] if key in live else self._values.get(key)

        for value, key, _, _, offset in records:
            try:
                old, new, time = decode_change(value)
            except ValueError as error:
                raise self._foreign(offset, error) from error
            if key is None:
                raise self._foreign(offset, "a record without a key")
            current = get(key)
            if compacted:
                old = (
                    current  # what this change takes back may lie in a record that compaction has taken away
                )
            if current != old or not lowest <= time < upper:
                raise self._violation(offset, key, (old, current), time, (lowest, upper))
            if time != agreement.time:
                agreement.begin(time, value_of)
            if agreement.held is not None:
                agreement.saw(key, new)
            live[key] = new
            lowest = time
            grown += (old is None and new is not None) - (old is not None and new is None)
        return grown

    def _foreign(self, offset: int | None, why: object) -> CorruptData:
        return CorruptData(repr(self._log), offset, f"{why}: the partition holds something else than changes")

    def _violation(
        self,
        offset: int | None,
        key: bytes,
        values: tuple[bytes | None, bytes | None],
        time: int,
        bounds: tuple[int, int],
    ) -> CorruptData:
        old, current = values
        if old != current:
            why = f"key {key!r} at time {time}: the log takes back {old!r}, but the value is {current!r}"
        else:
            why = f"key {key!r} changes at time {time}, outside of {bounds[0]} to {bounds[1]}, where it is"
        return CorruptData(repr(self._log), offset, why)
