"""B15: a running group goes from the classic protocol to the consumer protocol and back, member by member.

The walks are random and seeded: members of both kinds come, go, die, lose answers and rejoin, eager and cooperative ones,
and the coordinator crashes. After every step nobody reads what another reads; in the end all partitions are read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

import pytest

from broker_shim.groups import classic_members, group_records
from broker_shim.groups.assignors import TopicInfo, uniform_assignor
from broker_shim.groups.consumer_group import (
    JOINING,
    LEAVING,
    NOTHING,
    ConsumerGroup,
    ConsumerLimits,
    Heartbeat,
    Held,
    Refused,
)
from broker_shim.groups.consumer_records import decode_key, keys_of, read_into, values_of
from broker_shim.groups.group import Group, State
from broker_shim.groups.group_records import GroupKey, GroupState, decode_group, encode_group
from broker_shim.groups.member import Effect, Joined, JoinRequest, Limits, Member, Save, Synced
from broker_shim.groups.migration import downgrade, topics_of, upgraded
from broker_shim.groups.subscription import (
    CONSUMER,
    NamedPartition,
    read_assignment,
    read_subscription,
    write_assignment,
)
from broker_shim.wire.codes import Code
from tests.support.broker.consumer_groups import subscription

T = UUID(int=1 << 64)
PARTITIONS = 4
TOPICS = {"t": TopicInfo(T, PARTITIONS)}
LIMITS = ConsumerLimits(session_timeout_s=50.0, heartbeat_interval_s=1.0, max_group_size=20)
CLASSIC_LIMITS = Limits(min_session_timeout_s=1.0, initial_rebalance_delay_s=0.0)
ALL = frozenset((T, index) for index in range(PARTITIONS))


def expect(refusal: Refused, *codes: Code) -> None:
    assert refusal.code in codes


def held(named: frozenset[NamedPartition]) -> Held:
    return frozenset((T, index) for _, index in named)


@dataclass
class ConsumerClient:
    name: str
    epoch: int = JOINING
    owned: Held = NOTHING
    told: Held = NOTHING
    is_gone: bool = False

    def step(self, world: World, *, is_lost: bool = False) -> None:
        self.owned = self.told
        joins = self.epoch == JOINING
        said = Heartbeat(
            self.name,
            self.epoch,
            rebalance_timeout_s=60.0 if joins else None,
            names=frozenset(["t"]) if joins else None,
            owned=self.owned,
        )
        try:
            answer = world.beat(said)
        except Refused as refusal:
            expect(refusal, Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH)
            self.epoch, self.told, self.owned = JOINING, NOTHING, NOTHING
            return
        if is_lost:
            return
        self.epoch = answer.epoch
        if answer.assignment is not None:
            self.told = answer.assignment
            self.owned &= self.told  # it lets go at once, and begins with the rest when it says so

    def leave(self, world: World) -> None:
        self.is_gone, self.owned = True, NOTHING
        if self.epoch != JOINING:
            try:
                world.beat(Heartbeat(self.name, LEAVING))
            except Refused as refusal:
                expect(refusal, Code.UNKNOWN_MEMBER_ID)

    def believes(self, group: ConsumerGroup | Group) -> bool:
        member = group.members.get(self.name)
        return isinstance(group, ConsumerGroup) and member is not None and member.epoch == self.epoch  # type: ignore[union-attr]


@dataclass
class ClassicClient:
    """`phase`: join, joining, sync, syncing or stable: what it does next, or waits for."""

    name: str
    is_eager: bool
    member_id: str = ""
    generation: int = -1
    phase: str = "join"
    owned: Held = NOTHING
    leads: tuple[tuple[str, bytes], ...] = ()
    is_gone: bool = False

    @property
    def protocol(self) -> str:
        return "range"

    def step(self, world: World, *, is_lost: bool = False) -> None:
        match self.phase:
            case "join":
                self._join(world)
            case "sync":
                self._sync(world)
            case "stable":
                code = world.classic_heartbeat(self)
                if is_lost or code is Code.NONE:
                    return
                if code is Code.REBALANCE_IN_PROGRESS:
                    self.phase = "join"
                else:
                    self._begin_again(code)

    def _begin_again(self, code: Code) -> None:
        assert code in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION), code
        self.owned, self.phase = NOTHING, "join"
        if code is Code.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def _join(self, world: World) -> None:
        if self.is_eager:
            self.owned = NOTHING
        self.phase = "joining"
        request = JoinRequest(
            self.member_id,
            None,
            self.name,
            "host",
            30.0,
            60.0,
            CONSUMER,
            ((self.protocol, subscription(self.owned)),),
            id_required=True,
        )
        world.join(self, request)

    def joined(self, answer: Joined) -> None:
        if self.phase != "joining":
            return
        if answer.error is Code.NONE:
            self.member_id, self.generation, self.phase = answer.member_id, answer.generation, "sync"
            self.leads = tuple((each, metadata) for each, _, metadata in answer.members)
        elif answer.error in (Code.MEMBER_ID_REQUIRED, Code.REBALANCE_IN_PROGRESS):
            self.member_id = answer.member_id or self.member_id
            self.phase = "join"
        else:
            self._begin_again(answer.error)

    def _sync(self, world: World) -> None:
        self.phase = "syncing"
        owned = {each: held(read_subscription(metadata).owned) for each, metadata in self.leads}
        target = uniform_assignor({each: frozenset(["t"]) for each in owned}, TOPICS, owned) if owned else {}
        assignments = {}
        for each, share in target.items():
            others = frozenset[object]().union(*(has for other, has in owned.items() if other != each))
            assignments[each] = write_assignment(("t", index) for _, index in share - others)
        world.sync(self, assignments)

    def synced(self, answer: Synced) -> None:
        if self.phase != "syncing":
            return
        if answer.error is Code.NONE:
            given = held(read_assignment(answer.assignment))
            gives_up = self.owned - given
            self.owned = given
            # As Java's client: who has given something up joins again, so that another can get it.
            self.phase = "join" if gives_up and not self.is_eager else "stable"
        elif answer.error is Code.REBALANCE_IN_PROGRESS:
            self.phase = "join"
        else:
            self._begin_again(answer.error)

    def leave(self, world: World) -> None:
        self.is_gone, self.owned = True, NOTHING
        if self.member_id:
            world.classic_leave(self)

    def believes(self, group: ConsumerGroup | Group) -> bool:
        member = group.members.get(self.member_id)
        if member is None:
            return False
        return self.generation == (group.generation if isinstance(group, Group) else member.epoch)  # type: ignore[union-attr]


Client = ConsumerClient | ClassicClient


@dataclass
class World:
    """What a shard does with one group, without its log: each change is saved at once, as one write."""

    clients: list[Client] = field(default_factory=list)
    group: ConsumerGroup | Group | None = None
    log: dict[bytes, bytes] = field(default_factory=dict)
    now: float = 0.0
    ups: int = 0
    downs: int = 0
    history: list[str] = field(default_factory=list)
    ids: count[int] = field(default_factory=count)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self.ids)}"

    # ── the classic protocol ─────────────────────────────────────────────────────────────────────────────

    def join(self, client: ClassicClient, request: JoinRequest) -> None:
        group = self.group
        if isinstance(group, ConsumerGroup) and group.members:
            try:
                answer = classic_members.join(group, request, TOPICS, CLASSIC_LIMITS, self.new_id, self.now)
            except Refused as refusal:
                answer = Joined(refusal.code, request.member_id)
            self.changed()
            client.joined(answer)
            return
        if not isinstance(group, Group):
            self.log.clear()
            group = self.group = Group("g", CLASSIC_LIMITS, self.new_id)
        self.carry_out(group, group.join(request, client, self.now))

    def sync(self, client: ClassicClient, assignments: dict[str, bytes]) -> None:
        group = self.group
        who = client.member_id, None, client.generation
        if isinstance(group, Group):
            effects = group.sync(*who, (CONSUMER, client.protocol), assignments, client, self.now)
            self.carry_out(group, effects)
            return
        if group is None:
            client.synced(Synced(Code.UNKNOWN_MEMBER_ID))
            return
        try:
            protocol = CONSUMER, client.protocol
            answer = classic_members.sync(group, *who, protocol, lambda h: [("t", i) for _, i in h], self.now)
        except Refused as refusal:
            answer = Synced(refusal.code)
        self.changed()
        client.synced(answer)

    def classic_heartbeat(self, client: ClassicClient) -> Code:
        group = self.group
        who = client.member_id, None, client.generation
        if isinstance(group, Group):
            return group.heartbeat(*who, self.now)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID
        try:
            return classic_members.heartbeat(group, *who, self.now)
        except Refused as refusal:
            return refusal.code

    def classic_leave(self, client: ClassicClient) -> None:
        group = self.group
        if isinstance(group, Group):
            self.carry_out(group, group.leave(client.member_id, None, self.now)[1])
        elif group is not None:
            try:
                classic_members.leave(group, client.member_id, None)
            except Refused as refusal:
                expect(refusal, Code.UNKNOWN_MEMBER_ID)
            self.changed()

    def carry_out(self, group: Group, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Save):
                self.save_classic(group, list(group.members.values()))
                self.carry_out(group, group.saved(effect, Code.NONE, self.now))
            elif isinstance(effect.answer, Joined):
                effect.token.joined(effect.answer)
            else:
                effect.token.synced(effect.answer)

    def save_classic(self, group: Group, members: list[Member]) -> None:
        state = GroupState(CONSUMER, group.generation, group.protocol, group.leader, 0, members)
        self.log[group_records.encode_key(GroupKey("g"))] = encode_group(state)

    # ── the consumer protocol ────────────────────────────────────────────────────────────────────────────

    def beat(self, said: Heartbeat):  # type: ignore[no-untyped-def]
        group = self.group
        if isinstance(group, Group) and (group.state is not State.EMPTY or group.deadline() is not None):
            assert topics_of(group) <= {"t"}
            new = upgraded(group, LIMITS, TOPICS, self.now) if said.epoch == JOINING else None
            if new is None:
                raise Refused(Code.UNKNOWN_MEMBER_ID)
            answer = new.heartbeat(said, TOPICS, self.now)
            self.group = new
            self.ups += bool(group.members)
            self.carry_out(group, group.kill(Code.REBALANCE_IN_PROGRESS))
        else:
            if not isinstance(group, ConsumerGroup):
                if said.epoch != JOINING:
                    raise Refused(Code.UNKNOWN_MEMBER_ID)
                self.log.clear()
                group = self.group = ConsumerGroup("g", LIMITS)
            answer = group.heartbeat(said, TOPICS, self.now)
        self.changed()
        return answer

    def changed(self) -> None:
        group = self.group
        assert isinstance(group, ConsumerGroup)
        for key, value in values_of(group, group.changes()):
            if value is None:
                self.log.pop(key, None)
            else:
                self.log[key] = value
        if group.is_classic:
            self.downs += 1
            assert set(self.log) <= set(keys_of(group)), "nothing is left of it"
            self.log.clear()
            new = self.group = Group("g", CLASSIC_LIMITS, self.new_id)
            downgrade(group, new, self.now)
            self.save_classic(new, [])
            self.carry_out(new, new.rebalance(self.now))

    # ── time, crashes, checks ────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        group = self.group
        deadline = None if group is None else group.deadline()
        if group is None or deadline is None:
            return
        self.now = max(self.now, deadline)
        if isinstance(group, Group):
            self.carry_out(group, group.tick(self.now))
        else:
            group.tick(self.now)
            self.changed()

    def crash(self) -> None:
        """The next coordinator knows what the log says; who waited is told that it has moved, and asks again."""
        consumers: dict[str, ConsumerGroup] = {}
        classic = None
        for key, value in self.log.items():
            if isinstance(group_records.decode_key(key), GroupKey):
                classic = decode_group(value)
            else:
                found = decode_key(key)
                assert found is not None
                read_into(consumers, LIMITS, found, value)
        assert classic is None or not consumers, "of one kind or the other"
        self.group = None
        if consumers:
            self.group = consumers["g"]
            self.group.restore(self.now)
        elif classic is not None:
            self.group = group = Group("g", CLASSIC_LIMITS, self.new_id)
            group.generation, group.protocol_type = classic.generation, classic.protocol_type
            group.protocol, group.leader = classic.protocol, classic.leader
            group.restore(classic.members, self.now)
        for client in self.clients:
            if isinstance(client, ClassicClient):
                client.phase = {"joining": "join", "syncing": "sync"}.get(client.phase, client.phase)

    def check(self) -> None:
        if self.group is None:
            return
        read: set[object] = set()
        for client in self.clients:
            if not client.is_gone and client.believes(self.group):
                assert not read & client.owned, f"two read the same: {self.history}"
                read |= client.owned

    def finish(self) -> None:
        for _ in range(60):
            for client in self.clients:
                if not client.is_gone:
                    client.step(self)
            self.check()
            living = [each for each in self.clients if not each.is_gone]
            shares = [each.owned for each in living]
            if not living or (sum(map(len, shares)) == PARTITIONS and frozenset().union(*shares) == ALL):
                return
            self.expire_the_dead(living)
        raise AssertionError(f"it does not settle: {self.history}")

    def expire_the_dead(self, living: list[Client]) -> None:
        """Time passes for those alone who have gone."""
        group = self.group
        if group is None:
            return
        names = {each.name if isinstance(each, ConsumerClient) else each.member_id for each in living}
        away = [each.expires_at for each in group.members.values() if each.member_id not in names]
        if isinstance(group, Group):  # who was told an id, and never came back with it
            away += [until for each, until in group._pending.items() if each not in names]
        if not away:
            return
        self.now = max(self.now, *away)
        for each in group.members.values():
            if each.member_id in names:
                each.expires_at = self.now + 30.0
        if isinstance(group, Group):
            self.carry_out(group, group.tick(self.now))
        else:
            for member in group.members.values():
                member.revoke_by = None if member.revoke_by is None else self.now + 60.0
            group.tick(self.now)
            self.changed()


def walk(seed: int, steps: int = 60) -> World:
    rng, world = random.Random(seed), World()
    for number in range(steps):
        living = [each for each in world.clients if not each.is_gone]
        move = rng.choices(
            ["come", "step", "lost", "leave", "die", "crash", "tick"], [2, 20, 2, 1.5, 0.5, 0.5, 0.3]
        )[0]
        if move == "come" and len(living) < 5:
            kind = rng.choice(["consumer", "eager", "cooperative"])
            new: Client = (
                ConsumerClient(f"c{number}")
                if kind == "consumer"
                else ClassicClient(f"k{number}", is_eager=kind == "eager")
            )
            world.clients.append(new)
            world.history.append(f"{new.name} comes, {kind}")
        elif move in ("step", "lost", "leave", "die") and living:
            client = rng.choice(living)
            world.history.append(f"{client.name}: {move}")
            if move == "leave":
                client.leave(world)
            elif move == "die":
                client.is_gone, client.owned = True, NOTHING
            else:
                client.step(world, is_lost=move == "lost")
        elif move == "crash":
            world.history.append(move)
            world.crash()
        elif move == "tick":
            world.history.append(move)
            world.tick()
        world.check()
    return world


@pytest.mark.parametrize("block", range(10))
def test_B15_members_of_both_protocols_share_a_group_through_every_change(block: int) -> None:
    ups = downs = 0
    for seed in range(block * 60, block * 60 + 60):
        world = walk(seed)
        world.finish()
        ups, downs = ups + world.ups, downs + world.downs
    assert ups > 2, "the walks go up"
    assert downs > 2, "and down"
