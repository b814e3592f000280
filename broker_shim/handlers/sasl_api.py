"""Authentication over the wire: SaslHandshake, SaslAuthenticate. Until it is done, a connection may do
nothing else.
"""

from __future__ import annotations

import logging

from broker_shim.auth.sasl import MECHANISMS, AuthenticationFailed, Exchange, Users
from broker_shim.handlers.call import Call, Response
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.errors import LogStoreError

log = logging.getLogger(__name__)
BEFORE_LOGIN = frozenset({Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})


class SaslApi:
    def __init__(self, users: Users | None, partitions: PartitionRegistry) -> None:
        self._users = users
        self._partitions = partitions

    @property
    def is_required(self) -> bool:
        return self._users is not None

    async def handshake(self, call: Call) -> Response:
        if self._users is None:
            return {"error_code": Code.ILLEGAL_SASL_STATE, "mechanisms": []}
        mechanism = call.request.mechanism
        if mechanism not in MECHANISMS:
            return {"error_code": Code.UNSUPPORTED_SASL_MECHANISM, "mechanisms": list(MECHANISMS)}
        try:
            await self._partitions.run(self._users.reload)
        except (OSError, ValueError, LogStoreError) as error:
            log.error("users cannot be read; those of before stay: %s", error)
        call.connection.sasl = self._users.begin(mechanism)
        return {"error_code": Code.NONE, "mechanisms": list(MECHANISMS)}

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
            return self._fail(call, "authentication failed: wrong user or password")
        if exchange.user is not None:
            principal = f"User:{exchange.user}"
            if call.connection.principal not in (None, principal):
                # As in Kafka (KIP-368): what was begun as one user is not gone on with as another.
                return self._fail(call, "authentication failed: a connection does not change its user")
            call.connection.sasl = None
            call.connection.principal = principal
        return {"error_code": Code.NONE, "error_message": None, "auth_bytes": answer}

    def _fail(self, call: Call, why: str) -> Response:
        call.connection.sasl = None
        call.connection.close_after_answer = True
        log.warning("a client at %s: %s", call.host, why)
        return {"error_code": Code.SASL_AUTHENTICATION_FAILED, "error_message": why, "auth_bytes": b""}
