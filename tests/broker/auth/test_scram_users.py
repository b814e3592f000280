"""B11: users that are made with Kafka's own calls: kept in the store, known to every broker, beside those of the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from broker_shim.auth import user_store
from broker_shim.auth.user_store import Keys, UserStore
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.errors import CorruptData, StoreError
from logstore.layout.broker import USERS_KEY
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import Fault, FaultyStore
from tests.support.broker.clients import CLIENTS, Client
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
KEYS = Keys(b"salt", b"stored", b"server", 4096)


@pytest.fixture
def users(tmp_path: Path) -> str:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"admin": "secret"}))
    return str(path)


def admin_of(broker: LocalBroker, password: str = "secret") -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": broker.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "admin",
            "sasl.password": password,
            "log_level": 0,
        }
    )


def upsert(admin: AdminClient, name: str, password: bytes, *mechanisms: ScramMechanism) -> None:
    changes = [
        UserScramCredentialUpsertion(name, ScramCredentialInfo(each, 8192), password) for each in mechanisms
    ]
    admin.alter_user_scram_credentials(changes)[name].result(PATIENCE_S)


def described(admin: AdminClient) -> dict[str, list[tuple[str, int]]]:
    found = admin.describe_user_scram_credentials().result(PATIENCE_S)
    return {
        name: [(info.mechanism.name, info.iterations) for info in each.scram_credential_infos]
        for name, each in found.items()
    }


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_B11_a_user_made_with_kafkas_call_logs_in_at_every_broker(
    start_broker: Start, users: str, client: Client
) -> None:
    store = MemoryStore()
    admin = admin_of(start_broker(store, sasl=users))
    upsert(admin, "alice", b"hers", ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    assert described(admin) == {
        "admin": [("SCRAM_SHA_256", 4096), ("SCRAM_SHA_512", 4096)],
        "alice": [("SCRAM_SHA_256", 8192), ("SCRAM_SHA_512", 8192)],
    }
    broker = start_broker(store, sasl=users, node_id=2)
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        **(
            {"sasl_username": "alice", "sasl_password": "hers"}
            if client.name == "confluent-kafka"
            else {"sasl_plain_username": "alice", "sasl_plain_password": "hers"}
        ),
    }
    client.produce(broker.address, "t", [(b"k", b"v", [])], **options)
    assert client.consume(broker.address, "t", 1, **options) == [(0, b"k", b"v", [])]


def test_B11_a_password_is_changed_and_a_user_deleted(start_broker: Start, users: str) -> None:
    broker = start_broker(sasl=users)
    admin = admin_of(broker)
    mechanism = ScramMechanism.SCRAM_SHA_256
    upsert(admin, "alice", b"first", mechanism)
    assert plain(broker, "alice", "first") == Code.NONE
    upsert(admin, "alice", b"second", mechanism)
    assert plain(broker, "alice", "first") == Code.SASL_AUTHENTICATION_FAILED
    assert plain(broker, "alice", "second") == Code.NONE
    deletion = UserScramCredentialDeletion("alice", mechanism)
    admin.alter_user_scram_credentials([deletion])["alice"].result(PATIENCE_S)
    assert plain(broker, "alice", "second") == Code.SASL_AUTHENTICATION_FAILED
    assert set(described(admin)) == {"admin"}
    with pytest.raises(confluent_kafka.KafkaException, match="RESOURCE_NOT_FOUND"):
        admin.alter_user_scram_credentials([deletion])["alice"].result(PATIENCE_S)


def plain(broker: LocalBroker, user: str, password: str) -> Code:
    with Wire(broker.port) as client:
        assert client.ask(Api.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == Code.NONE
        sent = f"\0{user}\0{password}".encode()
        return Code(client.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=sent).error_code)


def change(**changes: Any) -> dict[str, Any]:
    base = {"name": "a", "mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32}
    return {**base, **changes}


@pytest.mark.parametrize(
    ("upsertions", "code"),
    [
        ([change(iterations=4095)], Code.UNACCEPTABLE_CREDENTIAL),
        ([change(iterations=16_385)], Code.UNACCEPTABLE_CREDENTIAL),
        ([change(salt=b"")], Code.UNACCEPTABLE_CREDENTIAL),
        ([change(name="")], Code.UNACCEPTABLE_CREDENTIAL),
        ([change(mechanism=3)], Code.UNSUPPORTED_SASL_MECHANISM),
        ([change(), change()], Code.DUPLICATE_RESOURCE),
        ([change(), change(mechanism=2)], Code.NONE),
    ],
)
def test_B11_keys_that_are_none_are_refused_and_nothing_is_kept_of_them(
    broker: LocalBroker, upsertions: list[dict[str, Any]], code: Code
) -> None:
    with Wire(broker.port) as client:
        others = [change(name="b")]
        answer = client.ask(Api.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=upsertions + others)
        assert {row.user: row.error_code for row in answer.results} == {upsertions[0]["name"]: code, "b": 0}
        found = client.ask(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None).results
        assert [row.user for row in found] == (["a", "b"] if code is Code.NONE else ["b"])
        asked = [{"name": "nobody"}, {"name": "b"}, {"name": "b"}]
        found = client.ask(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=asked).results
        assert [(row.user, row.error_code) for row in found] == [
            ("nobody", Code.RESOURCE_NOT_FOUND),
            ("b", Code.DUPLICATE_RESOURCE),
        ]


def test_B11_a_user_of_the_file_is_changed_there(start_broker: Start, users: str) -> None:
    broker = start_broker(sasl=users)
    admin = admin_of(broker)
    with pytest.raises(confluent_kafka.KafkaException, match="--sasl"):
        upsert(admin, "admin", b"taken over", ScramMechanism.SCRAM_SHA_256)
    assert plain(broker, "admin", "secret") == Code.NONE
    assert broker.server.store.objects.head(USERS_KEY) is None


def test_B11_only_who_may_alter_the_cluster_makes_users(start_broker: Start, users: str) -> None:
    broker = start_broker(sasl=users, acls=True)
    with Wire(broker.port) as client:
        client.ask(Api.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        client.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=b"\0admin\0secret")
        answer = client.ask(Api.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[change()])
        assert answer.results[0].error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        found = client.ask(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
        assert (found.error_code, found.results) == (Code.CLUSTER_AUTHORIZATION_FAILED, [])
    assert broker.server.store.objects.head(USERS_KEY) is None


# ── the object ───────────────────────────────────────────────────────────────────────────────────────────────


def test_C03_two_brokers_that_make_users_at_once_keep_both() -> None:
    objects = MemoryStore()
    first, second = UserStore(objects), UserStore(objects)
    first.load()

    def late(now: user_store.StoredUsers) -> user_store.StoredUsers:
        if "other" not in second.load():
            second.change(lambda users: {**users, "other": {"SCRAM-SHA-256": KEYS}})
        return {**now, "mine": {"SCRAM-SHA-512": KEYS}}

    assert set(first.change(late)) == {"mine", "other"}
    assert second.load() == {"mine": {"SCRAM-SHA-512": KEYS}, "other": {"SCRAM-SHA-256": KEYS}}


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE_ANSWER])
def test_C03_a_change_that_failed_or_whose_answer_was_lost_is_told_apart(fault: Fault) -> None:
    objects = FaultyStore(MemoryStore())
    users = UserStore(objects)
    objects.fail("put", with_=fault)
    made = {"mine": {"SCRAM-SHA-256": KEYS}}
    if fault is Fault.REFUSE:
        with pytest.raises(StoreError):
            users.change(lambda now: {**now, **made})
        assert UserStore(objects).load() == {}
    else:
        assert users.change(lambda now: {**now, **made}) == made
    assert users.change(lambda now: {**now, **made}) == made
    assert UserStore(objects).load() == made


def test_L20_an_object_that_holds_no_users_is_named() -> None:
    objects = MemoryStore()
    objects.put(USERS_KEY, b'{"users": {"a": {"SCRAM-SHA-256": ["no", "keys"]}}}')
    with pytest.raises(CorruptData, match=USERS_KEY):
        UserStore(objects).load()
