"""One consumer group of the classic protocol, as a pure state machine.

    EMPTY ──join──► PREPARING ──all joined, or time is up──► COMPLETING ──leader's sync saved──► STABLE
      ▲                 ▲   ▲                                    │                                  │
      │                 │   └───────── join, leave, timeout ─────┴──────────────────────────────────┘
      └── nobody left ──┘

It does no I/O and knows no clock: every call takes `now` and returns effects (answers to waiting requests,
"save me"). `deadline()` says when `tick` must be called next. Each request that comes in is answered exactly
once: at once, or when the group moves on. Invariants: the generation grows with each rebalance; an assignment
is handed out only after it is saved; a member that is fenced (its static instance id was taken over) never
gets an answer other than the fence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum

from broker_shim.groups.member import Effect, Joined, JoinRequest, Limits, Member, Reply, Save, Synced, Token
from broker_shim.wire.codes import Code


class State(Enum):
    """Kafka's names, as DescribeGroups and ListGroups show them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Group:
    """Every method that returns a list returns the effects that its caller must carry out, in order."""

    def __init__(self, group_id: str, limits: Limits, new_id: Callable[[str], str]) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.empty_since_ms: int | None = None
        self._limits = limits
        self._new_id = new_id
        self._static: dict[str, str] = {}
        self._pending: dict[str, float] = {}
        self._rebalance_at: float | None = None
        self._rebalance_until = 0.0
        self._first_join = False
        self._sync_until: float | None = None
        self._saving: int | None = None

    # ── joining ─────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, request: JoinRequest, token: Token, now: float) -> list[Effect]:
        refusal = self._refuse_join(request)
        if refusal is not None:
            return [Reply(token, Joined(refusal, request.member_id))]
        if request.member_id == "":
            return self._join_new(request, token, now)
        if request.member_id in self._pending:
            del self._pending[request.member_id]
            return self._add(request, request.member_id, token, now)
        member = self.members[request.member_id]
        return self._rejoin(member, request, token, now)

    def _refuse_join(self, request: JoinRequest) -> Code | None:
        limits = self._limits
        if not limits.min_session_timeout_s <= request.session_timeout_s <= limits.max_session_timeout_s:
            return Code.INVALID_SESSION_TIMEOUT
        if self.state is State.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if not request.protocols or not request.protocol_type or not self._supports(request):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if request.member_id:
            return self._identify(request.member_id, request.instance_id, or_pending=True)
        known_static = request.instance_id is not None and request.instance_id in self._static
        if not known_static and len(self.members) + len(self._pending) >= limits.max_group_size:
            return Code.GROUP_MAX_SIZE_REACHED
        return None

    def _supports(self, request: JoinRequest) -> bool:
        others = [m for m in self.members.values() if m.member_id != request.member_id]
        if not others:
            return True
        if request.protocol_type != self.protocol_type:
            return False
        common = set.intersection(*(set(m.protocol_names) for m in others))
        return any(name in common for name, _ in request.protocols)

    def _identify(self, member_id: str, instance_id: str | None, *, or_pending: bool = False) -> Code | None:
        """Is the caller who it says it is? None if so."""
        if instance_id is not None:
            owner = self._static.get(instance_id)
            if owner is not None and owner != member_id:
                return Code.FENCED_INSTANCE_ID
        if member_id in self.members or (or_pending and member_id in self._pending):
            return None
        return Code.UNKNOWN_MEMBER_ID

    def _join_new(self, request: JoinRequest, token: Token, now: float) -> list[Effect]:
        member_id = self._new_id(request.instance_id or request.client_id)
        if request.instance_id is not None:
            if request.instance_id in self._static:
                return self._replace_static(request, member_id, token, now)
            return self._add(request, member_id, token, now)
        if request.id_required:
            if len(self._pending) >= self._limits.max_pending_members:
                return [Reply(token, Joined(Code.GROUP_MAX_SIZE_REACHED, ""))]
            self._pending[member_id] = now + request.session_timeout_s
            return [Reply(token, Joined(Code.MEMBER_ID_REQUIRED, member_id))]
        return self._add(request, member_id, token, now)

    def _add(self, request: JoinRequest, member_id: str, token: Token, now: float) -> list[Effect]:
        member = request.member(member_id)
        member.join = token
        if self.state is State.EMPTY:
            self._first_join = True
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member_id
        self._touch(member, now)
        self.leader = self.leader or member_id
        return self._prepare(now)

    def _rejoin(self, member: Member, request: JoinRequest, token: Token, now: float) -> list[Effect]:
        changed = member.protocols != request.protocols
        stale = self._abandon(member)
        member.session_timeout_s = request.session_timeout_s
        member.rebalance_timeout_s = request.rebalance_timeout_s
        member.protocols = request.protocols
        self._touch(member, now)
        leads_stable = self.state is State.STABLE and member.member_id == self.leader
        settled = self.state in (State.STABLE, State.COMPLETING)
        if settled and not changed and not leads_stable:
            # It lost our answer and asks again: the generation stays valid.
            return [*stale, Reply(token, self._joined(member))]
        member.join = token
        return stale + self._prepare(now)

    def _replace_static(self, request: JoinRequest, member_id: str, token: Token, now: float) -> list[Effect]:
        """A static member came back under the same instance id: it takes the old one's place (KIP-345)."""
        assert request.instance_id is not None
        old = self.members.pop(self._static[request.instance_id])
        effects = self._dismiss(old, Code.FENCED_INSTANCE_ID, Code.FENCED_INSTANCE_ID)
        # Only the protocol in use counts: of a group that was read back from the log no other is known.
        unchanged = (self.protocol, old.subscription(self.protocol)) in request.protocols
        member = request.member(member_id)
        member.assignment = old.assignment
        self.members[member_id] = member
        self._static[request.instance_id] = member_id
        self._touch(member, now)
        leader_before = self.leader
        if self.leader == old.member_id:
            self.leader = member_id
        if self.state is State.STABLE and unchanged:
            # No rebalance. The old leader's id in the answer keeps the newcomer from assigning into a stable
            # group.
            answer = self._joined(member)
            if leader_before == old.member_id and not request.can_skip_assignment:
                answer = answer._replace(leader=old.member_id, members=())
            elif leader_before == old.member_id:
                answer = answer._replace(skip_assignment=True)
            # Not before it is saved: a coordinator that takes over would know the old id, and fence the new one for good.
            return [*effects, Save(self.generation, Reply(token, answer))]
        member.join = token
        return effects + self._prepare(now)

    # ── the rebalance ───────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, now: float) -> list[Effect]:
        """Start a rebalance, or go on with the one that runs."""
        effects: list[Effect] = []
        if self.state is not State.PREPARING:
            effects = self._cancel_syncs(Code.REBALANCE_IN_PROGRESS)
            from_empty = self.state is State.EMPTY
            self.state = State.PREPARING
            self._saving = None
            self._sync_until = None
            self._rebalance_until = now + self._longest_rebalance()
            # The first members of a group seldom come alone: wait for the others once, not a rebalance for
            # each.
            self._rebalance_at = (
                min(now + self._limits.initial_rebalance_delay_s, self._rebalance_until)
                if from_empty and self._first_join
                else self._rebalance_until
            )
        return effects + self._maybe_complete(now)

    def _maybe_complete(self, now: float) -> list[Effect]:
        if self.state is not State.PREPARING:
            return []
        assert self._rebalance_at is not None
        if self._first_join and now >= self._rebalance_at:
            # The delay is over, once. If somebody is on the way (told its id, not yet back), the rebalance goes on until
            # all are there, or its own time is up.
            self._first_join = False
            self._rebalance_at = self._rebalance_until
        everyone = all(member.join is not None for member in self.members.values()) and not self._pending
        if (everyone and not self._first_join) or now >= self._rebalance_until:
            return self._complete(now)
        return []

    def _complete(self, now: float) -> list[Effect]:
        self._first_join = False
        self._rebalance_at = None
        for member in list(self.members.values()):
            # A static member may be away for its session: it keeps its place (KIP-345). Others had their
            # time.
            if member.join is None and member.instance_id is None:
                self._remove(member)
        if not any(member.join is not None for member in self.members.values()):
            for member in list(self.members.values()):
                self._remove(member)
        self.generation += 1
        if not self.members:
            return self._become_empty()
        if self.leader not in self.members or self.members[self.leader].join is None:
            self.leader = next(m.member_id for m in self.members.values() if m.join is not None)
        self.protocol = self._elect_protocol()
        self.state = State.COMPLETING
        self._sync_until = now + self._longest_rebalance()
        effects: list[Effect] = []
        for member in self.members.values():
            if member.join is not None:
                effects.append(Reply(member.join, self._joined(member)))
                member.join = None
                member.owes_sync = True
                self._touch(member, now)
        return effects

    def _elect_protocol(self) -> str:
        """Each member votes for the first of its protocols that all know."""
        common = set.intersection(*(set(member.protocol_names) for member in self.members.values()))
        votes = Counter(
            next(name for name in member.protocol_names if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _joined(self, member: Member) -> Joined:
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                (m.member_id, m.instance_id, m.subscription(self.protocol)) for m in self.members.values()
            )
        return Joined(
            Code.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            members,
        )

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
        assignments: dict[str, bytes],
        token: Token,
        now: float,
    ) -> list[Effect]:
        refusal = self._identify(member_id, instance_id) or self._check_generation(generation)
        protocol_type, protocol_name = protocol
        if refusal is None and (
            (protocol_type is not None and protocol_type != self.protocol_type)
            or (protocol_name is not None and protocol_name != self.protocol)
        ):
            refusal = Code.INCONSISTENT_GROUP_PROTOCOL
        if refusal is None and self.state is State.PREPARING:
            refusal = Code.REBALANCE_IN_PROGRESS
        if refusal is not None:
            return [Reply(token, Synced(refusal))]
        member = self.members[member_id]
        self._touch(member, now)
        member.owes_sync = False
        if self.state is State.STABLE:
            return [Reply(token, self._synced(member))]
        stale = self._abandon(member)
        member.sync = token
        if member_id != self.leader or self._saving is not None:
            return stale
        for other in self.members.values():
            other.assignment = assignments.get(other.member_id, b"")
        self._saving = self.generation
        return [*stale, Save(self.generation)]

    def saved(self, save: Save, error: Code, now: float) -> list[Effect]:
        """The outcome of a `Save`. One that belongs to an earlier generation changes nothing."""
        if save.reply is not None:
            return [self._returned(save.reply, error)]
        generation = save.generation
        if self.state is not State.COMPLETING or self._saving != generation or generation != self.generation:
            return []
        self._saving = None
        if error is not Code.NONE:
            for member in self.members.values():
                member.assignment = b""
            effects = self._cancel_syncs(error)
            return effects + self._prepare(now)
        self.state = State.STABLE
        effects = []
        for member in self.members.values():
            if member.sync is not None:
                effects.append(Reply(member.sync, self._synced(member)))
                member.sync = None
        return effects

    def _returned(self, reply: Reply, error: Code) -> Reply:
        """A static member's return is saved, or is not. Meanwhile somebody else may have come under its instance id."""
        member_id = reply.answer.member_id if isinstance(reply.answer, Joined) else ""
        if error is Code.NONE and member_id not in self.members:
            error = Code.FENCED_INSTANCE_ID
        return reply if error is Code.NONE else Reply(reply.token, Joined(error, member_id))

    def _synced(self, member: Member) -> Synced:
        return Synced(Code.NONE, member.assignment, self.protocol_type, self.protocol)

    # ── life signs, leaving, commits ────────────────────────────────────────────────────────────────────────

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> Code:
        refusal = self._identify(member_id, instance_id) or self._check_generation(generation)
        if refusal is not None:
            return refusal
        self._touch(self.members[member_id], now)
        return Code.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Code.NONE

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now: float) -> Code:
        """May this caller commit offsets? A negative generation is a consumer without group management."""
        if generation < 0 and self.state is State.EMPTY:
            return Code.NONE
        if generation < 0 and not member_id:
            return Code.UNKNOWN_MEMBER_ID
        refusal = self._identify(member_id, instance_id) or self._check_generation(generation)
        if refusal is not None:
            return refusal
        if self.state is State.COMPLETING:
            return Code.REBALANCE_IN_PROGRESS
        self._touch(self.members[member_id], now)
        return Code.NONE

    def leave(self, member_id: str, instance_id: str | None, now: float) -> tuple[Code, list[Effect]]:
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        if member_id in self._pending:
            del self._pending[member_id]
            return Code.NONE, self._maybe_complete(now)
        refusal = self._identify(member_id, instance_id)
        if refusal is not None:
            return refusal, []
        return Code.NONE, self._drop(self.members[member_id], now)

    @property
    def is_unused(self) -> bool:
        """Nobody has ever been a member, and nobody is on the way: there is nothing to remember."""
        return self.state is State.EMPTY and not self.generation and not self._pending

    def deadline(self) -> float | None:
        """When `tick` has something to do; None if never."""
        times = [member.expires_at for member in self.members.values() if self._is_watched(member)]
        times += self._pending.values()
        if self._rebalance_at is not None:
            times.append(self._rebalance_at)
        if self._sync_until is not None:
            times.append(self._sync_until)
        return min(times, default=None)

    def tick(self, now: float) -> list[Effect]:
        """Expire who was silent for too long, end a rebalance whose time is up."""
        for member_id in [each for each, until in self._pending.items() if until <= now]:
            del self._pending[member_id]
        effects: list[Effect] = []
        for member in list(self.members.values()):
            if member.member_id in self.members and self._is_watched(member) and member.expires_at <= now:
                effects += self._drop(member, now)
        if self._sync_until is not None and self._sync_until <= now:
            effects += self._expire_syncs(now)
        return effects + self._maybe_complete(now)

    def _expire_syncs(self, now: float) -> list[Effect]:
        """Members that joined and never asked for their assignment hold their share up: out with them."""
        self._sync_until = None
        silent = [member for member in self.members.values() if member.owes_sync]
        for member in silent:
            self._remove(member)
        return self._prepare(now) if silent else []

    def kill(self, error: Code) -> list[Effect]:
        """The coordinator gives the group up (it moved, or was deleted): nobody waits for an answer that
        never comes.
        """
        self.state = State.DEAD
        return [reply for member in self.members.values() for reply in self._dismiss(member, error, error)]

    def restore(self, members: list[Member], now: float) -> None:
        """Put back what a log says: members get a full session to show up again."""
        for member in members:
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self._static[member.instance_id] = member.member_id
            self._touch(member, now)
        self.state = State.STABLE if members else State.EMPTY

    def continue_from(self, generation: int, protocol_type: str, members: list[Member], now: float) -> None:
        """It was a group of the consumer protocol so far. `rebalance` comes next."""
        self.generation, self.protocol_type = generation, protocol_type
        self.restore(members, now)
        self.leader, self.protocol = members[0].member_id, self._elect_protocol()

    def rebalance(self, now: float) -> list[Effect]:
        """Everybody joins again."""
        return self._prepare(now)

    # ── small parts ─────────────────────────────────────────────────────────────────────────────────────────

    def _is_watched(self, member: Member) -> bool:
        """A member whose request we hold is alive by definition: it waits for us."""
        return member.join is None and member.sync is None

    def _touch(self, member: Member, now: float) -> None:
        member.expires_at = now + member.session_timeout_s

    def _check_generation(self, generation: int) -> Code | None:
        return None if generation == self.generation else Code.ILLEGAL_GENERATION

    def _longest_rebalance(self) -> float:
        return max((member.rebalance_timeout_s for member in self.members.values()), default=0.0)

    def _abandon(self, member: Member) -> list[Effect]:
        """A second request of a member while its first one waits: answer the first, so that none hangs."""
        return self._dismiss(member, Code.UNKNOWN_MEMBER_ID, Code.REBALANCE_IN_PROGRESS)

    def _dismiss(self, member: Member, joining: Code, syncing: Code) -> list[Effect]:
        """Answer the request of a member that waits, if one does."""
        effects: list[Effect] = []
        if member.join is not None:
            effects.append(Reply(member.join, Joined(joining, member.member_id)))
        if member.sync is not None:
            effects.append(Reply(member.sync, Synced(syncing)))
        member.join = member.sync = None
        return effects

    def _cancel_syncs(self, error: Code) -> list[Effect]:
        effects: list[Effect] = []
        for member in self.members.values():
            if member.sync is not None:
                effects.append(Reply(member.sync, Synced(error)))
                member.sync = None
        return effects

    def _drop(self, member: Member, now: float) -> list[Effect]:
        effects = self._dismiss(member, Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID)
        self._remove(member)
        return effects + self._prepare(now)

    def _remove(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _become_empty(self) -> list[Effect]:
        self.state = State.EMPTY
        self.protocol = None
        self.leader = None
        self._sync_until = None
        self._saving = None
        return [Save(self.generation)]
