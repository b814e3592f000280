"""B15: a group of the new protocol (KIP-848), the pure machine: every order of what members, time and crashes do.

The clients of the search do what clients do: they take over what they are told a moment later, say what they own when that
has changed, begin again when they are fenced. After every step the records are what a next coordinator would read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from broker_shim.groups.assignors import ASSIGNORS, Partition, TopicInfo, uniform_assignor
from broker_shim.groups.consumer_group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    NOTHING,
    Beat,
    ConsumerGroup,
    ConsumerLimits,
    ConsumerMember,
    GroupPhase,
    Heartbeat,
    Held,
    Refused,
    Way,
)
from broker_shim.groups.consumer_records import decode_key, read_into, values_of
from broker_shim.wire.codes import Code
from tests.support.broker.every_state import every_state

T, U = UUID(int=1 << 64), UUID(int=2 << 64)
LIMITS = ConsumerLimits(session_timeout_s=50.0, heartbeat_interval_s=1.0, max_group_size=5)
REBALANCE_S = 10.0
FENCES = (
    Code.FENCED_MEMBER_EPOCH,
    Code.UNKNOWN_MEMBER_ID,
    Code.UNRELEASED_INSTANCE_ID,
    Code.FENCED_INSTANCE_ID,
)


@dataclass
class Client:
    """`told`: what it was given last. `owned`: what it reads from. `has_news`: it has taken over what it was told, or its
    last request may be lost: it says what it owns.
    """

    name: str
    is_static: bool = False
    lives: int = 1
    epoch: int = JOINING
    told: Held = NOTHING
    owned: Held = NOTHING
    has_news: bool = False
    is_behind: bool = False
    is_gone: bool = False

    @property
    def member_id(self) -> str:
        return f"{self.name}-{self.lives}" if self.is_static else self.name

    def speaks(self) -> Heartbeat:
        joins = self.epoch == JOINING
        return Heartbeat(
            self.member_id,
            self.epoch,
            self.name if self.is_static else None,
            rebalance_timeout_s=REBALANCE_S if joins else None,
            names=frozenset(["t"]) if joins else None,
            owned=self.owned if joins or self.has_news else None,
        )

    def hears(self, answer: Beat, owned: Held | None) -> None:
        self.epoch = answer.epoch
        if owned is not None:
            self.has_news = False
        if answer.assignment is not None and answer.assignment != self.told:
            self.told, self.is_behind = answer.assignment, True

    def adopt(self) -> None:
        if self.is_behind:
            self.owned, self.is_behind, self.has_news = self.told, False, True

    def is_fenced(self) -> None:
        self.epoch, self.told, self.owned = JOINING, NOTHING, NOTHING
        self.has_news = self.is_behind = False


@dataclass
class World:
    group: ConsumerGroup
    clients: list[Client]
    partitions: int
    now: float = 0.0
    log: dict[bytes, bytes] = field(default_factory=dict)
    crashes: int = 0
    history: tuple[str, ...] = ()

    @property
    def topics(self) -> dict[str, TopicInfo]:
        return {"t": TopicInfo(T, self.partitions)}

    def key(self) -> object:
        group = self.group
        members = tuple(
            (m.member_id, m.epoch - group.epoch, m.previous_epoch - group.epoch, m.way, m.assigned, m.revoking,
             m.expires_at - self.now, m.revoke_by and m.revoke_by - self.now)
            for m in group.members.values()
        )  # fmt: skip
        clients = tuple(
            (c.lives, c.epoch and c.epoch - group.epoch, c.told, c.owned, c.has_news, c.is_behind, c.is_gone)
            for c in self.clients
        )
        return members, clients, tuple(sorted(group.target.items())), self.partitions, group.topics is None

    def moves(self) -> Iterator[tuple[str, int]]:
        for index, client in enumerate(self.clients):
            if client.is_gone:
                yield "come", index
                continue
            yield "beat", index
            yield "beat, answer lost", index
            if client.is_behind:
                yield "adopt", index
            if client.epoch > 0:
                yield "leave", index
                yield "die", index
        if self.partitions < 3:
            yield "grow", 0
        if self.crashes < 1:
            yield "crash", 0
        if self.group.deadline() is not None:
            yield "tick", 0

    def do(self, move: str, index: int) -> None:
        self.history += (f"{move} {index}",)
        client = self.clients[index]
        match move:
            case "come":
                client.is_gone = False
                client.lives += 1
                client.is_fenced()
            case "beat" | "beat, answer lost":
                self.beat(client, is_lost=move != "beat")
            case "adopt":
                client.adopt()
            case "leave":
                self.leave(client)
            case "die":
                client.is_gone = True
                client.owned = NOTHING
            case "grow":
                self.partitions += 1
            case "crash":
                self.crashes += 1
                self.restart()
            case "tick":
                deadline = self.group.deadline()
                assert deadline is not None
                self.now = max(self.now, deadline)
                self.group.tick(self.now)
                self.save()
        self.check()

    def beat(self, client: Client, *, is_lost: bool = False) -> None:
        said = client.speaks()
        answer = self.ask(said)
        if is_lost:
            client.has_news = True  # as clients do: the next one says everything again
        elif isinstance(answer, Beat):
            client.hears(answer, said.owned)
        else:
            assert answer in FENCES
            client.is_fenced()

    def ask(self, said: Heartbeat) -> Beat | Code:
        try:
            return self.group.heartbeat(said, self.topics, self.now)
        except Refused as refusal:
            return refusal.code
        finally:
            self.save()

    def leave(self, client: Client) -> None:
        epoch = LEAVING_FOR_NOW if client.is_static else LEAVING
        client.is_gone, client.owned = True, NOTHING
        answer = self.ask(Heartbeat(client.member_id, epoch, client.name if client.is_static else None))
        assert isinstance(answer, Beat) or answer in FENCES

    def save(self) -> None:
        for key, value in values_of(self.group, self.group.changes()):
            if value is None:
                self.log.pop(key, None)
            else:
                self.log[key] = value

    def restart(self) -> None:
        self.group = restored(self.log, self.now)

    def check(self) -> None:
        group = self.group
        held = [each for member in group.members.values() for each in member.holds]
        assert len(held) == len(set(held)), f"two members hold a partition: {self.history}"
        assert all(m.epoch <= group.target_epoch <= group.epoch for m in group.members.values())
        # Whoever is a member in its epoch, or is accepted as one whose answer was lost, reads what nobody else reads.
        read: set[Partition] = set()
        for client in self.clients:
            member = group.members.get(client.member_id)
            if client.is_gone or member is None or client.epoch not in (member.epoch, member.previous_epoch):
                continue
            if client.epoch != member.epoch and not client.owned <= member.assigned:
                continue  # fenced at its next word
            assert not read & client.owned, f"two clients read the same: {self.history}"
            read |= client.owned
        again = restored(self.log, self.now)
        assert shape(again) == shape(group), f"the log says something else: {self.history}"

    def finish(self) -> None:
        """Everybody does what it should; time passes only for those who have gone."""
        for _ in range(40):
            for client in self.clients:
                if not client.is_gone:
                    client.adopt()
                    self.beat(client)
            self.check()
            if self.is_settled():
                return
            away = [m for m in self.group.members.values() if not self.is_living(m.member_id)]
            if away:
                self.now = max(self.now, min(m.expires_at for m in away))
                for member in self.group.members.values():
                    if self.is_living(member.member_id):
                        member.expires_at = self.now + LIMITS.session_timeout_s
                        member.revoke_by = member.revoke_by and self.now + REBALANCE_S
                self.group.tick(self.now)
                self.save()
        raise AssertionError(f"it does not settle: {self.history}")

    def is_living(self, member_id: str) -> bool:
        return any(c.member_id == member_id and not c.is_gone for c in self.clients)

    def is_settled(self) -> bool:
        living = [c for c in self.clients if not c.is_gone]
        if set(self.group.members) != {c.member_id for c in living}:
            return False
        shares = sorted(len(c.owned) for c in living)
        whole = frozenset((T, index) for index in range(self.partitions))
        return not living or (
            self.group.phase is GroupPhase.STABLE
            and frozenset().union(*(c.owned for c in living)) == whole
            and shares[-1] - shares[0] <= 1
            and all(c.epoch == self.group.epoch for c in living)
        )


def restored(log: dict[bytes, bytes], now: float) -> ConsumerGroup:
    groups: dict[str, ConsumerGroup] = {"g": ConsumerGroup("g", LIMITS)}
    for raw, value in log.items():
        key = decode_key(raw)
        assert key is not None
        read_into(groups, LIMITS, key, value)
    groups["g"].restore(now)
    return groups["g"]


def shape(group: ConsumerGroup) -> object:
    members = {
        m.member_id: (
            m.instance_id,
            m.names,
            m.regex,
            m.epoch,
            m.previous_epoch,
            m.way,
            m.assigned,
            m.revoking,
        )
        for m in group.members.values()
    }
    return group.epoch, group.target_epoch, members, group.target


def new_world(kinds: str, partitions: int = 2) -> World:
    clients = [Client(f"c{i}", is_static=kind == "s") for i, kind in enumerate(kinds)]
    return World(ConsumerGroup("g", LIMITS), clients, partitions)


@pytest.mark.parametrize(
    ("kinds", "depth", "leaving_out"),
    [
        ("dd", 5, ()),
        ("ds", 4, ()),
        ("ddd", 5, ("die", "grow", "crash", "beat, answer lost", "leave")),
        pytest.param("ddd", 8, (), marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
        pytest.param("dss", 7, (), marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_B15_every_order_of_heartbeats_answers_crashes_and_timers_ends_in_a_fair_group(
    kinds: str, depth: int, leaving_out: tuple[str, ...]
) -> None:
    assert every_state(new_world(kinds), depth, frozenset(leaving_out)) > 300


class Hasty(ConsumerGroup):
    """The broken way: what a member is to give up counts as free before it has said that it is."""

    def _reconcile(self, member: ConsumerMember, owned: Held | None, now: float) -> None:
        super()._reconcile(member, member.assigned & self.target.get(member.member_id, NOTHING), now)


def test_B15_the_search_finds_a_group_that_does_not_wait_for_what_is_given_up() -> None:
    world = new_world("dd")
    world.group = Hasty("g", LIMITS)
    with pytest.raises(AssertionError, match="two clients read the same"):
        every_state(world, 6, frozenset(["crash", "die", "leave", "grow", "tick", "beat, answer lost"]))


@pytest.mark.parametrize("seed", range(6))
def test_B15_a_long_life_of_a_group_in_any_order(seed: int) -> None:
    chance = random.Random(seed)
    world = new_world("ddss", 3)
    for _ in range(250):
        move, index = chance.choice(list(world.moves()))
        if move in ("die", "crash", "tick") and chance.random() < 0.7:
            continue
        world.crashes = 0
        world.do(move, index)
    world.finish()


def join(group: ConsumerGroup, name: str, partitions: int = 4, **said: object) -> Beat:
    base = Heartbeat(name, JOINING, rebalance_timeout_s=REBALANCE_S, names=frozenset(["t"]), owned=NOTHING)
    return group.heartbeat(base._replace(**said), {"t": TopicInfo(T, partitions)}, 0.0)  # type: ignore[arg-type]


def beat(group: ConsumerGroup, name: str, epoch: int, owned: Held | None = None, **said: object) -> Beat:
    base = Heartbeat(name, epoch, owned=owned)
    return group.heartbeat(base._replace(**said), {"t": TopicInfo(T, 4)}, 0.0)  # type: ignore[arg-type]


def test_B15_who_has_too_much_gives_up_before_another_gets_it() -> None:
    group = ConsumerGroup("g", LIMITS)
    first = join(group, "a")
    assert first.assignment == frozenset((T, index) for index in range(4))
    second = join(group, "b")
    assert (second.epoch, second.assignment) == (2, NOTHING), "all is still with the first"
    told = beat(group, "a", 1)
    assert (told.epoch, len(told.assignment or ())) == (1, 2), "it stays in its epoch until it has let go"
    assert group.members["a"].way is Way.UNREVOKED_PARTITIONS
    assert beat(group, "b", 2).assignment is None, "not yet"
    let_go = beat(group, "a", 1, told.assignment)
    assert let_go.epoch == 2
    assert beat(group, "b", 2).assignment == first.assignment - (told.assignment or NOTHING)
    assert group.phase is GroupPhase.STABLE


def test_B15_who_does_not_give_up_in_its_time_is_put_out() -> None:
    group = ConsumerGroup("g", LIMITS)
    join(group, "a")
    join(group, "b")
    beat(group, "a", 1)
    assert group.deadline() == REBALANCE_S
    group.tick(REBALANCE_S)
    assert set(group.members) == {"b"}
    with pytest.raises(Refused) as refused:
        beat(group, "a", 1)
    assert refused.value.code is Code.UNKNOWN_MEMBER_ID
    assert len(beat(group, "b", 2).assignment or ()) == 4


def test_B15_epochs_fence() -> None:
    group = ConsumerGroup("g", LIMITS)
    join(group, "a")
    join(group, "b")
    with pytest.raises(Refused) as ahead:
        beat(group, "a", 2)
    assert ahead.value.code is Code.FENCED_MEMBER_EPOCH
    assert group.check_commit("a", None, 1) is Code.NONE
    assert group.check_commit("a", None, 0) is Code.STALE_MEMBER_EPOCH
    assert group.check_commit("nobody", None, 1) is Code.UNKNOWN_MEMBER_ID
    assert group.check_commit("", None, -1) is Code.UNKNOWN_MEMBER_ID
    assert ConsumerGroup("other").check_commit("", None, -1) is Code.NONE


def test_B15_a_static_member_comes_back_to_its_place() -> None:
    group = ConsumerGroup("g", LIMITS)
    mine = join(group, "a-1", instance_id="a").assignment
    epoch = group.epoch
    with pytest.raises(Refused) as refused:
        join(group, "a-2", instance_id="a")
    assert refused.value.code is Code.UNRELEASED_INSTANCE_ID
    group.heartbeat(Heartbeat("a-1", LEAVING_FOR_NOW, "a"), {}, 0.0)
    back = join(group, "a-2", instance_id="a")
    assert (back.assignment, group.epoch, set(group.members)) == (mine, epoch, {"a-2"})
    with pytest.raises(Refused) as fenced:
        beat(group, "a-1", 1, instance_id="a")
    assert fenced.value.code is Code.FENCED_INSTANCE_ID


def test_B15_a_regular_expression_subscribes_to_what_matches_it_now_and_later() -> None:
    group = ConsumerGroup("g", LIMITS)
    topics = {"t-1": TopicInfo(T, 1), "other": TopicInfo(U, 1)}
    said = Heartbeat("a", JOINING, rebalance_timeout_s=1.0, regex="t-[0-9]+", owned=NOTHING)
    assert group.heartbeat(said, topics, 0.0).assignment == frozenset([(T, 0)])
    topics = {"t-1": TopicInfo(T, 1), "t-22": TopicInfo(U, 1)}
    assert group.heartbeat(Heartbeat("a", 1), topics, 0.0).assignment == frozenset([(T, 0), (U, 0)])
    for bad in ("(a", "(a)\\1", "(?=a)"):
        with pytest.raises(Refused) as refused:
            group.heartbeat(said._replace(member_id="b", regex=bad), topics, 0.0)
        assert refused.value.code is Code.INVALID_REGULAR_EXPRESSION


def test_B15_refusals_change_nothing() -> None:
    group = ConsumerGroup("g", LIMITS)
    for code, said in (
        (Code.UNSUPPORTED_ASSIGNOR, {"assignor": "sticky"}),
        (Code.INVALID_REQUEST, {"rebalance_timeout_s": None}),
        (Code.INVALID_REQUEST, {"names": None}),
        (Code.INVALID_REQUEST, {"owned": frozenset([(T, 0)])}),
    ):
        with pytest.raises(Refused) as refused:
            join(group, "a", **said)
        assert refused.value.code is code
    for number in range(LIMITS.max_group_size):
        join(group, f"m{number}")
    with pytest.raises(Refused) as full:
        join(group, "one too many")
    assert full.value.code is Code.GROUP_MAX_SIZE_REACHED
    assert len(group.members) == LIMITS.max_group_size


@pytest.mark.parametrize("seed", range(20))
def test_B15_assignors_give_every_partition_to_one_subscriber(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        topics = {f"t{i}": TopicInfo(UUID(int=i), chance.randrange(9)) for i in range(chance.randrange(4))}
        members = [f"m{i}" for i in range(chance.randrange(1, 6))]
        same = chance.random() < 0.5
        wanted = {
            m: frozenset(topics if same else chance.sample(sorted(topics), chance.randrange(len(topics) + 1)))
            for m in members
        }
        partitions = {(t.topic_id, i): name for name, t in topics.items() for i in range(t.partitions)}
        before = {m: frozenset(p for p in partitions if chance.random() < 1 / 3) for m in members}
        before = {m: p - frozenset().union(*(before[o] for o in members if o < m)) for m, p in before.items()}
        for assignor in ASSIGNORS.values():
            shares = assignor(wanted, topics, before)
            given = [each for share in shares.values() for each in share]
            assert sorted(given) == sorted(
                each for each, name in partitions.items() if any(name in names for names in wanted.values())
            )
            assert all(partitions[each] in wanted[m] for m, share in shares.items() for each in share)
        shares = uniform_assignor(wanted, topics, before)
        assert uniform_assignor(wanted, topics, shares) == shares, "nothing moves without a reason"
        if same:
            sizes = [len(share) for share in shares.values()]
            assert max(sizes) - min(sizes) <= 1
