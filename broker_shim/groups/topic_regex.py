"""Subscriptions by regular expression: RE2's syntax as far as it is regular, matched in time linear in name and pattern.

The pattern comes from a client, so Python's matcher, which can take for ever, is out: the pattern is parsed by Python's
parser and run as a set of states. Look-around, back-references, conditions and atomic groups are refused, as RE2 refuses
them. As in Kafka the whole name must match.
"""

from __future__ import annotations

import re
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

MAX_STATES = 5_000
"""How large a pattern may become once its repetitions are written out."""
_SPLIT, _CHARS, _START, _END = "split", "chars", "start", "end"
_CLASSES = {
    sre.CATEGORY_DIGIT: lambda char: "0" <= char <= "9",
    sre.CATEGORY_NOT_DIGIT: lambda char: not "0" <= char <= "9",
    sre.CATEGORY_SPACE: lambda char: char in " \t\n\r\f\v",
    sre.CATEGORY_NOT_SPACE: lambda char: char not in " \t\n\r\f\v",
    sre.CATEGORY_WORD: lambda char: char.isascii() and (char.isalnum() or char == "_"),
    sre.CATEGORY_NOT_WORD: lambda char: not (char.isascii() and (char.isalnum() or char == "_")),
}


class InvalidRegex(ValueError):
    """The pattern is none, or asks for more than a regular expression can."""


class TopicRegex:
    """A state is what it does and where it goes on; the last one is the match."""

    def __init__(self, pattern: str) -> None:
        try:
            parsed = parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidRegex(f"{pattern!r} is no regular expression: {error}") from error
        if parsed.state.flags & ~(re.UNICODE | re.IGNORECASE):
            raise InvalidRegex(f"{pattern!r} has flags other than (?i)")
        self._ignores_case = bool(parsed.state.flags & re.IGNORECASE)
        self._states: list[tuple[str, Any, list[int]]] = []
        self._end = self._state("match", None, [])
        self._begin = self._sequence(list(parsed), self._end)

    def _state(self, kind: str, what: Any, following: list[int]) -> int:
        if len(self._states) >= MAX_STATES:
            raise InvalidRegex(f"the pattern needs more than {MAX_STATES} states")
        self._states.append((kind, what, following))
        return len(self._states) - 1

    def _sequence(self, items: list[Any], following: int) -> int:
        """Built from its end: where each part goes on is known then."""
        for operation, argument in reversed(items):
            following = self._part(operation, argument, following)
        return following

    def _part(self, operation: Any, argument: Any, following: int) -> int:
        if operation in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            return self._state(_CHARS, _single(operation, argument), [following])
        if operation is sre.SUBPATTERN:
            _, added, removed, inner = argument
            if added or removed:
                raise InvalidRegex("flags inside of a pattern are not known here")
            return self._sequence(list(inner), following)
        if operation is sre.BRANCH:
            branches = [self._sequence(list(each), following) for each in argument[1]]
            return self._state(_SPLIT, None, branches)
        if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = argument
            return self._repeat(least, most, inner, following)
        if operation is sre.AT and argument in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
            return self._state(_START, None, [following])
        if operation is sre.AT and argument in (sre.AT_END, sre.AT_END_STRING):
            return self._state(_END, None, [following])
        raise InvalidRegex(f"{str(operation).lower()} is not part of a regular expression here")

    def _repeat(self, least: int, most: Any, inner: Any, following: int) -> int:
        items = list(inner)
        if most is sre.MAXREPEAT:
            loop = self._state(_SPLIT, None, [following])
            self._states[loop][2].append(self._sequence(items, loop))
            following = loop
        else:
            for _ in range(most - least):
                once = self._sequence(items, following)
                following = self._state(_SPLIT, None, [once, following])
        for _ in range(least):
            following = self._sequence(items, following)
        return following

    def matches(self, name: str) -> bool:
        current = self._reach({self._begin}, 0, len(name))
        for place, char in enumerate(name, 1):
            stepped = {
                following[0]
                for kind, what, following in (self._states[each] for each in current)
                if kind == _CHARS and self._fits(what, char)
            }
            current = self._reach(stepped, place, len(name))
            if not current:
                return False
        return self._end in current

    def _fits(self, what: Any, char: str) -> bool:
        if self._ignores_case:
            return bool(what(char.lower()) or what(char.upper()))
        return bool(what(char))

    def _reach(self, states: set[int], place: int, size: int) -> set[int]:
        """All states that are reached from these without reading anything."""
        found: set[int] = set()
        todo = list(states)
        while todo:
            each = todo.pop()
            if each in found:
                continue
            found.add(each)
            kind, _, following = self._states[each]
            if kind == _SPLIT or (kind == _START and place == 0) or (kind == _END and place == size):
                todo += following
        return found


def _single(operation: Any, argument: Any) -> Any:
    """Whether one character fits."""
    if operation is sre.LITERAL:
        return lambda char: ord(char) == argument
    if operation is sre.NOT_LITERAL:
        return lambda char: ord(char) != argument
    if operation is sre.ANY:
        return lambda char: char != "\n"
    if operation is sre.RANGE:
        return lambda char: argument[0] <= ord(char) <= argument[1]
    if operation is sre.CATEGORY:
        return _CLASSES[argument]
    negated = argument[0][0] is sre.NEGATE
    options = [_single(*each) for each in (argument[1:] if negated else argument)]
    return lambda char: any(option(char) for option in options) != negated


@lru_cache(maxsize=1000)
def topic_regex(pattern: str) -> TopicRegex:
    return TopicRegex(pattern)
