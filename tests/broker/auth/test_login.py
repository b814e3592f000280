"""B11: what a client may send while it logs in, message by message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import scramp

from broker_shim.auth.sasl import AuthenticationFailed, Users, make_entry
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from tests.support.broker.harness import LocalBroker, Wire

Start = Callable[..., LocalBroker]
MECHANISM = "SCRAM-SHA-256"
FIRST = b"n,,n=alice,r=abc"


@pytest.fixture
def users(tmp_path: Path) -> str:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"alice": "hers", "bob": "his"}))
    return str(path)


def log_in(
    client: Wire, user: str, password: str, change: Callable[[str], str] = lambda final: final
) -> Code:
    login = scramp.ScramClient([MECHANISM], user, password)
    assert client.ask(Api.SASL_HANDSHAKE, 1, mechanism=MECHANISM).error_code == Code.NONE
    first = client.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=login.get_client_first().encode())
    login.set_server_first(first.auth_bytes.decode())
    final = change(login.get_client_final()).encode()
    return Code(client.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=final).error_code)


def test_B11_a_connection_logs_in_again_as_the_same_user_and_as_no_other(
    start_broker: Start, users: str
) -> None:
    broker = start_broker(sasl=users)
    with Wire(broker.port) as client:
        assert log_in(client, "alice", "hers") == Code.NONE
        assert log_in(client, "alice", "hers") == Code.NONE
        assert client.ask(Api.METADATA, 9, topics=[]).controller_id == 1
        assert log_in(client, "bob", "his") == Code.SASL_AUTHENTICATION_FAILED
        assert client.receive() == b"", "hung up"
    with Wire(broker.port) as client:
        assert log_in(client, "bob", "his") == Code.NONE


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace("r=", "r=x"),
        lambda final: "c=eSws" + final[final.index(",") :],
        lambda final: final[: final.index(",p=")],
        lambda final: final[: final.index(",p=")] + ",p=eA==",
        lambda final: final[: final.index(",p=")] + ",p=é",
        lambda final: final + "," + final,
        lambda final: final.replace(",p=", ",x=1,p="),
        lambda final: FIRST.decode(),
        lambda final: "",
    ],
    ids=[
        "nonce",
        "binding",
        "no-proof",
        "short-proof",
        "no-base64",
        "twice",
        "extended",
        "first-again",
        "empty",
    ],
)
def test_B11_a_last_message_that_was_tampered_with_is_no_proof(
    start_broker: Start, users: str, change: Callable[[str], str]
) -> None:
    broker = start_broker(sasl=users)
    with Wire(broker.port) as client:
        assert log_in(client, "alice", "hers", change) == Code.SASL_AUTHENTICATION_FAILED
        assert client.receive() == b"", "hung up"


def test_B11_between_handshake_and_proof_nothing_else_is_served(start_broker: Start, users: str) -> None:
    broker = start_broker(sasl=users)
    with Wire(broker.port) as client:
        assert client.ask(Api.SASL_HANDSHAKE, 1, mechanism=MECHANISM).error_code == Code.NONE
        assert client.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=FIRST).error_code == Code.NONE
        client.send(Api.METADATA, 0, b"\0\0\0\0")
        assert client.receive() == b"", "hung up"


def test_B11_a_name_that_takes_long_to_normalise_is_refused_before_that(
    users: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty thousand combining marks would keep the interpreter, and with it every other client, for seconds."""
    normalised: list[str] = []
    monkeypatch.setattr(
        scramp.ScramMechanism(MECHANISM).make_server(lambda name: None).__class__,
        "set_client_first",
        lambda self, text: normalised.append(text),
    )
    name = "a" + "\u0345" * 15_000 + "\u0334" * 15_000
    with pytest.raises(AuthenticationFailed):
        Users(users).begin(MECHANISM).step(f"n,,n={name},r=abc".encode())
    assert normalised == []


@pytest.mark.parametrize("iterations", [0, -1, 4095, 10_000_001])
def test_B11_keys_that_no_client_could_prove_are_refused_when_the_file_is_read(
    tmp_path: Path, iterations: int
) -> None:
    entry = make_entry("hers")
    entry[MECHANISM]["iterations"] = iterations
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"alice": entry}))
    with pytest.raises(ValueError, match="user 'alice': iterations are 4096 to"):
        Users(str(path))
