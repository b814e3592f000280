"""One consumer group of the new protocol (KIP-848), as a pure state machine: the broker assigns, members reconcile.

    join, leave, expiry, another subscription, another topic ──► group epoch + 1 ──► target assignment of that epoch

Each member goes its own way to the target, a heartbeat at a time; nobody stops for the others:

    STABLE ──target lacks what it has──► UNREVOKED ──it says that it has let go──► STABLE, in the target's epoch
       └─────target has what another still has──► UNRELEASED ──the other has let go──► STABLE

Invariants: a partition is held by at most one member (assigned to it, or not yet given back by it); a member's epoch never
exceeds the target's; what a member is told is `changes()` that were saved first. Whoever is fenced or expired holds nothing.
It does no I/O and knows no clock: every call takes `now`, `deadline()` says when `tick` must be called next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from broker_shim.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Partition, TopicInfo, Topics
from broker_shim.groups.member import Classic
from broker_shim.groups.topic_regex import InvalidRegex, topic_regex
from broker_shim.wire.codes import Code

JOINING, LEAVING, LEAVING_FOR_NOW = 0, -1, -2
"""Member epochs that mean something else. The last is a static member's: it comes back within its session."""
Held = frozenset[Partition]
NOTHING: Held = frozenset()


class Refused(Exception):
    def __init__(self, code: Code, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message or None


class GroupPhase(Enum):
    """Kafka's names, as ConsumerGroupDescribe and ListGroups show them."""

    EMPTY = "Empty"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Way(IntEnum):
    """Where a member is on its way to the target; Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True)
class ConsumerLimits:
    """Kafka's defaults."""

    session_timeout_s: float = 45.0
    heartbeat_interval_s: float = 5.0
    max_group_size: int = 10_000


class Heartbeat(NamedTuple):
    """What a member says. None: as it said before."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_s: float | None = None
    names: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Held | None = None
    client_id: str = ""
    client_host: str = ""
    classic: Classic | None = None


class Beat(NamedTuple):
    """The answer. `assignment` is None if the member knows it."""

    member_id: str
    epoch: int
    assignment: Held | None = None


@dataclass
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_s: float = 300.0
    names: frozenset[str] = frozenset()
    regex: str | None = None
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    way: Way = Way.STABLE
    assigned: Held = NOTHING
    revoking: Held = NOTHING
    """It was told to give them up, and has not said yet that it has."""
    expires_at: float = 0.0
    revoke_by: float | None = None
    classic: Classic | None = None
    """It speaks the classic protocol: `classic_members`."""

    @property
    def holds(self) -> Held:
        return self.assigned | self.revoking

    @property
    def about(self) -> tuple[object, ...]:
        """What is kept of it beside its subscription."""
        return self.rack, self.client_id, self.client_host, self.rebalance_timeout_s, self.classic

    def wants(self, topics: Topics) -> frozenset[str]:
        """Those of the topics that it subscribes to."""
        named = self.names.intersection(topics)
        if not self.regex:
            return named
        regex = topic_regex(self.regex)
        return named.union(name for name in topics if regex.matches(name))


class Kind(Enum):
    """What is saved of a group, each in a record of its own."""

    CLASSIC = "the classic group that it was"
    GROUP = "group epoch"
    TARGET_EPOCH = "target epoch"
    MEMBER = "member"
    TARGET = "target"
    CURRENT = "current"


@dataclass
class ConsumerGroup:
    group_id: str
    limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    epoch: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, Held] = field(default_factory=dict)
    topics: dict[str, TopicInfo] | None = None
    """Those that somebody subscribes to, as they were when the target was made. None: read back from a log, not known."""
    empty_since_ms: int | None = None
    looked_at: float = float("-inf")
    """When the store was asked last what its topics are; whoever asks keeps it."""
    static: dict[str, str] = field(default_factory=dict)
    _holders: dict[Partition, str] = field(default_factory=dict)
    _unsaved: dict[tuple[Kind, str], None] = field(default_factory=dict)
    _seen: Topics | None = None
    """What `topics` was made from."""
    _is_due: bool = False
    """It must be assigned again as soon as its topics are known."""

    # ── heartbeats ───────────────────────────────────────────────────────────────────────────────────────

    def heartbeat(self, said: Heartbeat, topics: Topics, now: float) -> Beat:
        """Raises `Refused`. `topics`: all that a member may subscribe to, as they are now."""
        if said.epoch in (LEAVING, LEAVING_FOR_NOW):
            return self._leave(said, now)
        self._check(said)
        if said.epoch == JOINING:
            member, changed = self._join(said)
        else:
            member, changed = self._find(said), False
        before = member.assigned if said.epoch != JOINING else None
        changed |= self._take_over(member, said)
        self.touch(member, now)
        self._look(topics, changed)
        if member.way is not Way.UNREVOKED_PARTITIONS:
            member.revoke_by = None  # it has come back, if it was told to
        self._reconcile(member, said.owned, now)
        news = said.owned is not None or member.assigned != before
        return Beat(member.member_id, member.epoch, member.assigned if news else None)

    def _check(self, said: Heartbeat) -> None:
        if said.assignor is not None and said.assignor not in ASSIGNORS:
            raise Refused(Code.UNSUPPORTED_ASSIGNOR, f"{said.assignor!r}: there are {', '.join(ASSIGNORS)}")
        if said.regex:
            try:
                topic_regex(said.regex)
            except InvalidRegex as error:
                raise Refused(Code.INVALID_REGULAR_EXPRESSION, str(error)) from error
        if said.epoch != JOINING:
            return
        if said.rebalance_timeout_s is None or (said.names is None and said.regex is None) or said.owned:
            why = "who joins says its rebalance timeout and what it subscribes to, and owns nothing"
            raise Refused(Code.INVALID_REQUEST, why)

    def _join(self, said: Heartbeat) -> tuple[ConsumerMember, bool]:
        """The member, and whether the group has to be assigned again for it."""
        known = self.members.get(said.member_id)
        if known is not None:
            self.identify(said.member_id, said.instance_id)
            if known.previous_epoch == JOINING:
                return known, False  # the answer to its first request was lost
            # It begins again, with nothing. In a new epoch: whoever else uses this id is fenced.
            away = known.epoch == LEAVING_FOR_NOW
            self._hold(known, NOTHING, NOTHING)
            self._step(known, JOINING, Way.STABLE)
            return known, not away
        former = self.static.get(said.instance_id) if said.instance_id is not None else None
        if former is not None:
            return self._replace(self.members[former], said), False
        if len(self.members) >= self.limits.max_group_size:
            raise Refused(Code.GROUP_MAX_SIZE_REACHED)
        member = self.members[said.member_id] = ConsumerMember(said.member_id, said.instance_id)
        if said.instance_id is not None:
            self.static[said.instance_id] = said.member_id
        self._note(Kind.MEMBER, said.member_id)
        self._note(Kind.CURRENT, said.member_id)
        return member, True

    def _replace(self, former: ConsumerMember, said: Heartbeat) -> ConsumerMember:
        """A static member is back under another id: it has the place of the one that said it would be. Who speaks, or spoke,
        the classic protocol never says so."""
        member_id = said.member_id
        if former.epoch != LEAVING_FOR_NOW and former.classic is None and said.classic is None:
            why = f"{former.instance_id} is in use by {former.member_id}"
            raise Refused(Code.UNRELEASED_INSTANCE_ID, why)
        target = self.target.get(former.member_id, NOTHING)
        self._forget(former)
        member = ConsumerMember(member_id, former.instance_id, former.rack, names=former.names)
        member.regex, member.assignor = former.regex, former.assignor
        self.members[member_id] = member
        assert former.instance_id is not None
        self.static[former.instance_id] = member_id
        self.target[member_id] = target
        for kind in (Kind.MEMBER, Kind.TARGET, Kind.CURRENT):
            self._note(kind, member_id)
        return member

    def _find(self, said: Heartbeat) -> ConsumerMember:
        member = self.identify(said.member_id, said.instance_id)
        if said.epoch == member.epoch:
            return member
        # One answer was lost, with the new epoch: it may go on if it has taken nothing that it does not have any more.
        lost = (
            said.epoch == member.previous_epoch and said.owned is not None and said.owned <= member.assigned
        )
        if said.epoch > member.epoch or not lost:
            why = f"{said.member_id} is in epoch {member.epoch}, not {said.epoch}"
            raise Refused(Code.FENCED_MEMBER_EPOCH, why)
        return member

    def identify(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is not None:
            owner = self.static.get(instance_id)
            if owner is not None and owner != member_id:
                raise Refused(Code.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise Refused(Code.UNKNOWN_MEMBER_ID)
        return member

    def _take_over(self, member: ConsumerMember, said: Heartbeat) -> bool:
        """Take over what it says of itself. Returns whether it wants to be assigned otherwise than before."""
        before = (member.names, member.regex, member.assignor)
        joins = said.epoch == JOINING
        member.names = said.names if said.names is not None else frozenset() if joins else member.names
        member.regex = said.regex if said.regex is not None or joins else member.regex
        member.assignor = said.assignor if said.assignor is not None or joins else member.assignor
        changed = before != (member.names, member.regex, member.assignor)
        about = member.about
        member.classic = said.classic
        member.rack = said.rack if said.rack is not None else member.rack
        member.client_id, member.client_host = said.client_id, said.client_host
        if said.rebalance_timeout_s is not None:
            member.rebalance_timeout_s = said.rebalance_timeout_s
        if changed or about != member.about:
            self._note(Kind.MEMBER, member.member_id)
        return changed

    def _leave(self, said: Heartbeat, now: float) -> Beat:
        member = self.identify(said.member_id, said.instance_id)
        if said.epoch == LEAVING_FOR_NOW and member.instance_id is not None:
            self._step(member, LEAVING_FOR_NOW, Way.STABLE)
            # It has stopped: what it was to give up is free.
            self._hold(member, member.assigned, NOTHING)
        else:
            self.remove(member)
        return Beat(said.member_id, said.epoch)

    # ── assigning ────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, topics: Topics, changed: bool) -> None:
        """Topics may have come, gone, or got more partitions."""
        changed |= self._is_due
        if not changed and self._seen is not None and (topics is self._seen or topics == self._seen):
            return
        self._seen = topics
        wanted = {member.member_id: member.wants(topics) for member in self.members.values()}
        read = {name: topics[name] for name in frozenset[str]().union(*wanted.values())}
        if self.topics is None and not changed:
            # Read back from the log. If the target still covers them all, it still is the target.
            covered = {partition for share in self.target.values() for partition in share}
            changed = covered != {(t.topic_id, i) for t in read.values() for i in range(t.partitions)}
        elif self.topics is not None:
            changed |= read != self.topics
        self.topics = read
        if changed:
            self._assign(wanted)

    def _assign(self, wanted: dict[str, frozenset[str]]) -> None:
        self.epoch += 1
        self._is_due = False
        self._note(Kind.GROUP, "")
        target = ASSIGNORS[self.assignor](wanted, self.topics or {}, self.target)
        for member_id in {*self.target, *target}:
            if target.get(member_id) != self.target.get(member_id):
                self._note(Kind.TARGET, member_id)
        self.target = target
        self.target_epoch = self.epoch
        self._note(Kind.TARGET_EPOCH, "")

    @property
    def assignor(self) -> str:
        """The one that most members ask for."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR

    def _reconcile(self, member: ConsumerMember, owned: Held | None, now: float) -> None:
        """One step towards the target: give up first, then take what others have given up."""
        if member.way is Way.UNREVOKED_PARTITIONS:
            if owned is None or owned & member.revoking:
                return
            self._hold(member, member.assigned, NOTHING)
        elif member.way is Way.STABLE and member.epoch == self.target_epoch:
            return
        target = self.target.get(member.member_id, NOTHING)
        kept, surplus = member.assigned & target, member.assigned - target
        if surplus and (owned is None or owned & surplus):
            self._hold(member, kept, surplus)
            self._step(member, member.epoch, Way.UNREVOKED_PARTITIONS)
            member.revoke_by = now + member.rebalance_timeout_s
            return
        free = frozenset(
            each for each in target - kept if self._holders.get(each) in (None, member.member_id)
        )
        self._hold(member, kept | free, NOTHING)
        released = kept | free == target
        self._step(member, self.target_epoch, Way.STABLE if released else Way.UNRELEASED_PARTITIONS)

    def _hold(self, member: ConsumerMember, assigned: Held, revoking: Held) -> None:
        if (assigned, revoking) == (member.assigned, member.revoking):
            return
        for partition in member.holds:
            del self._holders[partition]
        member.assigned, member.revoking = assigned, revoking
        for partition in member.holds:
            assert partition not in self._holders, f"{partition} has two holders"
            self._holders[partition] = member.member_id
        self._note(Kind.CURRENT, member.member_id)

    def _step(self, member: ConsumerMember, epoch: int, way: Way) -> None:
        if way is not Way.UNREVOKED_PARTITIONS:
            member.revoke_by = None
        if (epoch, way) == (member.epoch, member.way):
            return
        if epoch != member.epoch:
            member.previous_epoch, member.epoch = member.epoch, epoch
        member.way = way
        self._note(Kind.CURRENT, member.member_id)

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────

    def touch(self, member: ConsumerMember, now: float) -> None:
        session_s = (
            self.limits.session_timeout_s if member.classic is None else member.classic.session_timeout_s
        )
        member.expires_at = now + session_s

    def must_rejoin(self, member: ConsumerMember, now: float) -> bool:
        """Whether one that speaks the classic protocol has to join again. From then on its time for that runs."""
        target = self.target.get(member.member_id, NOTHING)
        is_free = all(self._holders.get(each) is None for each in target - member.assigned)
        must = (
            member.epoch < self.epoch
            or member.way is Way.UNREVOKED_PARTITIONS
            or (member.way is Way.UNRELEASED_PARTITIONS and is_free)
        )
        if must and member.revoke_by is None:
            member.revoke_by = now + member.rebalance_timeout_s
        return must

    def deadline(self) -> float | None:
        times = [member.expires_at for member in self.members.values()]
        times += [each.revoke_by for each in self.members.values() if each.revoke_by is not None]
        return min(times, default=None)

    def tick(self, now: float) -> None:
        """Out with who was silent for its session, or has not given up in its time what it was told to."""
        for member in list(self.members.values()):
            if member.expires_at <= now or (member.revoke_by is not None and member.revoke_by <= now):
                self.remove(member)

    @property
    def is_classic(self) -> bool:
        """Nobody speaks the consumer protocol any more, and somebody is there."""
        return bool(self.members) and all(each.classic is not None for each in self.members.values())

    def remove(self, member: ConsumerMember) -> None:
        self._forget(member)
        self._is_due = True
        topics = self.topics
        if topics is None or self.is_classic:
            return  # read back from a log: the next heartbeat knows what there is. Or it is a classic group from now on
        wanted = {each.member_id: each.wants(topics) for each in self.members.values()}
        self.topics = {name: topics[name] for name in frozenset[str]().union(*wanted.values())}
        self._assign(wanted)

    def _forget(self, member: ConsumerMember) -> None:
        self._hold(member, NOTHING, NOTHING)
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]
        for kind in (Kind.MEMBER, Kind.TARGET, Kind.CURRENT):
            self._note(kind, member.member_id)

    # ── what others ask ──────────────────────────────────────────────────────────────────────────────────

    def check_commit(self, member_id: str, instance_id: str | None, epoch: int) -> Code:
        """May this caller commit, or read what is committed? A negative epoch is a consumer without group management."""
        if epoch < 0 and not self.members:
            return Code.NONE
        try:
            member = self.identify(member_id, instance_id)
        except Refused as refusal:
            return refusal.code
        stale = Code.STALE_MEMBER_EPOCH if member.classic is None else Code.ILLEGAL_GENERATION
        return Code.NONE if member.epoch == epoch else stale

    @property
    def phase(self) -> GroupPhase:
        if not self.members:
            return GroupPhase.EMPTY
        settled = all(
            member.epoch == self.target_epoch and member.way is Way.STABLE for member in self.members.values()
        )
        return GroupPhase.STABLE if settled else GroupPhase.RECONCILING

    @property
    def subscribed(self) -> frozenset[str]:
        return frozenset(self.topics or ()).union(*(member.names for member in self.members.values()))

    @property
    def has_regex(self) -> bool:
        return any(member.regex for member in self.members.values())

    # ── what is saved ────────────────────────────────────────────────────────────────────────────────────

    def _note(self, kind: Kind, member_id: str) -> None:
        self._unsaved[(kind, member_id)] = None

    def changes(self) -> Iterator[tuple[Kind, str]]:
        """What differs from what was saved, once. Who is told anything waits until it is."""
        unsaved, self._unsaved = self._unsaved, {}
        return iter(unsaved)

    def note_all(self) -> None:
        """It was a classic group so far: nothing of it is kept in this way yet."""
        for kind in (Kind.CLASSIC, Kind.GROUP, Kind.TARGET_EPOCH):
            self._note(kind, "")
        for member_id in self.members:
            for kind in (Kind.MEMBER, Kind.TARGET, Kind.CURRENT):
                self._note(kind, member_id)

    def note(self, changes: Iterable[tuple[Kind, str]]) -> None:
        """They could not be saved: they go with the next ones."""
        self._unsaved.update(dict.fromkeys(changes))

    def restore(self, now: float) -> None:
        """Members, targets and epochs were put back from a log: everybody gets a full session to show up."""
        self._holders.clear()
        self.static.clear()
        for member in self.members.values():
            self.touch(member, now)
            if member.way is Way.UNREVOKED_PARTITIONS:
                member.revoke_by = now + member.rebalance_timeout_s
            if member.instance_id is not None:
                self.static[member.instance_id] = member.member_id
            for partition in member.holds:
                self._holders[partition] = member.member_id
        self.topics = self._seen = None
