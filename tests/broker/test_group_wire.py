"""Consumer groups as seen from one connection: what is answered while others are being waited for."""

from __future__ import annotations

from typing import Any

from broker.harness import LocalBroker, Wire
from broker_shim import messages
from broker_shim.apis import Api
from broker_shim.codes import Code

GROUP = "team"


def join_body(member_id: str = "") -> dict[str, Any]:
    return {
        "group_id": GROUP,
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    }


def stable_member(client: Wire) -> tuple[str, int]:
    """Join an empty group and sync. Returns the member id and the generation."""
    member_id = client.ask(Api.JOIN_GROUP, 5, **join_body()).member_id
    joined = client.ask(Api.JOIN_GROUP, 5, **join_body(member_id))
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


def test_B01_who_leaves_while_its_join_waits_is_let_go_at_once(broker: LocalBroker) -> None:
    """librdkafka does this when a consumer is closed during a rebalance. The others may take minutes to join."""
    with Wire(broker.port) as first, Wire(broker.port) as second:
        member_id, generation = stable_member(first)
        newcomer = second.ask(Api.JOIN_GROUP, 5, **join_body()).member_id
        joining = second.send(
            Api.JOIN_GROUP, 5, messages.encode_request(Api.JOIN_GROUP, 5, join_body(newcomer))
        )
        members = [{"member_id": newcomer, "group_instance_id": None}]
        leaving = second.send(
            Api.LEAVE_GROUP,
            3,
            messages.encode_request(Api.LEAVE_GROUP, 3, {"group_id": GROUP, "members": members}),
        )
        assert second.answer(Api.JOIN_GROUP, 5, joining).error_code == Code.UNKNOWN_MEMBER_ID
        left = second.answer(Api.LEAVE_GROUP, 3, leaving)
        assert [(each.member_id, each.error_code) for each in left.members] == [(newcomer, Code.NONE)]
        again = first.ask(Api.JOIN_GROUP, 5, **join_body(member_id))
        assert (again.error_code, again.generation_id) == (Code.NONE, generation + 1)
        assert [each.member_id for each in again.members] == [member_id]
