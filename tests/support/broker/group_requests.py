"""Requests to the state machine of a group."""

from __future__ import annotations

from typing import Any

from broker_shim.groups.member import JoinRequest

RANGE = (("range", b"topics"),)


def request(
    member_id: str = "", *, instance: str | None = None, session: float = 10.0, **changes: Any
) -> JoinRequest:
    base = JoinRequest(
        member_id, instance, "client", "host", session, 30.0, "consumer", RANGE, id_required=False
    )
    return base._replace(**changes)
