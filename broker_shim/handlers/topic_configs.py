"""Kafka's topic settings in terms of ours, and back. Pure.

Three of them can be changed and take effect: `retention.ms`, `retention.bytes`, `segment.bytes` (-1: no
limit). The others say how this broker behaves anyway; setting one of them to what it already is changes
nothing and is allowed, so that tools which write a full set of settings work. Anything else is refused, by
name.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

from logstore.config import TopicConfig

FIXED = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
}
NO_LIMIT = "-1"
_LONG, _INT, _STRING = 5, 3, 2
_LONG_MAX, _INT_MAX = 2**63 - 1, 2**31 - 1


class InvalidConfig(ValueError):
    """A setting that does not exist here, or a value it cannot have."""


class Entry(NamedTuple):
    """A setting as DescribeConfigs shows it."""

    name: str
    value: str
    read_only: bool
    is_default: bool
    kind: int


def to_settings(configs: dict[str, str | None]) -> dict[str, Any]:
    """Our topic settings for Kafka's. None takes a setting back to its default."""
    settings: dict[str, Any] = {}
    for name, value in configs.items():
        if name == "retention.ms":
            limit = _limit(name, value, _LONG_MAX)
            settings["retention_seconds"] = None if limit is None else limit / 1000
        elif name == "retention.bytes":
            settings["retention_bytes"] = _limit(name, value, _LONG_MAX)
        elif name == "segment.bytes":
            size = _limit(name, value, _INT_MAX)
            settings["segment_bytes"] = _default("segment_bytes") if size is None else size
        elif name not in FIXED:
            raise InvalidConfig(
                f"{name} is not a setting here; there are: retention.ms, retention.bytes, segment.bytes"
            )
        elif value not in (None, FIXED[name]):
            raise InvalidConfig(f"{name} is {FIXED[name]} here and cannot be {value}")
    return settings


def _limit(name: str, value: str | None, largest: int) -> int | None:
    if value is None or value == NO_LIMIT:
        return None
    try:
        number = int(value)
    except ValueError as error:
        raise InvalidConfig(f"{name}={value[:40]}: it is a whole number") from error
    if not 0 < number <= largest:
        raise InvalidConfig(f"{name}={value[:40]}: it is positive and at most {largest}, or -1 for no limit")
    return number


def _default(name: str) -> Any:
    return next(field.default for field in fields(TopicConfig) if field.name == name)


def describe(config: TopicConfig, max_message_bytes: int) -> list[Entry]:
    seconds = config.retention_seconds
    return [
        Entry(
            "retention.ms",
            # Seconds are a float: "for ever", Kafka's largest number, would come out one too large.
            NO_LIMIT if seconds is None else str(min(round(seconds * 1000), _LONG_MAX)),
            False,
            seconds == _default("retention_seconds"),
            _LONG,
        ),
        Entry(
            "retention.bytes",
            NO_LIMIT if config.retention_bytes is None else str(config.retention_bytes),
            False,
            config.retention_bytes == _default("retention_bytes"),
            _LONG,
        ),
        Entry(
            "segment.bytes",
            str(config.segment_bytes),
            False,
            config.segment_bytes == _default("segment_bytes"),
            _INT,
        ),
        Entry("max.message.bytes", str(max_message_bytes), True, True, _INT),
        *(Entry(name, value, True, True, _STRING) for name, value in FIXED.items()),
    ]
