"""Kafka's topic settings: which there are, which values they may have, and what they mean here. Pure.

A topic keeps what was set, word for word (`TopicDescriptor.kafka`), and describes it so. What it means for the log is in
the topic's own settings, and changes together with it:

* `retention.ms`, `retention.bytes` (below 0: no limit; with `cleanup.policy=compact` alone nothing expires) and
  `segment.bytes`: fields of `TopicConfig`. Where the library has altered these since, they count, and are described.
* `max.message.bytes`, `compression.type` with its level, `message.timestamp.type`: `partitions.topic_rules`.

The others have nothing here that they could change: there are no replicas, no files and no page cache. Unknown names, and
values that Kafka refuses, are refused with its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from broker_shim.partitions.topic_rules import LEVELS
from logstore.config import TopicConfig
from logstore.layout.catalog import TopicDescriptor

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
TYPES = {BOOLEAN: "BOOLEAN", STRING: "STRING", INT: "INT", LONG: "LONG", DOUBLE: "DOUBLE", LIST: "LIST"}
SOURCE_TOPIC, SOURCE_FLAG, SOURCE_DEFAULT = 1, 4, 5
LONG_MAX, INT_MAX = 2**63 - 1, 2**31 - 1
VALUE_CHARS_MAX = 8192
SEGMENT_BYTES_MAX = 64 << 20
"""A merge holds its segments in memory: Kafka's customary gigabyte is kept and described, and this much of it is used."""
MAX_MESSAGE_BYTES = "max.message.bytes"


class InvalidConfig(ValueError):
    """A setting that does not exist here, or a value it cannot have."""


class Kind(NamedTuple):
    """One setting: its type, its default, its bounds or the values it may have. `is_shown`: also when nobody has set it."""

    kind: int
    default: str
    low: float = -(2**63)
    high: float = LONG_MAX
    among: tuple[str, ...] = ()
    is_shown: bool = True


class Entry(NamedTuple):
    """A setting as DescribeConfigs shows it."""

    name: str
    value: str
    read_only: bool
    source: int
    kind: int
    synonyms: tuple[tuple[str, str, int], ...] = ()
    """Where its value could come from, the first one counts: name, value, source."""


def default_of(field: str) -> Any:
    return next(each.default for each in fields(TopicConfig) if each.name == field)


SETTINGS: dict[str, Kind] = {
    "cleanup.policy": Kind(LIST, "delete", among=("compact", "delete")),
    "compression.gzip.level": Kind(INT, LEVELS["gzip"], -1, 9),
    "compression.lz4.level": Kind(INT, LEVELS["lz4"], 1, 17),
    "compression.type": Kind(
        STRING, "producer", among=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
    ),
    "compression.zstd.level": Kind(INT, LEVELS["zstd"], -131072, 22),
    "delete.retention.ms": Kind(LONG, "86400000", 0),
    "file.delete.delay.ms": Kind(LONG, "60000", 0),
    "flush.messages": Kind(LONG, str(LONG_MAX), 1),
    "flush.ms": Kind(LONG, str(LONG_MAX), 0),
    "follower.replication.throttled.replicas": Kind(LIST, ""),
    "index.interval.bytes": Kind(INT, "4096", 0),
    "leader.replication.throttled.replicas": Kind(LIST, ""),
    "local.retention.bytes": Kind(LONG, "-2", -2),
    "local.retention.ms": Kind(LONG, "-2", -2),
    "max.compaction.lag.ms": Kind(LONG, str(LONG_MAX), 1),
    MAX_MESSAGE_BYTES: Kind(INT, "", 0),  # its default is a flag of the broker
    "message.downconversion.enable": Kind(BOOLEAN, "true", is_shown=False),
    "message.format.version": Kind(STRING, "3.0-IV1", is_shown=False),
    "message.timestamp.after.max.ms": Kind(LONG, str(LONG_MAX), 0),
    "message.timestamp.before.max.ms": Kind(LONG, str(LONG_MAX), 0),
    "message.timestamp.difference.max.ms": Kind(LONG, str(LONG_MAX), 0, is_shown=False),
    "message.timestamp.type": Kind(STRING, "CreateTime", among=("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": Kind(DOUBLE, "0.5", 0, 1),
    "min.compaction.lag.ms": Kind(LONG, "0", 0),
    "min.insync.replicas": Kind(INT, "1", 1),
    "preallocate": Kind(BOOLEAN, "false"),
    "remote.log.copy.disable": Kind(BOOLEAN, "false"),
    "remote.log.delete.on.disable": Kind(BOOLEAN, "false"),
    "remote.storage.enable": Kind(BOOLEAN, "false", among=("false",)),
    "retention.bytes": Kind(LONG, "-1"),
    "retention.ms": Kind(LONG, "-1", -1),
    "segment.bytes": Kind(INT, str(default_of("segment_bytes")), 14),
    "segment.index.bytes": Kind(INT, "10485760", 4),
    "segment.jitter.ms": Kind(LONG, "0", 0),
    "segment.ms": Kind(LONG, "604800000", 1),
    "unclean.leader.election.enable": Kind(BOOLEAN, "false"),
}
_SYNONYMS = {
    "cleanup.policy": "log.cleanup.policy",
    MAX_MESSAGE_BYTES: "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
}
"""What the broker calls the default of a topic's setting, where the names differ."""


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────


def check(name: str, value: str) -> str:
    """The value as it is kept. Raises `InvalidConfig` as Kafka would."""
    known = SETTINGS.get(name)
    if known is None:
        raise InvalidConfig(f"Unknown topic config name: {name[:80]}")
    if len(value) > VALUE_CHARS_MAX:
        raise InvalidConfig(f"{name} has {len(value)} characters; at most {VALUE_CHARS_MAX} are kept")
    value = value.strip()
    if known.kind in (INT, LONG, DOUBLE):
        _check_number(name, value, known)
    elif known.kind == BOOLEAN:
        value = value.lower()
        if value not in ("true", "false"):
            raise _invalid(name, value, "Expected value to be either true or false")
    for each in _items(value) if known.kind == LIST else [value]:
        if known.among and each not in known.among:
            raise _invalid(name, value, f"String must be one of: {', '.join(known.among)}")
    if name == "compression.gzip.level" and value == "0":
        raise _invalid(name, value, "Value must be between 1 and 9 or equal to -1")
    return value


def _check_number(name: str, value: str, known: Kind) -> None:
    try:
        number = float(value) if known.kind == DOUBLE else _whole(value)
    except ValueError as error:
        raise _invalid(name, value, f"Not a number of type {TYPES[known.kind]}") from error
    largest = INT_MAX if known.kind == INT else LONG_MAX
    if not -largest - 1 <= number <= largest:
        raise _invalid(name, value, f"Not a number of type {TYPES[known.kind]}")
    if number < known.low:
        raise _invalid(name, value, f"Value must be at least {known.low:g}")
    if number > known.high:
        raise _invalid(name, value, f"Value must be no more than {known.high:g}")


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):  # int() knows more spellings than Java
        raise ValueError(text)
    return int(text)


def _invalid(name: str, value: str, why: str) -> InvalidConfig:
    return InvalidConfig(f"Invalid value {value[:80]} for configuration {name}: {why}")


def _items(value: str) -> list[str]:
    return [each.strip() for each in value.split(",")] if value else []


def edit_list(name: str, present: str | None, value: str, *, append: bool) -> str:
    """A list with more, or fewer, items (IncrementalAlterConfigs)."""
    known = SETTINGS.get(name)
    if known is None:
        raise InvalidConfig(f"Unknown topic config name: {name[:80]}")
    if known.kind != LIST:
        word = "APPEND to" if append else "SUBTRACT from"
        raise InvalidConfig(f"Can't {word} key {name} because its type is not LIST.")
    items = _items(known.default if present is None else present)
    changed = _items(value)
    if append:
        return ",".join([*items, *(each for each in changed if each not in items)])
    return ",".join(each for each in items if each not in changed)


# ── what they mean for the log ───────────────────────────────────────────────────────────────────────────────


def effects(values: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a topic's `TopicConfig` that its settings decide."""
    policy = _items(values.get("cleanup.policy", "delete"))
    expires = "delete" in policy
    within = _limit(values.get("max.compaction.lag.ms"))
    seconds = _limit(values.get("retention.ms"))
    size = values.get("segment.bytes")
    return {
        "retention_seconds": seconds / 1000 if expires and seconds is not None else None,
        "retention_bytes": _limit(values.get("retention.bytes")) if expires else None,
        "segment_bytes": default_of("segment_bytes") if size is None else min(int(size), SEGMENT_BYTES_MAX),
        "compact": "compact" in policy,
        "tombstone_seconds": _seconds(values, "delete.retention.ms", "tombstone_seconds"),
        "compact_after_seconds": _seconds(values, "min.compaction.lag.ms", "compact_after_seconds"),
        "compact_within_seconds": None if within in (None, LONG_MAX) else within / 1000,
        "dirty_ratio": float(values.get("min.cleanable.dirty.ratio", default_of("dirty_ratio"))),
    }


def _seconds(values: Mapping[str, str], name: str, field: str) -> float:
    return int(values[name]) / 1000 if name in values else float(default_of(field))


def _limit(value: str | None) -> int | None:
    return None if value is None or int(value) < 0 else int(value)


def _show_ms(seconds: float) -> str:
    # Seconds are a float: "for ever", Kafka's largest number, would come out one too large.
    return str(min(round(seconds * 1000), LONG_MAX))


_OURS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("retention.ms", "retention_seconds", _show_ms),
    ("retention.bytes", "retention_bytes", str),
    ("segment.bytes", "segment_bytes", str),
    ("delete.retention.ms", "tombstone_seconds", _show_ms),
    ("min.compaction.lag.ms", "compact_after_seconds", _show_ms),
    ("max.compaction.lag.ms", "compact_within_seconds", _show_ms),
    ("min.cleanable.dirty.ratio", "dirty_ratio", str),
)


def values_of(topic: TopicDescriptor) -> dict[str, str]:
    """What is set. Where the library has altered the topic since, what it says counts."""
    values = dict(topic.kafka)
    meant = effects(values)
    for name, field, show in _OURS:
        actual = getattr(topic.config, field)
        if actual == meant[field]:
            continue
        values.pop(name, None)
        if actual != default_of(field):
            values[name] = show(actual)
    config = topic.config
    if config.compact != meant["compact"]:
        expires = config.retention_seconds is not None or config.retention_bytes is not None
        values["cleanup.policy"] = (
            ("compact,delete" if expires else "compact") if config.compact else "delete"
        )
    return values


# ── shown ────────────────────────────────────────────────────────────────────────────────────────────────────


def describe(values: Mapping[str, str], max_message_bytes: int, *, is_flag: bool) -> list[Entry]:
    """Every setting of a topic for which these are set. `is_flag`: the broker's limit on messages was set."""
    entries = []
    for name, known in SETTINGS.items():
        is_limit = name == MAX_MESSAGE_BYTES
        default = str(max_message_bytes) if is_limit else known.default
        below = SOURCE_FLAG if is_limit and is_flag else SOURCE_DEFAULT
        fallback = (_SYNONYMS.get(name, name), default, below)
        if name in values:
            own = (name, values[name], SOURCE_TOPIC)
            entries.append(Entry(name, values[name], False, SOURCE_TOPIC, known.kind, (own, fallback)))
        elif known.is_shown:
            entries.append(Entry(name, default, False, below, known.kind, (fallback,)))
    return entries
