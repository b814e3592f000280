"""B12: a group starts within its initial delay plus one round trip, whoever comes when.

The group is a pure state machine, so every order of requests, answers, saves and timers of a small group can be tried. From
each state that is reached so, the clients do what clients do, at once: the group must become stable before anything but
the initial delay has passed (or the session of a client that died).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker_shim.groups.group import Group, State
from broker_shim.groups.member import Effect, Joined, Limits, Save, Synced
from broker_shim.wire.codes import Code
from tests.support.broker.every_state import every_state
from tests.support.broker.group_requests import RANGE, request

SESSION_S = 50.0
REBALANCE_S = 300.0
LATEST_S = 5.0
"""Up to then clients come and go."""


@dataclass
class Client:
    """A consumer. `step`: what it does next, or what it waits for."""

    name: str
    is_static: bool = False
    step: str = "join"
    member_id: str = ""
    generation: int = -1
    token: int = 0

    @property
    def instance(self) -> str | None:
        return self.name if self.is_static else None

    def hear(self, answer: Joined | Synced) -> None:
        if answer.error is Code.MEMBER_ID_REQUIRED and isinstance(answer, Joined):
            self.member_id, self.step = answer.member_id, "join"
        elif answer.error in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID):
            self.member_id, self.step = "", "join"
        elif answer.error is not Code.NONE:
            self.step = "join"
        elif isinstance(answer, Joined):
            self.member_id, self.generation, self.step = answer.member_id, answer.generation, "sync"
        else:
            self.step = "consume"


@dataclass
class World:
    """A group, its clients, and what is under way."""

    group: Group
    clients: list[Client]
    delay_s: float
    now: float = 0.0
    began: float = -1.0
    """When it last left EMPTY."""
    saves: list[Save] = field(default_factory=list)
    tokens: int = 0
    died: int = 0
    history: tuple[str, ...] = ()

    def key(self) -> object:
        group = self.group
        tokens: dict[Any, int] = {each.token: i for i, each in enumerate(self.clients)}
        members = [
            (
                m.member_id,
                m.expires_at,
                tokens.get(m.join, m.join is not None),
                tokens.get(m.sync, m.sync is not None),
                m.owes_sync,
            )
            for m in group.members.values()
        ]
        clients = [(c.step, c.member_id, c.generation - group.generation) for c in self.clients]
        hidden = (
            group._rebalance_at,
            group._rebalance_until,
            group._first_join,
            group._sync_until,
            group._saving is None,
        )
        saves = tuple((s.generation - group.generation, s.reply is None) for s in self.saves)
        pending = tuple(group._pending.items())
        return (group.state, self.now, self.began, group.leader, *hidden, pending, saves, *members, *clients)

    # ── what can happen ──────────────────────────────────────────────────────────────────────────────────────

    def moves(self) -> Iterator[tuple[str, int]]:
        for index, client in enumerate(self.clients):
            if client.step in ("join", "sync"):
                yield client.step, index
            if client.step == "consume":
                yield "heartbeat", index
            if client.member_id and client.step != "gone":
                yield "leave", index
                if not self.died:
                    yield "die", index
        if self.saves:
            yield "saved", 0
            yield "not saved", 0
        deadline = self.group.deadline()
        if deadline is not None and deadline <= LATEST_S:
            yield "tick", 0
        if self.now + 1.0 <= LATEST_S and (deadline is None or self.now + 1.0 <= deadline):
            yield "wait", 0

    def do(self, move: str, index: int) -> None:
        before = self.group.state
        self.history += (f"{move} {index}",)
        match move:
            case "tick":
                deadline = self.group.deadline()
                assert deadline is not None
                self.now = max(self.now, deadline)
                self.carry_out(self.group.tick(self.now))
            case "wait":
                self.now += 1.0
            case "saved" | "not saved":
                outcome = Code.NONE if move == "saved" else Code.NOT_COORDINATOR
                self.carry_out(self.group.saved(self.saves.pop(0), outcome, self.now))
            case _:
                self.act(move, self.clients[index])
        if before is State.EMPTY and self.group.state is State.PREPARING:
            self.began = self.now
        self.check()

    def act(self, move: str, client: Client) -> None:
        group = self.group
        match move:
            case "join":
                joining = request(
                    client.member_id,
                    instance=client.instance,
                    session=SESSION_S,
                    rebalance_timeout_s=REBALANCE_S,
                    id_required=True,
                )
                client.step = "joining"
                self.carry_out(group.join(joining, self.token(client), self.now))
            case "sync":
                shares = dict.fromkeys(group.members, b"share")
                client.step = "syncing"
                effects = group.sync(
                    client.member_id,
                    client.instance,
                    client.generation,
                    ("consumer", RANGE[0][0]),
                    shares if client.member_id == group.leader else {},
                    self.token(client),
                    self.now,
                )
                self.carry_out(effects)
            case "heartbeat":
                code = group.heartbeat(client.member_id, client.instance, client.generation, self.now)
                if code is not Code.NONE:
                    client.hear(Synced(code))
            case "leave":
                _, effects = group.leave(client.member_id, client.instance, self.now)
                client.step = "gone"
                self.carry_out(effects)
            case "die":
                client.step = "gone"
                self.died += 1

    def token(self, client: Client) -> int:
        self.tokens += 1
        client.token = self.tokens
        return self.tokens

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Save):
                self.saves.append(effect)
                continue
            for client in self.clients:
                if client.token == effect.token and client.step in ("joining", "syncing"):
                    client.hear(effect.answer)

    # ── what must hold ───────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        group = self.group
        if any(m.join is not None or m.sync is not None for m in group.members.values()):
            assert group.deadline() is not None or self.saves, "somebody waits, and nothing will end it"
        if group.state is State.PREPARING and not group._pending:
            everyone = all(m.join is not None for m in group.members.values())
            is_due = (group.deadline() or self.now) <= self.now
            assert not everyone or is_due or self.now < self.began + self.delay_s, (
                f"all have joined, the delay is over, and they wait: {self.history}"
            )

    def finish(self) -> None:
        """Everybody does what is next for it, at once. Time passes only if nobody has anything to do."""
        latest = max(self.now, self.began + self.delay_s) + (SESSION_S if self.died else 0.0)
        for _ in range(100):
            busy = [(c.step, i) for i, c in enumerate(self.clients) if c.step in ("join", "sync")]
            busy += [("heartbeat", i) for i, c in enumerate(self.clients) if self._must_rejoin(c)]
            if self.saves:
                self.do("saved", 0)
            elif busy:
                latest = max(latest, self.now + self.delay_s) if self.group.state is State.EMPTY else latest
                self.do(*busy[0])
            elif self._is_settled():
                return
            else:
                deadline = self.group.deadline()
                assert deadline is not None, "nothing will happen any more"
                assert deadline <= latest, f"at {self.now} they wait until {deadline}: {self.history}"
                self._heartbeats_until(deadline)
                self.do("tick", 0)
        raise AssertionError("it does not settle")

    def _must_rejoin(self, client: Client) -> bool:
        stale = client.generation != self.group.generation
        return client.step == "consume" and (stale or self.group.state is State.PREPARING)

    def _is_settled(self) -> bool:
        living = [c for c in self.clients if c.step != "gone"]
        if self.died:
            return all(c.step == "consume" for c in living)
        return (self.group.state is State.STABLE if living else True) and all(
            c.step == "consume" for c in living
        )

    def _heartbeats_until(self, deadline: float) -> None:
        """A living consumer never misses its session while the others are waited for."""
        for client in self.clients:
            if client.step == "consume" and deadline > self.now:
                member = self.group.members[client.member_id]
                member.expires_at = max(member.expires_at, deadline + SESSION_S)


class Names:
    """Ids that a copy of the group gives out as the original would."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, prefix: str) -> str:
        self._next += 1
        return f"{prefix}-{self._next}"


def new_world(kinds: str, delay_s: float) -> World:
    limits = Limits(min_session_timeout_s=1.0, initial_rebalance_delay_s=delay_s, max_group_size=20)
    clients = [Client(f"c{i}", is_static=kind == "s") for i, kind in enumerate(kinds)]
    return World(Group("g", limits, Names()), clients, delay_s)


@pytest.mark.parametrize("delay_s", [0.0, 2.0])
@pytest.mark.parametrize(
    ("kinds", "depth", "leaving_out"),
    [
        ("dd", 7, ()),
        ("ds", 6, ()),
        ("ddd", 6, ("die", "not saved", "heartbeat")),
        pytest.param("ddd", 9, (), marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
        pytest.param("dds", 8, (), marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_B12_every_order_of_joins_ids_and_timers_ends_in_a_stable_group(
    kinds: str, depth: int, leaving_out: tuple[str, ...], delay_s: float
) -> None:
    assert every_state(new_world(kinds, delay_s), depth, frozenset(leaving_out)) > 300


@pytest.mark.parametrize("size", [2, 3])
def test_B12_whoever_is_between_its_two_joins_when_the_delay_ends_is_waited_for_no_longer_than_it_takes(
    size: int,
) -> None:
    """Every order in which so many ask for an id and come back with it, with the end of the delay at every place."""
    count = 0
    steps = [client for client in range(size) for _ in range(2)]
    for order in set(itertools.permutations(steps)):
        for place in range(1, len(order)):
            world = new_world("d" * size, 1.0)
            for client in order[:place]:
                world.do("join", client)
            world.now = max(world.now, world.began + 1.0)
            world.carry_out(world.group.tick(world.now))
            world.check()
            for client in order[place:]:
                if world.clients[client].step == "join":
                    world.do("join", client)
            world.finish()
            count += 1
    assert count >= 18


@pytest.mark.parametrize("delay_s", [0.0, 3.0])
def test_B12_a_hundred_starts_of_fifty_take_the_delay_and_one_round(delay_s: float) -> None:
    """In virtual time: everybody comes within the first second, in any order, and may be between its two joins whenever the
    delay ends. After the delay nothing is waited for but requests that are under way.
    """
    for seed in range(100):
        chance = random.Random(seed)
        world = new_world("d" * 50, delay_s)
        world.group._limits = Limits(
            min_session_timeout_s=1.0, initial_rebalance_delay_s=delay_s, max_group_size=100
        )
        steps = [client for client in range(50) for _ in range(2)]
        chance.shuffle(steps)
        early = steps[: chance.randrange(1, len(steps))]
        for client in early:
            if world.clients[client].step == "join":
                world.do("join", client)
        world.now = max(world.now, world.began + delay_s)
        world.carry_out(world.group.tick(world.now))
        while not world._is_settled():  # one round: each does what it has to do next, at once
            busy = [
                i for i, c in enumerate(world.clients) if c.step in ("join", "sync") or world._must_rejoin(c)
            ]
            chance.shuffle(busy)
            if not busy and not world.saves:
                assert world.now < world.began + delay_s, (
                    f"seed {seed}: they wait until {world.group.deadline()}"
                )
                world.do("tick", 0)
            for index in busy:
                each = world.clients[index]
                if each.step in ("join", "sync"):
                    world.do(each.step, index)
                elif world._must_rejoin(each):
                    world.do("heartbeat", index)
            while world.saves:
                world.do("saved", 0)
        assert world.now <= max(world.began, 0.0) + delay_s
        assert len(world.group.members) == 50
