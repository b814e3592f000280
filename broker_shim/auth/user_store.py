"""Users that were made with Kafka's own calls: SCRAM keys in one object of the store, changed by compare-and-set.

It holds what SCRAM keeps of passwords, never a password, and a nonce, so that no two versions have the same bytes: whether
ours is stored can be told.
"""

from __future__ import annotations

import json
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import NamedTuple

from logstore.errors import CorruptData, ObjectNotFound, PreconditionFailed
from logstore.layout.broker import USERS_KEY
from logstore.objects import ObjectStore
from logstore.objects.settled import put_settled

ATTEMPTS = 10


class Keys(NamedTuple):
    """What SCRAM keeps of a password (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


StoredUsers = Mapping[str, Mapping[str, Keys]]
"""By name and mechanism."""


class UserStore:
    """Does I/O: used from worker threads."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._last: tuple[StoredUsers, str | None] = ({}, None)

    def load(self) -> StoredUsers:
        return self._read()[0]

    def change(self, edit: Callable[[StoredUsers], StoredUsers]) -> StoredUsers:
        """Apply `edit` to the users as they stand now; again if another broker was faster."""
        for _ in range(ATTEMPTS):
            users, etag = self._read()
            changed = edit(users)
            if changed == users:
                return users
            document = {"users": _shown(changed), "nonce": secrets.token_hex(8)}
            if put_settled(self._objects, USERS_KEY, json.dumps(document).encode(), etag):
                return changed
        raise PreconditionFailed(f"{USERS_KEY} changed {ATTEMPTS} times while it was being edited; try again")

    def _read(self) -> tuple[StoredUsers, str | None]:
        """Head before get: if the object changes in between, the older etag makes our put fail, never win."""
        info = self._objects.head(USERS_KEY)
        if info is None:
            return {}, None
        if info.etag != self._last[1]:
            try:
                self._last = _parsed(json.loads(self._objects.get(USERS_KEY))["users"]), info.etag
            except ObjectNotFound:
                return {}, None
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise CorruptData(USERS_KEY, None, f"these are no users: {error}") from error
        return self._last


def _shown(users: StoredUsers) -> dict[str, dict[str, list[str | int]]]:
    return {
        name: {
            mechanism: [*(b64encode(key).decode() for key in keys[:3]), keys.iterations]
            for mechanism, keys in of_user.items()
        }
        for name, of_user in users.items()
    }


def _parsed(content: Mapping[str, Mapping[str, list[str]]]) -> StoredUsers:
    return {
        name: {
            mechanism: Keys(b64decode(salt), b64decode(stored), b64decode(server), int(iterations))
            for mechanism, (salt, stored, server, iterations) in of_user.items()
        }
        for name, of_user in content.items()
    }
