"""Every interleaving of single requests: breadth first, so that a counterexample is the shortest; then random walks.

A state is what is in the store, which requests are under way without anybody who waits for them, how many faults may
still come, what was told to callers, and where each actor is. A step is one request of one actor, or the arrival of a late
one. An actor that stops for ever is a path on which it is not chosen again, so that needs no step of its own. There is no
clock.

Faults, as many as the model allows in one run:
    lost    nobody answers; the request is under way, and arrives at any time, or never
    twice   it is done and answered; a copy of it is under way
    412     it is done, and answered as if another had been faster (something between has repeated it)
"""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.model.actors import Actor, Cast, Interned, Said, Stand
from tests.model.store import (
    EXISTS,
    UNKNOWN,
    WRITES,
    Begin,
    Create,
    Objects,
    OneOf,
    Request,
    Swap,
    SwapAll,
    execute,
    is_void,
)

State = tuple[Any, ...]
Violation = tuple[str, str]
"""The kind, and the story."""
_FRONT = 4  # store, under way, faults, told; then the actors


class Judge(Protocol):
    """Knows what must not be. What it has heard so far is part of the state: an immutable value."""

    def first(self) -> Any: ...
    def stored(self, told: Any, objects: Objects) -> tuple[Any, Violation | None]: ...
    def heard(self, told: Any, said: Said) -> tuple[Any, Violation | None]: ...
    def acked_end(self, told: Any) -> int: ...


class World:
    def __init__(
        self,
        judge: Judge,
        actors: list[tuple[str, Callable[[], Actor]]],
        faults: int = 0,
        kinds: tuple[str, ...] = ("lost", "twice", "412"),
        watch: Callable[[Request, Objects, Objects], str | None] | None = None,
        objects: Objects | None = None,
    ) -> None:
        """`watch` names what a late arrival did, to be counted as seen. `objects`: what stands in the store before."""
        self.cast = Cast(actors)
        self._judge, self._faults, self._kinds, self._watch = judge, faults, kinds, watch
        self._before = objects or {}
        self._stores, self._requests, self._answers, self._told = (
            Interned(),
            Interned(),
            Interned(),
            Interned(),
        )
        self._numbers: dict[int, tuple[int, ...]] = {}  # of the requests of which an actor makes one next
        self._executed: dict[tuple[int, int], tuple[int, int]] = {}
        self._judged: dict[tuple[Any, ...], tuple[int, Violation | None]] = {}
        self._unknown, self._exists = self._answers.number(UNKNOWN), self._answers.number(EXISTS)

    def first(self) -> State:
        stands, said = self.cast.first()
        told = self._judge.first()
        for one in said:
            told, why = self._judge.heard(told, one)
            assert why is None, why
        return (self._store(self._before), (), self._faults, self._told.number(told), *stands)

    def is_over(self, state: State) -> bool:
        """Every actor has ended."""
        return all(self.cast.stands.values[stand].request is None for stand in state[_FRONT:])

    def objects(self, state: State) -> Objects:
        found: Objects = self._stores.values[state[0]]
        return found

    def told(self, state: State) -> Any:
        return self._told.values[state[3]]

    def steps(self, state: State) -> Iterator[tuple[Any, State, Violation | None]]:
        store, net, faults, _ = state[:_FRONT]
        for place, late in enumerate(net):
            after, answer = self._execute(store, late)
            rest = net[:place] + net[place + 1 :]
            if self._watch and after != store:
                request, stores = self._requests.values[late], self._stores.values
                if (seen := self._watch(request, stores[store], stores[after])) is not None:
                    self.cast.seen.add(seen)
            yield self._step(("late", late, answer), state, after, rest, faults)
        for actor, stand in enumerate(state[_FRONT:], _FRONT):
            request = self.cast.stands.values[stand].request
            if request is None:
                continue
            if isinstance(request, Begin):
                answer = self._answers.number(self._judge.acked_end(self.told(state)))
                yield self._step((actor, "ok", answer), state, store, net, faults, actor, answer)
                continue
            numbers = self._numbers.get(stand)
            if numbers is None:
                several = request.requests if isinstance(request, OneOf) else (request,)
                numbers = self._numbers[stand] = tuple(map(self._requests.number, several))
            for which, number in enumerate(numbers):
                asked = which if isinstance(request, OneOf) else None
                yield from self._ask(state, actor, number, asked)

    def _ask(
        self, state: State, actor: int, number: int, which: int | None
    ) -> Iterator[tuple[Any, State, Violation | None]]:
        """One request, answered, and with each fault that may come. `which` of several it is."""
        store, net, faults, _ = state[:_FRONT]
        request = self._requests.values[number]
        after, answer = self._execute(store, number)
        told = self._answer(which, answer)
        yield self._step((actor, "ok", told), state, after, net, faults, actor, told)
        if not faults or not isinstance(request, WRITES):
            return
        under_way = tuple(sorted((*net, number)))
        if "lost" in self._kinds:
            lost = self._answer(which, self._unknown)
            yield self._step((actor, "lost", lost), state, store, under_way, faults - 1, actor, lost)
        if after != store:  # else the fault changes nothing
            if "twice" in self._kinds and not isinstance(request, (Swap, SwapAll)):
                yield self._step((actor, "twice", told), state, after, under_way, faults - 1, actor, told)
            if "412" in self._kinds and isinstance(request, (Create, Swap, SwapAll)):
                wrong = self._answer(which, self._exists)
                yield self._step((actor, "412", wrong), state, after, net, faults - 1, actor, wrong)

    def _answer(self, which: int | None, answer: int) -> int:
        return answer if which is None else self._answers.number((which, self._answers.values[answer]))

    def _step(
        self,
        label: Any,
        state: State,
        store: int,
        net: tuple[int, ...],
        faults: int,
        actor: int | None = None,
        answer: int = 0,
    ) -> tuple[Any, State, Violation | None]:
        told, why, stands = state[3], None, state[_FRONT:]
        if store != state[0]:
            told, why = self._judge_store(told, store)
            if net:
                objects = self._stores.values[store]
                net = tuple(late for late in net if not is_void(objects, self._requests.values[late]))
        if actor is not None:
            stand, said = self.cast.after(state[actor], self._answers.values[answer], answer)
            stands = (*state[_FRONT:actor], stand, *state[actor + 1 :])
            if said and why is None:
                told, why = self._judge_said(told, said)
        return label, (store, net, faults, told, *stands), why

    def _store(self, objects: Objects) -> int:
        return self._stores.number(objects, frozenset(objects.items()))

    def _execute(self, store: int, request: int) -> tuple[int, int]:
        found = self._executed.get((store, request))
        if found is None:
            objects, answer = execute(self._stores.values[store], self._requests.values[request])
            found = self._executed[store, request] = self._store(objects), self._answers.number(answer)
        return found

    def _judge_store(self, told: int, store: int) -> tuple[int, Violation | None]:
        found = self._judged.get((told, store))
        if found is None:
            after, why = self._judge.stored(self._told.values[told], self._stores.values[store])
            found = self._judged[told, store] = self._told.number(after), why
        return found

    def _judge_said(self, told: int, said: tuple[Said, ...]) -> tuple[int, Violation | None]:
        found = self._judged.get((told, said))
        if found is None:
            after, why = self._told.values[told], None
            for one in said:
                after, why = self._judge.heard(after, one)
                if why:
                    break
            found = self._judged[told, said] = self._told.number(after), why
        return found

    def played(self, state: State, script: str) -> Iterator[tuple[Any, State]]:
        """`x*3 y-lost`: x makes three requests, then y one that nobody answers."""
        for word in script.split():
            name, count, how = (
                (*word.split("*"), "ok") if "*" in word else (word.split("-")[0], "1", word.split("-")[1])
            )
            actor = self.cast.names.index(name) + _FRONT
            for _ in range(int(count)):
                found = [step for step in self.steps(state) if step[0][:2] == (actor, how) and not step[2]]
                assert found, f"{name} cannot do that in {script}"
                label, state = found[0][:2]
                yield label, state

    def story(self, state: State, label: Any) -> str:
        """One step in words."""
        who, how, answer = label
        if who == "late":
            request = self._requests.values[how]
            return f"{'(late)':8} {show(request)} → {show(self._answers.values[answer])}"
        stand: Stand = self.cast.stands.values[state[who]]
        name = self.cast.names[who - _FRONT]
        fault = (
            ""
            if how == "ok"
            else {"lost": "", "twice": ", and a copy is under way", "412": ", though it is done"}[how]
        )
        request, shown = stand.request, self._answers.values[answer]
        if isinstance(request, OneOf):
            request, shown = request.requests[shown[0]], shown[1]
        line = f"{name:8} {show(request)} → {show(shown)}{fault}"
        _, said = self.cast.after(state[who], self._answers.values[answer], answer)
        return line + "".join(f"; {one.what} {', '.join(map(show, one.args))}" for one in said)


def show(value: Any) -> str:
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(show, value))) + "}" if len(value) < 4 else f"{len(value)} keys"
    if hasattr(value, "_fields"):
        default = getattr(value, "_field_defaults", {})
        shown = [
            (name, v)
            for name, v in zip(value._fields, value, strict=True)
            if name not in default or v != default[name]
        ]
        return f"{type(value).__name__}({', '.join(f'{name}={show(v)}' for name, v in shown)})"
    return getattr(value, "__name__", None) or str(value)


@dataclass
class Outcome:
    """What a search found. `whole`: every reachable state was seen."""

    states: int
    whole: bool
    kind: str | None = None
    why: str = ""
    trace: list[str] = field(default_factory=list)
    over: list[State] = field(default_factory=list)
    """States in which every actor has come to its end."""
    seconds: float = 0.0
    seen: set[str] = field(default_factory=set)

    @property
    def steps(self) -> int:
        return len(self.trace)

    def __str__(self) -> str:
        if self.kind is None:
            return f"holds in {'all' if self.whole else 'the first'} {self.states:,} states"
        return f"{self.kind} after {self.steps} steps ({self.states:,} states): {self.why}\n" + "\n".join(
            self.trace
        )


def search(world: World, prelude: str = "", limit: int = 1_000_000, progress: bool = False) -> Outcome:
    """Breadth first. `prelude`: what has happened before. `progress`: also show that from every state all actors can still
    come to their end."""
    gc.disable()  # a million states are no garbage, and looking through them takes longer than the search
    try:
        return _search(world, prelude, limit, progress)
    finally:
        gc.enable()


def _search(world: World, prelude: str, limit: int, progress: bool) -> Outcome:
    began = time.perf_counter()
    first = world.first()
    came: dict[State, tuple[State, Any] | None] = {first: None}
    before: dict[State, list[State]] = {}
    for label, after in world.played(first, prelude):
        came[after], before[after] = (first, label), [first]
        first = after
    todo, over = deque([first]), list[State]()
    while todo and len(came) < limit:
        state = todo.popleft()
        for label, after, why in world.steps(state):
            if progress and why is None:
                before.setdefault(after, []).append(state)
            if after in came and why is None:
                continue
            if why is not None:
                trace = [*_path(world, came, state), world.story(state, label)]
                return Outcome(
                    len(came), False, *why, trace, over, time.perf_counter() - began, world.cast.seen
                )
            came[after] = (state, label)
            todo.append(after)
            if world.is_over(after):
                over.append(after)
    found = Outcome(len(came), not todo, over=over, seen=world.cast.seen)
    if progress and not todo:
        stuck = _stuck(came, over, before)
        if stuck is not None:
            found.kind, found.why, found.trace = (
                "stuck",
                "nobody can end it from here",
                list(_path(world, came, stuck)),
            )
    found.seconds = time.perf_counter() - began
    return found


def _path(world: World, came: dict[State, tuple[State, Any] | None], state: State) -> list[str]:
    lines = []
    while (step := came[state]) is not None:
        state, label = step
        lines.append(world.story(state, label))
    return lines[::-1]


def _stuck(came: dict[State, Any], over: list[State], before: dict[State, list[State]]) -> State | None:
    """The first state from which no path leads to one where every actor has ended."""
    ends, todo = set(over), list(over)
    while todo:
        for state in before.get(todo.pop(), ()):
            if state not in ends:
                ends.add(state)
                todo.append(state)
    return next((state for state in came if state not in ends), None)


LONGEST_WALK = 5_000
"""Somebody may wait for one who has come to his end, and look again for ever."""


def walk(world: World, steps: int, seed: int) -> Outcome:
    """Random walks, far beyond what can be searched. Actors sleep for long, and faults are rare enough to come late, too.
    The same seed takes the same steps."""
    began, rng, taken = time.perf_counter(), random.Random(seed), 0
    over: list[State] = []
    while taken < steps:
        state = world.first()
        path: list[tuple[State, Any]] = []
        actors = range(_FRONT, len(state))
        awake: set[Any] = set(actors)
        while len(path) < LONGEST_WALK and (choices := list(world.steps(state))):
            if rng.random() < 0.15:
                awake = {actor for actor in actors if rng.random() < 0.4}
            weights = [_likely(label, awake) for label, _, _ in choices]
            label, after, why = rng.choices(choices, weights)[0]
            path.append((state, label))
            taken += 1
            if why is not None:
                trace = [world.story(*step) for step in path]
                return Outcome(taken, False, *why, trace, over, time.perf_counter() - began, world.cast.seen)
            state = after
        over += [state] * world.is_over(state)
    return Outcome(taken, False, over=over, seconds=time.perf_counter() - began, seen=world.cast.seen)


def _likely(label: Any, awake: set[Any]) -> float:
    who, how, _ = label
    if who != "late" and who not in awake:
        return 0.001
    return 1.0 if who != "late" and how == "ok" else 0.03
