"""B11: SASL/OAUTHBEARER: tokens signed by a key set that the broker knows, and by nothing else; good until they expire."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import confluent_kafka
import jwt
import kafka
import kafka.net.sasl.oauth
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from broker_shim.auth.oauth import KeySet, Tokens, parse_first
from broker_shim.auth.sasl import AuthenticationFailed
from broker_shim.config import BrokerConfig
from broker_shim.handlers.security import sasl_api
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
ISSUER, AUDIENCE = "https://issuer.example", "brokers"


class Issuer:
    """Signs tokens, and says with which keys."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.add("first")

    def add(self, key_id: str, key: Any = None) -> None:
        self.keys[key_id] = key or ec.generate_private_key(ec.SECP256R1())

    def key_set(self) -> bytes:
        rows = []
        for key_id, key in self.keys.items():
            kind: Any = (
                jwt.algorithms.RSAAlgorithm
                if isinstance(key, rsa.RSAPrivateKey)
                else jwt.algorithms.ECAlgorithm
            )
            rows.append({**kind.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig"})
        return json.dumps({"keys": rows}).encode()

    def token(
        self, user: str = "alice", *, key_id: str = "first", lifetime_s: float = 3600, **claims: Any
    ) -> str:
        key = self.keys[key_id]
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        content = {
            "sub": user,
            "iss": ISSUER,
            "aud": AUDIENCE,
            "exp": time.time() + lifetime_s,
            **claims,
        }
        kept = {name: value for name, value in content.items() if value is not None}
        return jwt.encode(kept, key, algorithm, headers={"kid": key_id})


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def keys(issuer: Issuer, tmp_path: Path) -> str:
    path = tmp_path / "keys.json"
    path.write_bytes(issuer.key_set())
    return str(path)


def log_in(client: Wire, token: str, actor: str = "") -> Any:
    shook = client.ask(Api.SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER")
    assert (shook.error_code, shook.mechanisms) == (Code.NONE, ["OAUTHBEARER"])
    message = f"n,{actor},\x01auth=Bearer {token}\x01\x01".encode()
    return client.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=message)


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_B11_librdkafka_kafka_python_and_aiokafka_log_in_with_a_token(
    start_broker: Start, issuer: Issuer, keys: str
) -> None:
    broker = start_broker(
        oauth_keys=keys, oauth_issuer=ISSUER, oauth_audience=AUDIENCE, acls=True, super_users="User:alice"
    )
    token = issuer.token()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token, time.time() + 3600),
        }
    )
    failed: list[object] = []
    producer.produce("t", b"one", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []

    class Provider(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token

    old = kafka.KafkaProducer(
        bootstrap_servers=broker.address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    old.send("t", b"two").get(PATIENCE_S)
    old.close()

    class Later(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return token

    async def read() -> list[bytes | None]:
        consumer = aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Later(),
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return [(await consumer.getone()).value for _ in range(2)]
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == [b"one", b"two"]


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_B11_a_token_names_its_user_and_no_other_is_acted_for(
    start_broker: Start, issuer: Issuer, keys: str
) -> None:
    broker = start_broker(oauth_keys=keys)
    with Wire(broker.port) as client:
        answer = log_in(client, issuer.token(lifetime_s=3600), actor="a=alice")
        assert answer.error_code == Code.NONE
        assert 3_000_000 < answer.session_lifetime <= 3_600_000
        assert client.ask(Api.METADATA, 9, topics=[]).controller_id == 1
        assert log_in(client, issuer.token("bob")).error_code == Code.SASL_AUTHENTICATION_FAILED
    with Wire(broker.port) as client:
        assert log_in(client, issuer.token(), actor="a=bob").error_code == Code.SASL_AUTHENTICATION_FAILED
        assert client.receive() == b"", "hung up"


def forged(issuer: Issuer) -> str:
    other = Issuer()
    return other.token()


def unsigned(issuer: Issuer) -> str:
    return jwt.encode({"sub": "alice", "exp": time.time() + 60}, None, "none", headers={"kid": "first"})  # type: ignore[arg-type]


def signed_with_what_everybody_may_read(issuer: Issuer) -> str:
    head, body = (
        jwt.utils.base64url_encode(json.dumps(part).encode())
        for part in (
            {"alg": "HS256", "typ": "JWT", "kid": "first"},
            {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60},
        )
    )
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = algorithm.sign(head + b"." + body, issuer.key_set())
    return b".".join((head, body, jwt.utils.base64url_encode(signature))).decode()


@pytest.mark.parametrize(
    "make",
    [
        forged,
        unsigned,
        signed_with_what_everybody_may_read,
        lambda issuer: issuer.token(lifetime_s=-3600),
        lambda issuer: issuer.token(exp=None),
        lambda issuer: issuer.token(sub=None),
        lambda issuer: issuer.token(user=""),
        lambda issuer: issuer.token(sub=["alice"]),
        lambda issuer: issuer.token(iss="https://another.example"),
        lambda issuer: issuer.token(aud="others"),
        lambda issuer: issuer.token(aud=None),
        lambda issuer: issuer.token(nbf=time.time() + 3600),
        lambda issuer: issuer.token()[:-4],
        lambda issuer: "no.token",
        lambda issuer: "x" * 20_000,
    ],
    ids=[
        "forged",
        "unsigned",
        "by-a-public-key-as-secret",
        "expired",
        "no-end",
        "nobody",
        "empty",
        "list",
        "issuer",
        "audience",
        "no-audience",
        "not-yet",
        "cut",
        "junk",
        "huge",
    ],
)
def test_B11_a_token_that_proves_nothing_is_refused(
    issuer: Issuer, keys: str, make: Callable[[Issuer], str]
) -> None:
    tokens = Tokens(KeySet(keys), issuer=ISSUER, audience=AUDIENCE)
    assert tokens.check(issuer.token())[0] == "alice"
    with pytest.raises(AuthenticationFailed):
        tokens.begin().step(f"n,,\x01auth=Bearer {make(issuer)}\x01\x01".encode())


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"p=tls,,\x01auth=Bearer t\x01\x01",
        b"n,x,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Basic t\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer t\x01",
        b"\xff" * 10,
    ],
)
def test_B11_what_is_no_bearers_message_is_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        parse_first(message)


def test_B11_another_claim_can_be_the_user(issuer: Issuer, keys: str) -> None:
    tokens = Tokens(KeySet(keys), claim="client_id")
    assert tokens.check(issuer.token(client_id="service", aud=None, iss=None))[0] == "service"
    with pytest.raises(AuthenticationFailed):
        tokens.check(issuer.token())


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_B11_a_connection_ends_with_its_token_unless_it_shows_a_new_one(
    start_broker: Start, issuer: Issuer, keys: str
) -> None:
    broker = start_broker(oauth_keys=keys)
    with Wire(broker.port) as stays, Wire(broker.port) as forgets:
        for client in (stays, forgets):
            assert log_in(client, issuer.token(lifetime_s=60)).error_code == Code.NONE
            assert client.ask(Api.METADATA, 9, topics=[]).controller_id == 1
        connections = tuple(broker.server._connections)
        assert len(connections) == 2

        def expire() -> None:
            now = broker._loop.time()
            for connection in connections:
                assert connection.login_ends is not None
                assert 0 < connection.login_ends - now <= 60 + sasl_api.GRACE_S
                connection.login_ends = now

        broker.call(expire)
        assert log_in(stays, issuer.token(lifetime_s=60)).error_code == Code.NONE
        assert stays.ask(Api.METADATA, 9, topics=[]).controller_id == 1
        forgets.send(Api.METADATA, 9, b"\x01\x00\x00\x00\x00")
        assert forgets.receive() == b"", "hung up"


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_B11_keys_of_a_file_are_read_again_when_it_changes(issuer: Issuer, keys: str) -> None:
    key_set = KeySet(keys)
    tokens = Tokens(key_set)
    issuer.add("second", rsa.generate_private_key(65537, 2048))
    with pytest.raises(AuthenticationFailed):
        tokens.check(issuer.token(key_id="second", aud=None))
    Path(keys).write_bytes(issuer.key_set())
    assert tokens.check(issuer.token(key_id="second", aud=None))[0] == "alice"
    Path(keys).write_text("{}")
    assert tokens.check(issuer.token(aud=None))[0] == "alice", "the keys of before stay"


@pytest.fixture
def address(issuer: Issuer) -> Iterator[tuple[str, list[str]]]:
    """A key set on loopback, and what was asked for there."""
    asked: list[str] = []

    class Keys(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302 if self.path == "/moved" else 200)
            if self.path == "/moved":
                self.send_header("Location", "/keys")
            self.end_headers()
            self.wfile.write(issuer.key_set())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


def test_B11_keys_of_an_address_are_asked_for_when_a_new_one_is_named_and_not_for_every_token(
    issuer: Issuer, address: tuple[str, list[str]]
) -> None:
    url, asked = address
    now = [1000.0]
    key_set = KeySet(f"{url}/keys", monotonic=lambda: now[0])
    tokens = Tokens(key_set)
    for _ in range(5):
        tokens.check(issuer.token(aud=None))
    assert asked == ["/keys"]
    issuer.add("second")
    with pytest.raises(AuthenticationFailed):  # whoever makes up key ids does not make us ask
        tokens.check(issuer.token(key_id="second", aud=None))
    now[0] += 60
    assert tokens.check(issuer.token(key_id="second", aud=None))[0] == "alice"
    assert asked == ["/keys"] * 2
    with pytest.raises(OSError):
        KeySet(f"{url}/moved")
    assert asked[2:] == ["/moved"], "nobody is sent elsewhere for keys"


def test_B11_a_key_that_was_withdrawn_counts_no_longer_than_an_hour(
    issuer: Issuer, address: tuple[str, list[str]]
) -> None:
    """Nobody names a new one: a token by the old one is all that comes."""
    url, asked = address
    now = [1000.0]
    tokens = Tokens(KeySet(f"{url}/keys", monotonic=lambda: now[0]))
    stolen = issuer.token(aud=None)
    issuer.add("second")
    del issuer.keys["first"]
    now[0] += 3599
    assert tokens.check(stolen)[0] == "alice"
    now[0] += 1
    with pytest.raises(AuthenticationFailed):
        tokens.check(stolen)
    assert asked == ["/keys"] * 2
    assert tokens.check(issuer.token(key_id="second", aud=None))[0] == "alice"
    assert asked == ["/keys"] * 2


@pytest.mark.parametrize("place", ["http://issuer.example/keys", "ftp://127.0.0.1/keys", "file:///keys"])
def test_B11_keys_are_not_taken_from_where_anybody_could_change_them(place: str) -> None:
    with pytest.raises(ValueError, match="https"):
        KeySet(place)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}']
)
def test_B11_a_broker_does_not_start_without_keys(
    start_broker: Start, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"keys\.json"):
        KeySet(str(path))


def test_B11_tokens_are_an_authentication_beyond_loopback(keys: str) -> None:
    beyond = {"store": "memory://m", "listen": "0.0.0.0:9092", "advertise": "b.example:9092"}
    with pytest.raises(ValueError, match="oauth-keys"):
        BrokerConfig(**beyond)  # type: ignore[arg-type]
    BrokerConfig(**beyond, oauth_keys=keys, tls_cert="c", tls_key="k")  # type: ignore[arg-type]
