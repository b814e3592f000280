"""Joining a group over one connection, step by step."""

from __future__ import annotations

from typing import Any

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from tests.support.broker.harness import Wire

GROUP = "team"


def join_body(member_id: str = "", metadata: bytes = b"m", protocol_type: str = "consumer") -> dict[str, Any]:
    return {
        "group_id": GROUP,
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": protocol_type,
        "protocols": [{"name": "range", "metadata": metadata}],
    }


def stable_member(client: Wire, **options: Any) -> tuple[str, int]:
    """Join an empty group and sync. Returns the member id and the generation."""
    member_id = client.ask(Api.JOIN_GROUP, 5, **join_body(**options)).member_id
    joined = client.ask(Api.JOIN_GROUP, 5, **join_body(member_id, **options))
    assert joined.error_code == Code.NONE
    synced = client.ask(
        Api.SYNC_GROUP,
        3,
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=member_id,
        group_instance_id=None,
        assignments=[{"member_id": member_id, "assignment": b"all"}],
    )
    assert (synced.error_code, synced.assignment) == (Code.NONE, b"all")
    return member_id, joined.generation_id
