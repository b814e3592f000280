"""Members that speak the classic protocol, in a group of the consumer protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup
as the state machine of `consumer_group` understands them.

JoinGroup is a heartbeat that says everything, answered at once, and the member's epoch is the generation. Nobody leads: the
broker assigns, and SyncGroup only asks for one's share. REBALANCE_IN_PROGRESS on a heartbeat means "join again": there is
another target, or something to give up, or what the member waits for is free. Who does not join again within its
rebalance timeout is out. Pure; raises `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_shim.groups.assignors import Topics
from broker_shim.groups.consumer_group import (
    JOINING,
    ConsumerGroup,
    ConsumerMember,
    Heartbeat,
    Held,
    Refused,
    Way,
)
from broker_shim.groups.member import Classic, Joined, JoinRequest, Limits, Synced
from broker_shim.groups.subscription import CONSUMER, of_protocols, write_assignment
from broker_shim.wire.codes import Code

Protocol = tuple[str | None, str | None]
"""Type and name."""


def join(
    group: ConsumerGroup,
    request: JoinRequest,
    topics: Topics,
    limits: Limits,
    new_id: Callable[[str], str],
    now: float,
) -> Joined:
    said = of_protocols(request.protocols)
    if request.protocol_type != CONSUMER or said is None or not _supports(group, request):
        raise Refused(Code.INCONSISTENT_GROUP_PROTOCOL)
    if not limits.min_session_timeout_s <= request.session_timeout_s <= limits.max_session_timeout_s:
        raise Refused(Code.INVALID_SESSION_TIMEOUT)
    member_id = request.member_id or new_id(request.instance_id or request.client_id)
    if not request.member_id and request.instance_id is None and request.id_required:
        return Joined(Code.MEMBER_ID_REQUIRED, member_id)
    known = group.members.get(member_id)
    owned: Held = frozenset()
    if known is None and said.owned:
        raise Refused(Code.UNKNOWN_MEMBER_ID)  # it reads what may be another's by now: that it gives up first
    if known is not None:
        group.identify(member_id, request.instance_id)
        owned = frozenset((topics[name].topic_id, i) for name, i in said.owned if name in topics)
    beat = group.heartbeat(
        Heartbeat(
            member_id,
            JOINING if known is None else max(known.epoch, JOINING),
            request.instance_id,
            rebalance_timeout_s=request.rebalance_timeout_s,
            names=said.topics,
            owned=owned,
            client_id=request.client_id,
            client_host=request.client_host,
            classic=Classic(request.session_timeout_s, request.protocols),
        ),
        topics,
        now,
    )
    return Joined(Code.NONE, beat.member_id, beat.epoch, CONSUMER, request.protocols[0][0])


def _supports(group: ConsumerGroup, request: JoinRequest) -> bool:
    """Whether all that speak the classic protocol have one in common: some day they may be alone."""
    others = [
        {name for name, _ in each.classic.protocols}
        for each in group.members.values()
        if each.classic is not None and each.member_id != request.member_id
    ]
    return not others or any(name in set.intersection(*others) for name, _ in request.protocols)


def sync(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    protocol: Protocol,
    names: Callable[[Held], list[tuple[str, int]]],
    now: float,
) -> Synced:
    """`names`: the partitions by the names of their topics."""
    member, classic = _find(group, member_id, instance_id, generation)
    first = classic.protocols[0][0]
    if protocol[0] not in (None, CONSUMER) or protocol[1] not in (None, first):
        raise Refused(Code.INCONSISTENT_GROUP_PROTOCOL)
    group.touch(member, now)
    if group.epoch > member.epoch and member.way is not Way.UNREVOKED_PARTITIONS:
        raise Refused(Code.REBALANCE_IN_PROGRESS)
    return Synced(Code.NONE, write_assignment(names(member.assigned)), CONSUMER, first)


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now: float
) -> Code:
    member, _ = _find(group, member_id, instance_id, generation)
    group.touch(member, now)
    return Code.REBALANCE_IN_PROGRESS if group.must_rejoin(member, now) else Code.NONE


def leave(group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
    """Also who speaks the consumer protocol, if an admin removes it so."""
    found = member_id or (group.static.get(instance_id, "") if instance_id is not None else "")
    group.remove(group.identify(found, instance_id))


def _find(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, Classic]:
    member = group.identify(member_id, instance_id)
    if member.classic is None:
        raise Refused(Code.UNKNOWN_MEMBER_ID)
    if member.epoch != generation:
        raise Refused(Code.ILLEGAL_GENERATION)
    return member, member.classic
