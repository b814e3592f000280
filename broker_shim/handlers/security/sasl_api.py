"""Authentication over the wire: SaslHandshake, SaslAuthenticate. Until it is done, a connection may do
nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from broker_shim.auth.sasl import MECHANISMS, AuthenticationFailed, Exchange, Users
from broker_shim.handlers.call import Call, Response
from broker_shim.net.connection import Connection
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import MalformedRequest
from logstore.errors import LogStoreError

log = logging.getLogger(__name__)
OAUTHBEARER = "OAUTHBEARER"
BEFORE_LOGIN = frozenset({Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})


GRACE_S = 30.0
"""For how much longer than its login is good for a connection may go on: clocks differ, and logging in takes time."""


class Tokens(Protocol):
    """What checks tokens, if the broker takes any."""

    def begin(self) -> Exchange: ...


class SaslApi:
    def __init__(
        self,
        users: Users | None,
        tokens: Tokens | None,
        partitions: PartitionRegistry,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._users = users
        self._tokens = tokens
        self._partitions = partitions
        self._loop = loop
        self._mechanisms = [*(MECHANISMS if users else ()), *([OAUTHBEARER] if tokens else ())]

    @property
    def is_required(self) -> bool:
        return bool(self._mechanisms)

    def check_login(self, connection: Connection) -> None:
        """Raises if the time has passed that its login was good for."""
        if connection.login_ends is not None and self._loop.time() >= connection.login_ends:
            raise MalformedRequest("its token has expired, and it has not shown a new one")

    async def handshake(self, call: Call) -> Response:
        if not self._mechanisms:
            return {"error_code": Code.ILLEGAL_SASL_STATE, "mechanisms": []}
        mechanism = call.request.mechanism
        if mechanism not in self._mechanisms:
            return {"error_code": Code.UNSUPPORTED_SASL_MECHANISM, "mechanisms": self._mechanisms}
        if mechanism == OAUTHBEARER:
            assert self._tokens is not None
            call.connection.sasl = self._tokens.begin()
        else:
            assert self._users is not None
            await self._reload(self._users)
            call.connection.sasl = self._users.begin(mechanism)
        return {"error_code": Code.NONE, "mechanisms": self._mechanisms}

    async def _reload(self, users: Users) -> None:
        try:
            await self._partitions.run(users.reload)
        except (OSError, ValueError, LogStoreError) as error:
            log.error("users cannot be read; those of before stay: %s", error)

    async def authenticate(self, call: Call) -> Response:
        exchange: Exchange | None = call.connection.sasl
        if exchange is None:
            return {
                "error_code": Code.ILLEGAL_SASL_STATE,
                "error_message": "SaslHandshake comes first",
                "auth_bytes": b"",
            }
        try:
            answer = await self._partitions.run(exchange.step, call.request.auth_bytes)
        except AuthenticationFailed:
            return self._fail(call, f"authentication failed: {exchange.refusal}")
        lifetime_ms = 0
        if exchange.user is not None:
            principal = f"User:{exchange.user}"
            if call.connection.principal not in (None, principal):
                # As in Kafka (KIP-368): what was begun as one user is not gone on with as another.
                return self._fail(call, "authentication failed: a connection does not change its user")
            call.connection.sasl = None
            call.connection.principal = principal
            call.connection.login_ends = None
            if exchange.lifetime_s is not None:
                lifetime_ms = max(1, round(exchange.lifetime_s * 1000))
                call.connection.login_ends = self._loop.time() + exchange.lifetime_s + GRACE_S
        return {
            "error_code": Code.NONE,
            "error_message": None,
            "auth_bytes": answer,
            "session_lifetime": lifetime_ms,
        }

    def _fail(self, call: Call, why: str) -> Response:
        call.connection.sasl = None
        call.connection.close_after_answer = True
        log.warning("a client at %s: %s", call.host, why)
        return {"error_code": Code.SASL_AUTHENTICATION_FAILED, "error_message": why, "auth_bytes": b""}
