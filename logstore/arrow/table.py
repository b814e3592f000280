"""A topic as Arrow, for everybody but Spark: one table, a stream of batches, or splits that other processes read.

A request is checked and planned when it is made: the end of each partition is fixed then, so what comes out is a snapshot of
what was durable at that moment. Splits are cut by `arrow.plan` and read by `arrow.scan`, as Spark's are. Spark itself judges
every row by its filters; nobody does that behind us, so rows are picked by their time here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, get_args

from logstore.arrow.plan.bounds import FOREVER, Bounds
from logstore.arrow.plan.committed import CommittedEnds
from logstore.arrow.plan.log_partitions import LogPartition, load
from logstore.arrow.plan.planner import within
from logstore.arrow.plan.splits import Range, Split, cut
from logstore.arrow.scan.columns import COLUMNS, arrow_schema
from logstore.arrow.scan.gathered import HELD_BYTES_MAX, GatheredStore
from logstore.arrow.scan.heap import keep_what_batches_free
from logstore.arrow.scan.split_scan import Scan
from logstore.config import Stored
from logstore.errors import UnsupportedStore, needs
from logstore.layout.catalog import TopicDescriptor
from logstore.layout.paths import PartitionPaths
from logstore.objects import ObjectStore
from logstore.objects.url import MEMORY, url_of
from logstore.objects.wrappers.slices import is_slice

if TYPE_CHECKING:
    import pyarrow as pa

ALL_COLUMNS = tuple(name for name in COLUMNS if name != "timestampType")
Offsets = int | Mapping[int, int]
Time = int | datetime

_PARTS_AHEAD = 8
_BYTES_AHEAD = 8 << 20
_WHOLE_PARTITIONS = 1 << 62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked of a topic. Offsets and times include the lower bound and leave out the upper one."""

    columns: tuple[str, ...]
    start: Offsets | None
    stop: Offsets | None
    bounds: Bounds
    visibility: Stored = "durable"

    @classmethod
    def of(
        cls,
        columns: Iterable[str] | None,
        start: Offsets | None,
        stop: Offsets | None,
        since: Time | None,
        until: Time | None,
        visibility: Stored = "durable",
    ) -> Query:
        """Checked as far as it can be without a look at the topic; also that `pyarrow` is there."""
        with needs("arrow"):
            import pyarrow  # noqa: F401
        low = -FOREVER if since is None else _milliseconds("since", since)
        high = FOREVER if until is None else _milliseconds("until", until)
        if visibility not in get_args(Stored):
            raise ValueError(
                f"visibility={visibility!r}: columns are of stored records, durable or committed"
            )
        return cls(_columns(columns), start, stop, Bounds(timestamp_range_ms=(low, high)), visibility)

    def ranges(self, store: ObjectStore, topic: TopicDescriptor) -> list[Range]:
        """What it means for each partition, right now."""
        starts = _by_partition("start", self.start, topic)
        stops = _by_partition("stop", self.stop, topic)
        found = load(
            store, [PartitionPaths(topic.name, topic.incarnation, n) for n in range(topic.partitions)]
        )
        if self.visibility == "committed":
            CommittedEnds().look(store, found)
        if isinstance(self.start, int):
            # One offset for all: a partition that ends before it has nothing to give, unless that is true of every one.
            longest = max(found, key=lambda partition: partition.durable_end)
            within(longest, max(self.start, longest.low), True)
            starts = {partition.number: min(self.start, partition.durable_end) for partition in found}
        return [_range(partition, starts, stops) for partition in found]


def batches_of(query: Query, store: ObjectStore, topic: TopicDescriptor) -> pa.RecordBatchReader:
    """Partition after partition, each in offset order. Memory is bounded: some blocks of the partition that is read are on
    their way, and small partitions after it."""
    import pyarrow as pa

    keep_what_batches_free()
    splits = cut(query.ranges(store, topic), max_bytes=_WHOLE_PARTITIONS, bounds=query.bounds)
    scan = _scan("", query.columns, query.bounds)
    parts = (
        _Part(
            _exactly(scan.rows_from(gathered, split), query.columns, split.bounds),
            sum(ref.size for ref in split.refs),
        )
        for gathered, group in _gathered(store, splits)
        for split in group
    )
    return pa.RecordBatchReader.from_batches(arrow_schema(query.columns), _one_after_another(parts))


def _gathered(store: ObjectStore, splits: Iterable[Split]) -> Iterator[tuple[ObjectStore, tuple[Split, ...]]]:
    """Partitions that follow each other and whose slices of lanes' entries fit into what is held of them: each entry is
    fetched once for all of them, and not once for each."""
    group: list[Split] = []
    size = 0
    for split in splits:
        more = sum(ref.size for ref in split.refs if is_slice(ref.key))
        if group and size + more > HELD_BYTES_MAX:
            yield GatheredStore(store, group), tuple(group)
            group, size = [], 0
        group.append(split)
        size += more
    if group:
        yield GatheredStore(store, group), tuple(group)


@dataclass(frozen=True, slots=True, repr=False)
class TopicSplit:
    """A part of a topic that any process can read: offsets `start` up to, not including, `stop` of one partition.

    It pickles, and is small. It holds no credentials: whoever reads it opens the store by its URL, with what boto3
    finds there.
    """

    url: str
    columns: tuple[str, ...]
    split: Split

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.split.paths.topic

    @property
    def partition(self) -> int:
        """All of it is of this one."""
        return self.split.paths.partition

    @property
    def start(self) -> int:
        """The first offset."""
        return self.split.start

    @property
    def stop(self) -> int:
        """One past the last offset."""
        return self.split.stop

    @property
    def schema(self) -> pa.Schema:
        """Of what `read` gives."""
        return arrow_schema(self.columns)

    def read(self) -> pa.RecordBatchReader:
        """The rows, as a stream. Raises what `Topic.arrow_batches` raises."""
        with needs("arrow"):
            import pyarrow as pa

        rows = _scan(self.url, self.columns, self.split.bounds).rows(self.split)
        return pa.RecordBatchReader.from_batches(self.schema, _exactly(rows, self.columns, self.split.bounds))

    def __reduce__(self) -> tuple[object, ...]:
        if self.url.startswith(MEMORY):
            raise UnsupportedStore(
                f"{self!r} cannot leave this process: {self.url} is its memory. Use a folder or a bucket"
            )
        return TopicSplit, (self.url, self.columns, self.split)

    def __repr__(self) -> str:
        return f"TopicSplit({self.topic!r}, partition={self.partition}, start={self.start}, stop={self.stop})"


def splits_of(
    query: Query,
    store: ObjectStore,
    topic: TopicDescriptor,
    max_bytes: int,
    min_splits: int | None,
) -> list[TopicSplit]:
    """The same rows in pieces of about `max_bytes` of stored bytes; smaller ones if they were fewer than `min_splits`."""
    for name, given in (("max_bytes", max_bytes), ("min_splits", 1 if min_splits is None else min_splits)):
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise ValueError(f"{name}={given!r}: it is a whole number, at least 1")
    url = url_of(store)
    if url is None:
        raise UnsupportedStore(
            f"{store!r} has no URL by which another process could open it: use arrow_batches, or open the store by its URL"
        )
    pieces = cut(query.ranges(store, topic), max_bytes=max_bytes, min_splits=min_splits, bounds=query.bounds)
    return [TopicSplit(url, query.columns, piece) for piece in pieces]


def _columns(given: Iterable[str] | None) -> tuple[str, ...]:
    if given is None:
        return ALL_COLUMNS
    if isinstance(given, str):
        raise TypeError(f"columns={given!r}: give a list of names")
    chosen = tuple(given)
    if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(ALL_COLUMNS):
        raise ValueError(f"columns={list(chosen)!r}: name some of {', '.join(ALL_COLUMNS)}, each once")
    return chosen


def _milliseconds(name: str, given: object) -> int:
    """Records have whole milliseconds, so a time between two of them means the later one, for either bound."""
    if isinstance(given, datetime):
        aware = given if given.utcoffset() is not None else given.replace(tzinfo=UTC)
        return -((_EPOCH - aware) // timedelta(milliseconds=1))
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{name} is an int, in milliseconds, or a datetime, not {type(given).__name__}")
    return max(-FOREVER, min(given, FOREVER))


def _by_partition(name: str, given: object, topic: TopicDescriptor) -> dict[int, int]:
    if given is None:
        return {}
    places = given if isinstance(given, Mapping) else dict.fromkeys(range(topic.partitions), given)
    for partition, offset in places.items():
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise TypeError(
                f"{name} is an offset or a dict of partitions and offsets; {offset!r} is no offset"
            )
        if type(partition) is not int or not 0 <= partition < topic.partitions:
            last = topic.partitions - 1
            raise ValueError(f"{name}: topic {topic.name!r} has partitions 0 to {last}, not {partition!r}")
    return dict(places)


def _range(partition: LogPartition, starts: Mapping[int, int], stops: Mapping[int, int]) -> Range:
    """As `PartitionLog.records` takes them: a start must be there, a stop past the end is the end."""
    first = within(partition, starts.get(partition.number, partition.low), True)
    last = min(stops.get(partition.number, partition.end), partition.end)
    return Range(partition, first, max(first, last))


def _scan(url: str, columns: tuple[str, ...], bounds: Bounds) -> Scan:
    """Reads what `_exactly` needs."""
    if bounds.bounds_time and "timestamp" not in columns:
        columns = (*columns, "timestamp")
    return Scan(url, columns, fail_on_data_loss=True)


def _exactly(
    batches: Iterator[pa.RecordBatch], columns: tuple[str, ...], bounds: Bounds
) -> Iterator[pa.RecordBatch]:
    """The rows within the bounds. An index tells the times of a whole batch of records; which of those lie within is for
    each to say."""
    import pyarrow as pa

    if not bounds.bounds_time:
        yield from batches
        return
    low, high = (max(-_INT64, min(ms * 1000, _INT64)) for ms in bounds.timestamp_range_ms)
    for batch in batches:
        stamps = batch.column("timestamp").view(pa.int64()).to_numpy()
        keep = (stamps >= low) & (stamps < high)
        kept = batch if keep.all() else batch.filter(pa.array(keep))
        if kept.num_rows:
            yield kept.select(list(columns))


class _Part(NamedTuple):
    """Batches that are yet to be read, and how many bytes they are in the store."""

    batches: Iterator[pa.RecordBatch]
    size: int


def _one_after_another(parts: Iterable[_Part]) -> Iterator[pa.RecordBatch]:
    """All batches, in order. A large part fetches ahead by itself; of small ones the next few are begun meanwhile, so that
    many small partitions are not one wait for the store after the other."""
    begun: deque[tuple[_Part, Future[pa.RecordBatch | None]]] = deque()
    size = 0
    pool = ThreadPoolExecutor(_PARTS_AHEAD, thread_name_prefix="logstore-arrow")
    try:
        for part in parts:
            begun.append((part, pool.submit(next, part.batches, None)))
            size += part.size
            while begun and (size > _BYTES_AHEAD or len(begun) > _PARTS_AHEAD):
                size -= begun[0][0].size
                yield from _rest_of(*begun.popleft())
        while begun:
            yield from _rest_of(*begun.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _rest_of(part: _Part, first: Future[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
    batch = first.result()
    if batch is not None:
        yield batch
        yield from part.batches
