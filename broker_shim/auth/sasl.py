"""SASL: PLAIN and SCRAM-SHA-256/512, against users in a JSON file, and against those in the store (`user_store`).

    {"alice": "her password",
     "bob": {"SCRAM-SHA-256": {"salt": "…", "iterations": 4096, "stored_key": "…", "server_key": "…"}}}

(base64; `python -m broker_shim.auth.sasl NAME` makes such an entry). Passwords are turned into keys when the file
is read and are not kept. An unknown user is asked for a proof like any other, so that nobody can find out
which names exist. The file is read again when it changes, the store's users at a login, at most every few seconds. A user
that is in both is the file's.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from getpass import getpass
from typing import Any, Protocol

import scramp

from broker_shim.auth.user_store import Keys, StoredUsers, UserStore

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SCRAM = MECHANISMS[1:]
WRONG = "wrong user or password"
ITERATIONS = 4096
STORED_FOR_S = 5.0
"""For how long the store's users are believed to be what they were."""
MAX_ITERATIONS = 10_000_000
MAX_SCRAM_BYTES = 4096
"""Names are normalised, in a time that grows with the square of their length, and nobody else runs meanwhile."""
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class AuthenticationFailed(Exception):
    """Wrong user, wrong proof, or no SASL message at all. Says nothing about which."""


class Exchange(Protocol):
    """One authentication. `step` takes the client's message and gives ours; `user` is set at the end, and `lifetime_s` if
    what was shown is good for a time only. `refusal`: what a client is told that is not let in."""

    refusal: str
    user: str | None
    lifetime_s: float | None

    def step(self, message: bytes) -> bytes: ...


class Users:
    """`begin` is cheap; `Exchange.step` hashes, and what reads or changes users does I/O: those belong in worker threads.
    `path` "": no file; `store` None: none of the store's."""

    def __init__(self, path: str, store: UserStore | None = None) -> None:
        self._path = path
        self._store = store
        self._read_at: tuple[int, int] | None = None
        self._looked_at = -STORED_FOR_S
        self._keys: dict[str, dict[str, Keys]] = {}
        self._stored: StoredUsers = {}
        self._pepper = secrets.token_bytes(32)
        self._reload_file()

    def reload(self) -> None:
        """Bring the users up to date for a login. Raises ValueError, OSError or `StoreError` and keeps the old ones."""
        self._reload_file()
        if time.monotonic() - self._looked_at >= STORED_FOR_S:
            self._reload_stored()

    def reload_all(self) -> None:
        """As they are now."""
        self._reload_file()
        self._reload_stored()

    def change_stored(self, edit: Callable[[StoredUsers], StoredUsers]) -> None:
        assert self._store is not None, "a broker has one"
        self._stored = self._store.change(edit)

    def is_in_file(self, name: str) -> bool:
        return name in self._keys

    def iterations(self) -> dict[str, dict[str, int]]:
        """Every user, and for how many iterations its keys of each mechanism are."""
        both = {**self._stored, **self._keys}
        return {
            name: {mechanism: each.iterations for mechanism, each in keys.items()}
            for name, keys in both.items()
        }

    def _reload_stored(self) -> None:
        if self._store is not None:
            self._looked_at = time.monotonic()
            self._stored = self._store.load()

    def _reload_file(self) -> None:
        if not self._path:
            return
        status = os.stat(self._path)
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp == self._read_at:
            return
        with open(self._path, encoding="utf-8") as file:
            content = json.load(file)
        if not isinstance(content, dict):
            raise ValueError(f"{self._path}: not an object of users")
        self._keys = {name: _parse_user(self._path, name, entry) for name, entry in content.items()}
        self._read_at = stamp

    def begin(self, mechanism: str) -> Exchange:
        return _Plain(self) if mechanism == "PLAIN" else _Scram(self, mechanism)

    def keys(self, name: str, mechanism: str) -> Keys:
        """A user's keys, or ones that no password fits but that stay the same for each unknown name."""
        known = (self._keys.get(name) or self._stored.get(name, {})).get(mechanism)
        if known is not None:
            return known
        seed = hmac.digest(self._pepper, f"{mechanism}:{name}".encode(), "sha512")
        size = hashlib.new(_HASHES[mechanism]).digest_size
        return Keys(seed[:16], secrets.token_bytes(size), secrets.token_bytes(size), ITERATIONS)


class _Plain:
    refusal = WRONG
    lifetime_s: float | None = None

    def __init__(self, users: Users) -> None:
        self._users = users
        self.user: str | None = None

    def step(self, message: bytes) -> bytes:
        parts = message.split(b"\0")
        try:
            actor, name, password = (part.decode() for part in parts)
        except ValueError as error:
            raise AuthenticationFailed from error
        keys = self._users.keys(name, "SCRAM-SHA-256")
        derived = derive("SCRAM-SHA-256", password, keys.salt, keys.iterations)
        if not hmac.compare_digest(derived.stored_key, keys.stored_key) or actor not in ("", name):
            raise AuthenticationFailed
        self.user = name
        return b""


class _Scram:
    refusal = WRONG
    lifetime_s: float | None = None

    def __init__(self, users: Users, mechanism: str) -> None:
        self._name: str | None = None
        self._first = True
        self.user: str | None = None

        def keys_of(name: str) -> tuple[bytes, bytes, bytes, int]:
            self._name = name
            return tuple(users.keys(name, mechanism))  # type: ignore[return-value]

        self._server = scramp.ScramMechanism(mechanism).make_server(keys_of)

    def step(self, message: bytes) -> bytes:
        if len(message) > MAX_SCRAM_BYTES:
            raise AuthenticationFailed
        try:
            text = message.decode()
            if self._first:
                self._first = False
                self._server.set_client_first(text)
                return str(self._server.get_server_first()).encode()
            self._server.set_client_final(text)
            answer = str(self._server.get_server_final()).encode()
        except (scramp.ScramException, ValueError, KeyError, IndexError) as error:
            raise AuthenticationFailed from error
        self.user = self._name
        return answer


def derive(mechanism: str, password: str, salt: bytes, iterations: int) -> Keys:
    salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)
    return keys_of_salted(mechanism, salted, salt, iterations)


def keys_of_salted(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Keys:
    """What is kept of a password that somebody else has salted and hashed."""
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return Keys(
        salt, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name), iterations
    )


def _parse_user(path: str, name: str, entry: Any) -> dict[str, Keys]:
    if isinstance(entry, str):
        return {m: derive(m, entry, secrets.token_bytes(16), ITERATIONS) for m in SCRAM}
    try:
        keys = {
            mechanism: Keys(
                b64decode(each["salt"]),
                b64decode(each["stored_key"]),
                b64decode(each["server_key"]),
                int(each["iterations"]),
            )
            for mechanism, each in entry.items()
            if mechanism in SCRAM
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: user {name!r} has neither a password nor SCRAM keys") from error
    if not keys:
        raise ValueError(f"{path}: user {name!r} has no keys for {' or '.join(SCRAM)}")
    if not all(ITERATIONS <= each.iterations <= MAX_ITERATIONS for each in keys.values()):
        raise ValueError(f"{path}: user {name!r}: iterations are {ITERATIONS} to {MAX_ITERATIONS}")
    return keys


def make_entry(password: str) -> dict[str, dict[str, str | int]]:
    """What is in the file in place of a password."""
    entry: dict[str, dict[str, str | int]] = {}
    for mechanism in SCRAM:
        keys = derive(mechanism, password, secrets.token_bytes(16), ITERATIONS)
        entry[mechanism] = {
            "salt": b64encode(keys.salt).decode(),
            "iterations": keys.iterations,
            "stored_key": b64encode(keys.stored_key).decode(),
            "server_key": b64encode(keys.server_key).decode(),
        }
    return entry


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m broker_shim.auth.sasl NAME")
    print(json.dumps({sys.argv[1]: make_entry(getpass("Password: "))}, indent=2))
