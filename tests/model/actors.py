"""Actors written as they would be in the engine, top to bottom, searched as states.

An actor is a generator. It yields requests and is sent their answers; what it says to its caller on the way (an ack, a
refusal, records) it yields, too, as `Said`. Between two requests it may sleep for any time, or for ever.

A generator cannot be copied, so its state is the list of answers that it was sent, and it is run again from the start
when it is needed. Two lists are the same state if they leave the generator at the same line with the same variables;
that is found once for each state and answer, and remembered. So nothing may hide in a generator but its variables: no
`yield` within a `for` loop or an expression (`test_nothing_hides_in_an_actor` looks for that).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from types import CodeType, GeneratorType
from typing import Any, NamedTuple

from tests.model.store import Request

Actor = Generator[Any, Any, None]


class Said(NamedTuple):
    """What an actor tells its caller, or lets us know. `what` is judged by the model; `Said("seen", …)` is only counted."""

    what: str
    args: tuple[Any, ...] = ()


class Interned:
    """Values as small numbers: a state of the search is a tuple of a few of them."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Any, key: Hashable = None) -> int:
        key = (type(value), value) if key is None else key  # named tuples of different types may be equal
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(value)
        return found


class Stand(NamedTuple):
    """Where an actor is: what it was answered so far, and the request it makes next (None: it has ended)."""

    actor: int
    answers: tuple[Any, ...]
    request: Request | None


class Cast:
    """All actors of a model, and where each may be."""

    def __init__(self, actors: list[tuple[str, Callable[[], Actor]]]) -> None:
        self.names = [name for name, _ in actors]
        self._make = [make for _, make in actors]
        self.stands = Interned()
        self._after: dict[tuple[int, Any], tuple[int, tuple[Said, ...]]] = {}
        self.seen: set[str] = set()

    def first(self) -> tuple[tuple[int, ...], tuple[Said, ...]]:
        begun = [self._run(actor, ()) for actor in range(len(self._make))]
        return tuple(stand for stand, _ in begun), tuple(said for _, some in begun for said in some)

    def after(self, stand: int, answer: Any, answer_number: int) -> tuple[int, tuple[Said, ...]]:
        """Where it is after that answer, and what it said on the way to its next request."""
        found = self._after.get((stand, answer_number))
        if found is None:
            was: Stand = self.stands.values[stand]
            found = self._after[stand, answer_number] = self._run(was.actor, (*was.answers, answer))
        return found

    def _run(self, actor: int, answers: tuple[Any, ...]) -> tuple[int, tuple[Said, ...]]:
        running, sent, said = self._make[actor](), 0, []
        try:
            request = next(running)
            while True:
                if isinstance(request, Said):
                    if sent == len(answers):
                        said.append(request)
                    request = next(running)
                elif sent < len(answers):
                    sent += 1
                    request = running.send(answers[sent - 1])
                else:
                    break
        except StopIteration:
            request = None
        self.seen.update(one.args[0] for one in said if one.what == "seen")
        where = None if request is None else _where(running)
        stand = self.stands.number(Stand(actor, answers, request), (actor, where, request))
        return stand, tuple(one for one in said if one.what != "seen")


def _where(running: Any) -> tuple[tuple[CodeType, int, frozenset[tuple[str, Any]]], ...]:
    """Line and variables of a generator and of those that it waits for."""
    frames = []
    while isinstance(running, GeneratorType):
        frame = running.gi_frame
        assert frame is not None, "it has not ended"
        held = frozenset((name, value) for name, value in frame.f_locals.items() if name != "self")
        frames.append((frame.f_code, frame.f_lasti, held))
        running = running.gi_yieldfrom
    return tuple(frames)
