"""What the `where` of a scan leaves of the log, as `Bounds`: `partition = 3 and timestamp >= '2026-01-01'`.

Of conditions that are joined by AND, those are used that compare `topic`, `partition`, `offset` or `timestamp` with
constants. Whatever is not understood narrows nothing. A bound is only ever wider than the condition: Spark itself judges
each row by the whole of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from logstore.arrow.plan.bounds import EVERYTHING, FOREVER, Bounds
from logstore.arrow.scan.columns import COLUMNS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TOKEN = re.compile(
    r"\s*(?:'(?P<text>[^'\\]*)'(?!')|(?P<number>\d+)(?![\w.])|`(?P<name>[^`]+)`|(?P<word>[A-Za-z_]\w*)|"
    r"(?P<sign><=>|<=|>=|<>|!=|==|[=<>(),+\-*/%.]))"
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)?)?")
_SIGNS = {"=": "=", "==": "=", "<=>": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

Token = tuple[str, str]
Times = tuple[int, int]


def bounds_of(where: str, time_zone: str = "UTC") -> Bounds:
    """The bounds that the condition leaves. Texts of times that name no zone are in `time_zone`, as in Spark."""
    tokens = _tokens(where)
    if tokens is None:
        return EVERYTHING
    bounds = EVERYTHING
    for condition in _conjuncts(tokens):
        bounds = _narrowed(bounds, condition, time_zone)
    return bounds


def columns_in(where: str) -> set[str]:
    """The columns of ours that the text may speak of."""
    return {name for name in COLUMNS if re.search(rf"\b{name}\b", where, re.IGNORECASE)}


def _tokens(where: str) -> list[Token] | None:
    """None if something is in it that is not known here: comments, escapes, functions' odd signs."""
    found: list[Token] = []
    at = 0
    text = where.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if (
            match is None
            or match.lastgroup is None
            or text.startswith(("--", "/*"), match.start(match.lastgroup))
        ):
            return None
        kind, value = match.lastgroup, match[match.lastgroup]
        found.append((kind, value.lower() if kind in ("word", "name") else value))
        at = match.end()
    return found


def _conjuncts(tokens: list[Token]) -> Iterator[list[Token]]:
    """The conditions that all must hold. None at all where that cannot be told."""
    words = [value for kind, value in tokens if kind == "word"]
    if "case" in words:
        return
    depth = 0
    parts: list[list[Token]] = [[]]
    between = False
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token[1], 0) if token[0] == "sign" else 0
        if depth == 0 and token == ("word", "or"):
            return
        if depth == 0 and token == ("word", "and") and not between:
            parts.append([])
            continue
        if depth == 0 and token[0] == "word":
            between = token[1] == "between" or (between and token[1] != "and")
        parts[-1].append(token)
    for part in parts:
        if _is_wrapped(part):
            yield from _conjuncts(part[1:-1])
        else:
            yield part


def _is_wrapped(part: list[Token]) -> bool:
    """Whether one pair of parentheses is around all of it."""
    if len(part) < 3 or part[0] != ("sign", "(") or part[-1] != ("sign", ")"):
        return False
    depth = 0
    for index, token in enumerate(part):
        depth += {"(": 1, ")": -1}.get(token[1], 0) if token[0] == "sign" else 0
        if depth == 0:
            return index == len(part) - 1
    return False


def _narrowed(bounds: Bounds, condition: list[Token], time_zone: str) -> Bounds:
    match _without_timestamp_words(condition):
        case [(("word" | "name"), name), ("sign", sign), (("text" | "number"), _) as value] if sign in _SIGNS:
            return _compared(bounds, name, _SIGNS[sign], [value], time_zone)
        case [(("text" | "number"), _) as value, ("sign", sign), (("word" | "name"), name)] if sign in _SIGNS:
            return _compared(bounds, name, _MIRRORED[_SIGNS[sign]], [value], time_zone)
        case [(("word" | "name"), name), ("word", "between"), low, ("word", "and"), high]:
            bounds = _compared(bounds, name, ">=", [low], time_zone)
            return _compared(bounds, name, "<=", [high], time_zone)
        case [(("word" | "name"), name), ("word", "in"), ("sign", "("), *values, ("sign", ")")]:
            if all(comma == ("sign", ",") for comma in values[1::2]):
                return _compared(bounds, name, "=", values[::2], time_zone)
    return bounds


def _without_timestamp_words(condition: list[Token]) -> list[Token]:
    """`timestamp '…'` is the text, said with its type."""
    pairs = zip(condition, [*condition[1:], ("", "")], strict=True)
    return [
        token for token, following in pairs if not (token == ("word", "timestamp") and following[0] == "text")
    ]


def _compared(bounds: Bounds, name: str, sign: str, values: list[Token], time_zone: str) -> Bounds:
    if name == "topic" and sign == "=" and all(kind == "text" for kind, _ in values):
        chosen = frozenset(text for _, text in values)
        return replace(bounds, topics=chosen if bounds.topics is None else chosen & bounds.topics)
    ranges = [_range_of(name, value, time_zone) for value in values]
    known = [found for found in ranges if found is not None]
    if not known or len(known) != len(ranges):
        return bounds
    if name == "partition" and sign == "=":
        picked = frozenset(low for low, _ in known)
        return replace(bounds, partitions=picked if bounds.partitions is None else picked & bounds.partitions)
    low = -FOREVER if sign in ("<", "<=") else min(low for low, _ in known)
    exact = sign == "<" and name != "timestamp"  # a time may have parts of a millisecond
    high = FOREVER if sign in (">", ">=") else max(high for _, high in known) + (0 if exact else 1)
    return _cut(bounds, name, low, high)


def _cut(bounds: Bounds, name: str, low: int, high: int) -> Bounds:
    field = {"partition": "partition_range", "offset": "offset_range", "timestamp": "timestamp_range_ms"}[
        name
    ]
    was_low, was_high = getattr(bounds, field)
    changes: dict[str, Any] = {field: (max(was_low, low), min(was_high, high))}
    return replace(bounds, **changes)


def _range_of(name: str, value: Token, time_zone: str) -> Times | None:
    """The least and the greatest number that the constant may mean. None for anything that an index cannot judge."""
    kind, text = value
    if name in ("partition", "offset") and kind == "number":
        return int(text), int(text)
    if name != "timestamp" or kind != "text" or _TIME.fullmatch(text) is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        zone: tzinfo = UTC if time_zone in ("UTC", "Z") else ZoneInfo(time_zone)
        # Where clocks are set back, or forth, a time of day may mean two moments: the bound holds both.
        both = (
            [moment.replace(tzinfo=zone, fold=fold) for fold in (0, 1)] if moment.tzinfo is None else [moment]
        )
        milliseconds = [(one.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1) for one in both]
    except (ValueError, OSError, KeyError, OverflowError):
        return None
    return min(milliseconds), max(milliseconds)
