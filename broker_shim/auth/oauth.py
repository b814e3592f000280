"""SASL/OAUTHBEARER (RFC 7628): a JSON Web Token, checked against the key set of whoever issues them.

The token says who comes (`--oauth-principal-claim`) and until when: then its connection must have logged in again with a new
one, or is closed (KIP-368). Signatures by public keys only: a key set that everybody may read proves nothing with a shared
secret. Issuer and audience are checked if they are configured.

The key set is a file, read again when it changes, or an address: https, or http on this machine. That is asked again when a
token names a key that is not known, at most every `ASK_AGAIN_S`, and when a token comes and the keys are `KEEP_S` old: a key
that its issuer has withdrawn counts no longer than that. While it does not answer, the keys of before stay.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import jwt

from broker_shim.auth.sasl import AuthenticationFailed

log = logging.getLogger(__name__)
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
CLOCK_SKEW_S = 30.0
ASK_AGAIN_S = 10.0
KEEP_S = 3600.0
"""As Kafka's `sasl.oauthbearer.jwks.endpoint.refresh.ms`."""
TIMEOUT_S = 5.0
MAX_KEY_SET_BYTES = 1 << 20
MAX_TOKEN_BYTES = 16 << 10
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_place(place: str) -> None:
    """Raises ValueError if keys must not be taken from there."""
    parts = urlsplit(place)
    if parts.scheme in ("", "https"):
        return
    if parts.scheme != "http" or parts.hostname not in LOOPBACK:
        raise ValueError(f"--oauth-keys {place}: a file, https://…, or http:// on this machine")


class KeySet:
    """The keys of an issuer, by their ids. Does I/O: used from worker threads."""

    def __init__(self, place: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        check_place(place)
        self._place = place
        self._is_file = not urlsplit(place).scheme
        self._monotonic = monotonic
        self._lock = (
            threading.Lock()
        )  # guards what follows; held while keys are asked for, so that they are once
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._stamp: tuple[int, int] | None = None
        self._asked_at = self._loaded_at = 0.0
        self._load()

    def find(self, key_id: str | None) -> jwt.PyJWK | None:
        """The key of that id. A token that names none means the only one."""
        with self._lock:
            if self._is_file or self._must_ask(key_id):
                try:
                    self._load()
                except (OSError, ValueError) as error:
                    log.error("the keys of before stay: %s", error)
            if key_id is None and len(self._keys) == 1:
                return next(iter(self._keys.values()))
            return self._keys.get(key_id)

    def _must_ask(self, key_id: str | None) -> bool:
        now = self._monotonic()
        is_old = now - self._loaded_at >= KEEP_S
        return (is_old or key_id not in self._keys) and now - self._asked_at >= ASK_AGAIN_S

    def _load(self) -> None:
        if self._is_file:
            status = os.stat(self._place)
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return
            with open(self._place, "rb") as file:
                self._keys = self._parsed(file.read(MAX_KEY_SET_BYTES))
            self._stamp = stamp
        else:
            self._asked_at = self._monotonic()
            self._keys = self._parsed(self._asked())
            self._loaded_at = self._asked_at

    def _asked(self) -> bytes:
        try:
            with _OPENER.open(self._place, timeout=TIMEOUT_S) as answer:
                content: bytes = answer.read(MAX_KEY_SET_BYTES)
        except HTTPException as error:
            raise OSError(f"{self._place}: {error}") from error
        return content

    def _parsed(self, content: bytes) -> dict[str | None, jwt.PyJWK]:
        try:
            keys = jwt.PyJWKSet.from_dict(json.loads(content)).keys
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{self._place}: no key set: {error}") from error
        usable = {
            key.key_id: key
            for key in keys
            if key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig")
        }
        if not usable:
            raise ValueError(
                f"{self._place}: no key in it is for one of the signatures {', '.join(sorted(ALGORITHMS))}"
            )
        return usable


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Keys come from where they were said to be."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


@dataclass(eq=False)
class Tokens:
    """Who a token is for."""

    _keys: KeySet
    issuer: str = field(default="", kw_only=True)
    audience: str = field(default="", kw_only=True)
    claim: str = field(default="sub", kw_only=True)
    now: Callable[[], float] = field(default=time.time, kw_only=True)

    def begin(self) -> Bearer:
        return Bearer(self)

    def check(self, token: str) -> tuple[str, float]:
        """The user, and for how many seconds. Raises `AuthenticationFailed`; the log says why."""
        try:
            key = self._keys.find(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                raise AuthenticationFailed("a token signed with a key that is not known")
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=self.issuer or None,
                audience=self.audience or None,
                leeway=CLOCK_SKEW_S,
                options={"require": ["exp", self.claim], "verify_aud": bool(self.audience)},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            log.info("a token was refused: %s", error)
            raise AuthenticationFailed from error
        user = claims[self.claim]
        if not isinstance(user, str) or not user:
            raise AuthenticationFailed
        return user, max(0.001, float(claims["exp"]) - self.now())


class Bearer:
    """One authentication: the client's first message is all there is."""

    refusal = "the token is not accepted"

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.user: str | None = None
        self.lifetime_s: float | None = None

    def step(self, message: bytes) -> bytes:
        actor, token = parse_first(message)
        user, lifetime_s = self._tokens.check(token)
        if actor not in ("", user):
            raise AuthenticationFailed
        self.user, self.lifetime_s = user, lifetime_s
        return b""


def parse_first(message: bytes) -> tuple[str, str]:
    """`n,a=user,^Aauth=Bearer token^Akey=value^A^A`: whom the client wants to be ("": as the token says), and its token."""
    if len(message) > MAX_TOKEN_BYTES:
        raise AuthenticationFailed
    try:
        head, *pairs, last, end = message.decode("ascii").split("\x01")
        binding, actor, rest = head.split(",")
    except ValueError as error:
        raise AuthenticationFailed from error
    if binding not in ("n", "y") or rest or last or end or (actor and not actor.startswith("a=")):
        raise AuthenticationFailed
    values = dict(pair.partition("=")[::2] for pair in pairs)
    scheme, _, token = values.get("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthenticationFailed
    return actor.removeprefix("a="), token.strip()
