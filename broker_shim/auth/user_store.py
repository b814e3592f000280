"""Users that were made with Kafka's own calls, in one object of the store: what SCRAM keeps of passwords, no password."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

from broker_shim.auth.shared_object import SharedObject
from logstore.layout.broker import USERS_KEY
from logstore.objects import ObjectStore


class Keys(NamedTuple):
    """What SCRAM keeps of a password (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


StoredUsers = Mapping[str, Mapping[str, Keys]]
"""By name and mechanism."""


class UserStore(SharedObject[StoredUsers]):
    key, what = USERS_KEY, "users"

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects, {})

    def _parsed(self, content: Any) -> StoredUsers:
        return {
            name: {
                mechanism: Keys(b64decode(salt), b64decode(stored), b64decode(server), int(iterations))
                for mechanism, (salt, stored, server, iterations) in of_user.items()
            }
            for name, of_user in content["users"].items()
        }

    def _shown(self, value: StoredUsers) -> dict[str, Any]:
        users = {
            name: {
                mechanism: [*(b64encode(key).decode() for key in keys[:3]), keys.iterations]
                for mechanism, keys in of_user.items()
            }
            for name, of_user in value.items()
        }
        return {"users": users}
