"""A member of a consumer group, as its coordinator knows it, and the answers that a group gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from broker_shim.wire.codes import Code

Protocols = tuple[tuple[str, bytes], ...]
Token = Any
"""Whatever the shell uses to find the request that waits: a group only hands it back."""


class Classic(NamedTuple):
    """What a member of a group of the consumer protocol has said that itself speaks the classic one."""

    session_timeout_s: float
    protocols: Protocols


@dataclass
class Member:
    """One consumer. `join` and `sync` hold the token of a request that is waiting for the group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocols: Protocols
    assignment: bytes = b""
    expires_at: float = 0.0
    join: Token | None = None
    sync: Token | None = None
    owes_sync: bool = False
    """It was told of the new generation and has not asked for its assignment yet."""

    @property
    def protocol_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.protocols)

    def subscription(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class JoinRequest(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocol_type: str
    protocols: Protocols
    id_required: bool
    """JoinGroup 4 and later: a new member is told its id first, so that a lost answer leaves no ghost
    (KIP-394).
    """
    can_skip_assignment: bool = False
    """JoinGroup 9: a returning static leader is told that the assignment stays valid."""

    def member(self, member_id: str) -> Member:
        """Who asks, once it has an id."""
        return Member(
            member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_s,
            self.rebalance_timeout_s,
            self.protocols,
        )


class Joined(NamedTuple):
    """The answer to a JoinGroup."""

    error: Code
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The answer to a SyncGroup."""

    error: Code
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class Reply(NamedTuple):
    """Effect: answer the request behind `token`."""

    token: Token
    answer: Joined | Synced


class Save(NamedTuple):
    """Effect: make the group's state durable, then hand this back with the outcome: `Group.saved(save, …)`.

    `reply`: an answer that is given when what it says is durable.
    """

    generation: int
    reply: Reply | None = None


Effect = Reply | Save


@dataclass(frozen=True)
class Limits:
    """What a coordinator allows. Kafka's names and defaults, except a shorter first delay."""

    min_session_timeout_s: float = 6.0
    max_session_timeout_s: float = 1800.0
    initial_rebalance_delay_s: float = 0.5
    max_group_size: int = 10_000
    max_pending_members: int = 1_000
