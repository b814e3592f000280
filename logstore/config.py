"""Every setting and its default, once."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, Unpack, get_args

from logstore.format.batches.codecs import CODEC_IDS

Ack = Literal["buffered", "local", "durable"]
WriterKind = Literal["exclusive", "shared", "read_only"]
Visibility = Literal["buffered", "durable", "committed"]
"""What a reader sees: what is acked; what is in the object store; of that, what no transaction can take back."""
Stored = Literal["durable", "committed"]
"""Those that need no writer: of columns and tables."""
TakeOver = bool | Literal["if_gone"]

MIB = 1 << 20
_MAX_BATCH_BYTES = 1 * MIB
_LANE_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How a store behaves. Times are in seconds, sizes in bytes.

    >>> StoreConfig(flush_interval=0.2).flush_interval
    0.2
    """

    writer: WriterKind = "exclusive"
    """`exclusive`: one owner, fenced. `shared`: many producers, durable acks only. `read_only`: no appends."""
    ack: Ack = "durable"
    """What an append waits for when the call does not say."""
    take_over: TakeOver = False
    """Whether opening a writer may stop the one before it. False: unless that one provably lives on this machine, in another
    process; and one that finds shared writers joins them. True: in any case. `if_gone`: only if it has said that it closed,
    or is provably gone, as a command does that somebody types beside a service."""
    flush_bytes: int = 8 * MIB
    """A partition with this much unflushed data is flushed at once."""
    flush_interval: float = 1.0
    """Unflushed data is at most this old when its upload starts."""
    max_buffered_bytes: int = 64 * MIB
    """The limit for unflushed data of the whole store, uploads in flight included."""
    append_timeout: float = 30.0
    """How long an append waits for room, and for its ack, when the call does not say."""
    close_timeout: float = 20.0
    """How long `Store.close` takes at the most when the call does not say: for all partitions, threads and connections
    together. Less than the 30 s that Kubernetes gives a process to end."""
    compression: str = "zstd"
    """Of the batches that we encode: zstd, lz4, snappy, gzip or none. Batches handed in encoded stay as they are."""
    wal_dir: str | os.PathLike[str] | None = None
    """Where `local` acks are written, of all partitions into one WAL: a folder for one process at a time. Needed for
    ack="local"."""
    cache_bytes: int = 64 * MIB
    """How much of the segments read is kept in memory."""
    max_batch_bytes: int = _MAX_BATCH_BYTES
    """The largest record batch, so also the largest record. The default is less where `max_buffered_bytes` is."""
    uploads_max: int = 8
    """How many partitions upload at the same time."""
    probe_interval: float = 1.0
    """While the store is down: how often it is tried."""
    follow_interval: float = 0.5
    """How often a waiting reader polls the store for a partition that another process writes."""
    lane: str | None = None
    """The name under which the next life of this process adopts what it wrote: all its partitions at once. One process at a
    time has it. Letters, digits, `-` and `_`. Exclusive writers only."""
    lanes: int = 1
    """Through how many lanes the exclusive writers of this process commit: with 1, a flush is one PUT whatever the number of
    partitions in it. 0: each partition commits to a chain of its own."""
    durable_linger: float = 0.0
    """The least time between the starts of two uploads of a lane. 0: an upload starts when the one before it has ended."""
    delete_grace: float = 24 * 3600.0
    """Maintenance deletes no object younger than this."""
    stall_after: float = 60.0
    """A writer that holds data and has made no progress for this long is reported as stalled, and so is a store that has
    not answered an upload for this long."""

    def __post_init__(self) -> None:
        _one_of("writer", self.writer, get_args(WriterKind))
        _one_of("ack", self.ack, get_args(Ack))
        _one_of("compression", self.compression, tuple(CODEC_IDS))
        if self.take_over is not True and self.take_over is not False and self.take_over != "if_gone":
            raise ValueError(f"take_over={self.take_over!r}: it is one of False, True, 'if_gone'")
        for name in ("flush_bytes", "max_buffered_bytes", "max_batch_bytes", "uploads_max"):
            object.__setattr__(self, name, _whole(name, getattr(self, name), 1))
        for name in ("cache_bytes", "lanes"):
            object.__setattr__(self, name, _whole(name, getattr(self, name), 0))
        if self.lane is not None and not (isinstance(self.lane, str) and _LANE_NAME.fullmatch(self.lane)):
            raise ValueError(f"lane={self.lane!r}: it is up to 100 letters, digits, '-' and '_', or None")
        if self.lane is not None and self.writer == "shared":
            raise ValueError("lane= is a name for exclusive writers: shared ones have no lane, leave it out")
        _at_least("durable_linger", self.durable_linger, 0)
        _at_least("delete_grace", self.delete_grace, 0)
        for name in ("flush_interval", "append_timeout", "close_timeout"):
            _at_least(name, getattr(self, name), 0, or_infinite=True)
        for name in ("probe_interval", "follow_interval", "stall_after"):
            _at_least(name, getattr(self, name), 0.001, or_infinite=True)
        if self.max_batch_bytes > self.max_buffered_bytes:
            if self.max_batch_bytes != _MAX_BATCH_BYTES:
                raise ValueError(
                    "max_batch_bytes must not be larger than max_buffered_bytes: such a batch could never be taken"
                )
            object.__setattr__(self, "max_batch_bytes", self.max_buffered_bytes)
        if not isinstance(self.wal_dir, str | os.PathLike | None):
            raise ValueError(f"wal_dir={self.wal_dir!r}: it is a path, or None")
        if self.ack == "local" and self.wal_dir is None:
            raise ValueError('ack="local" needs wal_dir, a folder on a local disk')
        if self.writer == "shared" and self.ack != "durable":
            raise ValueError('writer="shared" knows durable acks only: set ack="durable"')

    def with_settings(self, **settings: Unpack[StoreSettings]) -> StoreConfig:
        """A copy with some fields changed; `TypeError` for one that does not exist, naming the nearest."""
        check_names("setting", settings, StoreConfig, "config")
        return replace(self, **settings)


class StoreSettings(TypedDict, total=False):
    """The fields of `StoreConfig` as keyword arguments, so that a type checker and an editor know them. Those that are not
    given keep their defaults. A test compares the two."""

    writer: WriterKind
    ack: Ack
    take_over: TakeOver
    flush_bytes: int
    flush_interval: float
    max_buffered_bytes: int
    append_timeout: float
    close_timeout: float
    compression: str
    wal_dir: str | os.PathLike[str] | None
    cache_bytes: int
    max_batch_bytes: int
    uploads_max: int
    probe_interval: float
    follow_interval: float
    lane: str | None
    lanes: int
    durable_linger: float
    delete_grace: float
    stall_after: float


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's own settings, kept in its descriptor. None means no limit, and so does a retention of `inf`."""

    retention_seconds: float | None = None
    """A record's age is that of its timestamp; without one (−1), that of its segment."""
    retention_bytes: int | None = None
    segment_bytes: int = 16 * MIB
    """A flush that holds more than this becomes several segments; compaction merges up to it, in memory for two."""
    compact: bool = False
    """Compaction by key: of the records with the same key the last one is kept, as with Kafka's `cleanup.policy=compact`.
    Every record must have a key then. Retention applies as well, if there is any."""
    tombstone_seconds: float = 24 * 3600.0
    """How long compaction keeps a tombstone, once nothing is left of what it deletes (Kafka's `delete.retention.ms`)."""
    compact_after_seconds: float = 0.0
    """Compaction leaves records alone that are younger than this (`min.compaction.lag.ms`)."""
    compact_within_seconds: float | None = None
    """Compaction begins at the latest when a record that it has not looked at is so old (`max.compaction.lag.ms`)."""
    dirty_ratio: float = 0.5
    """Compaction begins when more than this share of the bytes is new to it (`min.cleanable.dirty.ratio`)."""

    def __post_init__(self) -> None:
        for name in ("retention_seconds", "retention_bytes", "compact_within_seconds"):
            if getattr(self, name) == math.inf:
                object.__setattr__(self, name, None)
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 0)
        _at_least("segment_bytes", self.segment_bytes, 1)
        if not isinstance(self.compact, bool):
            raise ValueError(f"compact={self.compact!r}: it is True or False")
        for name in ("tombstone_seconds", "compact_after_seconds"):
            _at_least(name, getattr(self, name), 0)
        _at_least("dirty_ratio", self.dirty_ratio, 0)
        if self.dirty_ratio > 1:
            raise ValueError(f"dirty_ratio={self.dirty_ratio!r}: it is a share, at most 1")


class TopicOptions(TypedDict, total=False):
    """The fields of `TopicConfig` as keyword arguments, in the same way."""

    retention_seconds: float | None
    retention_bytes: int | None
    segment_bytes: int
    compact: bool
    tombstone_seconds: float
    compact_after_seconds: float
    compact_within_seconds: float | None
    dirty_ratio: float


def check_names(
    kind: str, given: Iterable[str], config: type[StoreConfig | TopicConfig], *others: str
) -> None:
    """`TypeError` for a name that is no field of `config`: it names the nearest one, and all there are. `others` are
    arguments of the same call that may have been meant."""
    known = [field.name for field in fields(config)]
    for name in given:
        if name not in known:
            near = get_close_matches(name, [*others, *known], n=1)
            meant = f", did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"unknown {kind} {name!r}{meant}; there are: {', '.join(known)}")


def check_visibility(visibility: object) -> None:
    """`ValueError` unless it is one of those there are."""
    _one_of("visibility", visibility, get_args(Visibility))


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: it is one of {', '.join(allowed)}")


def _whole(name: str, value: Any, low: int) -> int:
    """The number of something that is counted; `1e6` is one too."""
    _at_least(name, value, low)
    if value != int(value):
        raise ValueError(f"{name}={value!r}: it is a whole number, at least {low}")
    return int(value)


def _at_least(name: str, value: object, low: float, *, or_infinite: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= low:
        raise ValueError(f"{name}={value!r}: it is a number, at least {low}")
    if value == math.inf and not or_infinite:
        raise ValueError(f"{name}={value!r}: it must be finite")
