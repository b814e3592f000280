"""The options of the source, checked: every name and every value, on the driver, before anything is read.

They are those of Spark's Kafka source, with its defaults, and a few of our own. A bad one is answered with what is
allowed. Options travel to executors pickled inside of readers, so none of them is a secret: credentials come from
the environment of each process, as for every other user of the object store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import get_args

from logstore.arrow.plan.positions import EARLIEST, LATEST, Bound, parse_map
from logstore.arrow.plan.request import ReadOptions, Subscription
from logstore.arrow.scan.columns import BASE_COLUMNS, COLUMNS
from logstore.config import MIB, Stored
from logstore.layout.paths import check_topic_name

READ_OPTIONS = (
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "view",
    "visibility",
    "kafka.isolation.level",
    "pollInterval",
)
STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "pollInterval",
)
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
VIEWS = ("log", "latest", "upsert")
TASK_BYTES = 64 * MIB
"""Each task has a fixed cost, in the JVM and in Spark's Python worker, and of larger ones the last ends late."""

_OF_A_TABLE = "provider"
"""An option that is there only when Spark asks for the schema of a table that it is about to create."""
_NO_TABLES = (
    "the catalog forgets the options of a Python source, so what CREATE TABLE makes could not be read. "
    "Use CREATE TEMPORARY VIEW … USING logstore OPTIONS (…)"
)
_NO_CONSUMER = "; there is no consumer and no broker: leave it out"
_HINTS = {
    "kafka.": "; there is no broker to configure: leave it out, and say in path where the log store is",
    "kafkaconsumer.": _NO_CONSUMER,
    "fetchoffset.": _NO_CONSUMER,
    "groupidprefix": _NO_CONSUMER,
    "pushfilters": "; it gave the second query of a frame the filters of the first. Use logstore.spark.scan(…, where=…)",
    "topic": "; what is read is said by subscribe, and a view to insert into says its columns",
    "subscribe": "; where rows go is said by topic",
}
"""For what is allowed elsewhere, by how its name starts."""


def read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """The options of `spark.read` or `spark.readStream`, or `ValueError` saying what is wrong and what is allowed.

    `streaming` is None where Spark asks for the schema and does not say which of the two it will be.
    """
    options = named_options(given, READ_OPTIONS, "reading")
    for name in () if streaming is None else BATCH_ONLY if streaming else STREAM_ONLY:
        if name in options:
            raise ValueError(f"{name} is for {'spark.read' if streaming else 'spark.readStream'} alone")
    view = options.get("view", "log")
    if view not in VIEWS:
        raise ValueError(f"view={view!r}: it is one of {', '.join(VIEWS)}")
    if streaming and view == "latest":
        raise ValueError("view=latest is for spark.read alone: a stream of changes has no last one")
    if view == "upsert" and "columns" in options:
        raise ValueError("view=upsert has columns of its own: leave the option columns out")
    start = _bound(options, "starting", LATEST if streaming else EARLIEST)
    end = _bound(options, "ending", LATEST)
    if streaming is False:
        _refuse(start, LATEST, "startingOffsets", "the latest offset is where a batch read ends")
        _refuse(end, EARLIEST, "endingOffsets", "the earliest offset is where a batch read starts")
    most, least = _count(options, "maxOffsetsPerTrigger"), _count(options, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ValueError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    return ReadOptions(
        path=path_of(options),
        subscription=_subscription(options),
        start=start,
        end=end,
        start_falls_to_latest=_choice(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "latest",
        columns=_columns(options),
        view=view,  # type: ignore[arg-type]
        visibility=_visibility(options),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        min_partitions=_count(options, "minPartitions"),
        max_records_per_partition=_count(options, "maxRecordsPerPartition"),
        max_bytes_per_partition=_count(options, "maxBytesPerPartition") or TASK_BYTES,
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_bytes_per_trigger=_count(options, "maxBytesPerTrigger"),
        max_trigger_delay_s=_duration(options, "maxTriggerDelay", 15 * 60.0),
        poll_interval_s=_seconds(options, "pollInterval", 0.2),
    )


def _visibility(options: Mapping[str, str]) -> Stored:
    """Ours, or what a job says that has read from Kafka before; its default is Kafka's."""
    said = options.get("visibility", "").lower()
    if said not in ("", *get_args(Stored)):
        raise ValueError(
            f"visibility={options['visibility']!r}: Spark reads segments, so it sees durable or committed records; "
            "for acked records that are not yet durable read through broker_shim with Spark's Kafka source"
        )
    levels: dict[str, Stored] = {"": "durable", "read_uncommitted": "durable", "read_committed": "committed"}
    level = options.get("kafka.isolation.level", "").lower()
    if level not in levels:
        raise ValueError(f"kafka.isolation.level={level!r}: it is read_committed or read_uncommitted")
    if said and level and said != levels[level]:
        raise ValueError(f"visibility={said!r} and kafka.isolation.level={level!r} say different things")
    return "committed" if "committed" in (said, levels[level]) else "durable"


def named_options(given: Mapping[str, str], known: tuple[str, ...], doing: str) -> dict[str, str]:
    """The options under the names that we document: Spark hands them over in lower case."""
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    if any(key.lower() == _OF_A_TABLE for key in given):
        raise ValueError(f"a log cannot be a table of Spark's catalog: {_NO_TABLES}")
    for key, value in given.items():
        name = names.get(key.lower())
        if name is None:
            hint = next((hint for start, hint in _HINTS.items() if key.lower().startswith(start)), "")
            raise ValueError(f"unknown option {key!r} for {doing}{hint}. Allowed: {', '.join(known)}")
        found[name] = str(value)
    return found


def path_of(options: Mapping[str, str]) -> str:
    path = options.get("path", "").strip()
    if not path:
        raise ValueError(
            "option path is missing: say where the log store is, as s3://bucket/prefix or file:///folder. "
            f"If this is a table of Spark's catalog: {_NO_TABLES}"
        )
    if path.startswith("memory:"):
        raise ValueError("path=memory://…: executors are other processes and cannot see this one's memory")
    return path


def _subscription(options: Mapping[str, str]) -> Subscription:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(ways) != 1:
        raise ValueError(
            f"exactly one of subscribe, subscribePattern and assign is needed, not {', '.join(ways) or 'none'}"
        )
    text = options[ways[0]]
    if ways[0] == "subscribe":
        topics = [check_topic_name(name.strip()) for name in text.split(",") if name.strip()]
        if not topics:
            raise ValueError("subscribe names no topic: give a name, or several with commas between them")
        return Subscription(topics=tuple(sorted(set(topics))))
    if ways[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(
                f"subscribePattern={text!r} is no regular expression of Python's: {error}. Java's classes have other names "
                "there: [A-Za-z] for \\p{Alpha}, \\d for \\p{Digit}, [^\\W_] for \\p{Alnum}; \\Q…\\E is not known"
            ) from None
        return Subscription(pattern=text)
    return Subscription(assigned=_assigned(text))


def _assigned(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    wrong = f'assign={text[:200]!r} is not of the form {{"orders": [0, 1]}}'
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{wrong}: {error}") from None
    if not isinstance(given, dict) or not given:
        raise ValueError(wrong)
    for numbers in given.values():
        if not isinstance(numbers, list) or not all(
            isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers
        ):
            raise ValueError(wrong)
    return tuple((check_topic_name(topic), tuple(sorted(set(given[topic])))) for topic in sorted(given))


def _bound(options: Mapping[str, str], side: str, default: int) -> Bound:
    name = f"{side}Timestamp"
    if name in options:
        return Bound(default, timestamp_ms=whole_number(name, options[name], 0))
    # Where timestamps or offsets are given for some partitions, the others are read whole.
    rest = EARLIEST if side == "starting" else LATEST
    name = f"{side}OffsetsByTimestamp"
    if name in options:
        return Bound(rest, timestamps_ms=parse_map(name, options[name], lowest=0))
    name = f"{side}Offsets"
    text = options.get(name, "").strip()
    if not text:
        return Bound(default)
    if text.lower() in ("earliest", "latest"):
        return Bound(EARLIEST if text.lower() == "earliest" else LATEST)
    if not text.startswith("{"):
        raise ValueError(
            f'{name}={text[:200]!r}: it is earliest, latest, or JSON such as {{"orders": {{"0": 23}}}}'
        )
    return Bound(rest, offsets=parse_map(name, text, lowest=EARLIEST))


def _refuse(bound: Bound, mark: int, name: str, why: str) -> None:
    given = [offset for partitions in (bound.offsets or {}).values() for offset in partitions.values()]
    if bound.default == mark or mark in given:
        raise ValueError(f"{name} cannot be {'latest' if mark == LATEST else 'earliest'} here: {why}")


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = flag(options, "includeHeaders", False)
    if "columns" not in options:
        return COLUMNS if with_headers else BASE_COLUMNS
    names = tuple(name.strip() for name in options["columns"].split(",") if name.strip())
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names or len(set(names)) != len(names):
        raise ValueError(f"columns={options['columns']!r}: name each once, of {', '.join(COLUMNS)}")
    return names


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name}={options[name]!r}: it is true or false")
    return text == "true"


def _choice(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    text = options.get(name, allowed[0]).strip().lower()
    if text not in allowed:
        raise ValueError(f"{name}={options[name]!r}: it is one of {', '.join(allowed)}")
    return text


def _count(options: Mapping[str, str], name: str) -> int | None:
    return whole_number(name, options[name], 1) if name in options else None


def whole_number(name: str, text: str, lowest: int, highest: int | None = None) -> int:
    try:
        number = int(text)
    except ValueError:
        number = lowest - 1
    if number < lowest or (highest is not None and number > highest):
        limit = "" if highest is None else f" and at most {highest}"
        raise ValueError(f"{name}={text!r}: it is a whole number, at least {lowest}{limit}")
    return number


_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(options: Mapping[str, str], name: str, default_s: float) -> float:
    """As Spark writes it: `15m`, `30s`; a number alone is milliseconds."""
    if name not in options:
        return default_s
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", options[name].strip().lower())
    if found is None or (found[2] or "ms") not in _UNITS_S:
        raise ValueError(
            f"{name}={options[name]!r}: it is a number and a unit of {', '.join(_UNITS_S)}, such as 15m"
        )
    return int(found[1]) * _UNITS_S[found[2] or "ms"]


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name, str(default))
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 3600:
        raise ValueError(f"{name}={text!r}: it is a number of seconds, from 0 to 3600")
    return number
