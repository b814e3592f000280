"""B11: TLS, SASL and access rules, with the real clients. Only what was proved counts, never what a client calls itself."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broker_shim.__main__ import serve
from broker_shim.auth.acls import Acl, AclFilter, Authorizer, Operation, Pattern, Permission, Resource
from broker_shim.auth.sasl import make_entry
from broker_shim.config import BrokerConfig
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import FaultyStore
from tests.support.broker.access import acl
from tests.support.broker.clients import AioKafka, Confluent, KafkaPython, Sent
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
PASSWORD = "right-horse"


class Authority:
    """A certificate authority for one test run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.path = self._write("ca.pem", self._sign(self._name, self._key.public_key(), is_ca=True))

    def issue(self, common_name: str) -> tuple[str, str]:
        """Paths of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Shop"),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        key_path = self._folder / f"{common_name}.key"
        key_path.write_bytes(private)
        return self._write(f"{common_name}.pem", self._sign(subject, key.public_key())), str(key_path)

    def _sign(self, subject: x509.Name, public_key: Any, *, is_ca: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            # From Python 3.13 on, clients go by RFC 5280 to the letter.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .add_extension(_usage(is_ca), critical=True)
        )
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, name: str, certificate: x509.Certificate) -> str:
        path = self._folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return str(path)


def _usage(is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def users(tmp_path: Path) -> str:
    """alice by password, bob by stored keys, admin."""
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"alice": PASSWORD, "bob": make_entry(PASSWORD), "admin": PASSWORD}))
    return str(path)


def sasl(mechanism: str, user: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanisms": mechanism,
        "sasl_username": user,
        "sasl_password": password,
    }


@pytest.mark.parametrize("user", ["alice", "bob"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_B11_librdkafka_logs_in(start_broker: Start, users: str, mechanism: str, user: str) -> None:
    broker = start_broker(sasl=users)
    Confluent().produce(broker.address, "t", [(b"k", b"v", [])], **sasl(mechanism, user))
    assert Confluent().consume(broker.address, "t", 1, **sasl(mechanism, user)) == [(0, b"k", b"v", [])]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("client", [KafkaPython(), AioKafka()], ids=lambda client: client.name)
def test_B11_the_other_clients_log_in(start_broker: Start, users: str, client: Any, mechanism: str) -> None:
    broker = start_broker(sasl=users)
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "bob",
        "sasl_plain_password": PASSWORD,
    }
    client.produce(broker.address, "t", [(b"k", b"v", [])], **login)
    assert client.consume(broker.address, "t", 1, **login) == [(0, b"k", b"v", [])]


@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [
        ("PLAIN", "alice", "wrong"),
        ("PLAIN", "nobody", PASSWORD),
        ("SCRAM-SHA-256", "alice", "wrong"),
        ("SCRAM-SHA-512", "nobody", PASSWORD),
    ],
)
def test_B11_a_wrong_password_and_an_unknown_user_fail_alike(
    start_broker: Start, users: str, mechanism: str, user: str, password: str
) -> None:
    broker = start_broker(sasl=users)
    errors: list[str] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.address,
            **{k.replace("_", "."): v for k, v in sasl(mechanism, user, password).items()},
            "error_cb": lambda error: errors.append(error.str()),
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + PATIENCE_S
    while not errors and time.monotonic() < deadline:
        producer.poll(0.05)
    assert "authentication failed: wrong user or password" in errors[0]


def test_B11_before_login_nothing_is_answered(start_broker: Start, users: str) -> None:
    broker = start_broker(sasl=users)
    for api, version in ((Api.METADATA, 9), (Api.PRODUCE, 9), (Api.LIST_GROUPS, 3)):
        with Wire(broker.port) as client:
            assert client.ask(Api.API_VERSIONS, 3).error_code == Code.NONE
            client.send(api, version, b"\0" * 20)
            assert client.receive() == b"", "hung up"


def test_B11_before_login_a_client_gets_no_memory(start_broker: Start, users: str) -> None:
    broker = start_broker(sasl=users)
    with Wire(broker.port) as client:
        client.socket.sendall(struct.pack(">ihhi", 1 << 20, Api.PRODUCE, 9, 1))
        assert client.receive() == b""
    assert broker.call(lambda: broker.server._memory.used) == 0


def test_B11_a_handshake_for_a_mechanism_that_is_not_there_lists_those_that_are(
    start_broker: Start, users: str
) -> None:
    broker = start_broker(sasl=users)
    with Wire(broker.port) as client:
        answer = client.ask(Api.SASL_HANDSHAKE, 1, mechanism="GSSAPI")
        assert answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM
        assert "SCRAM-SHA-512" in answer.mechanisms
        early = client.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=b"x")
        assert early.error_code == Code.ILLEGAL_SASL_STATE


def test_B11_a_new_user_in_the_file_can_log_in_without_a_restart(start_broker: Start, users: str) -> None:
    broker = start_broker(sasl=users)
    content = json.loads(Path(users).read_text())
    Path(users).write_text(json.dumps({**content, "carol": PASSWORD}))
    Confluent().produce(broker.address, "t", [(b"k", b"v", [])], **sasl("SCRAM-SHA-256", "carol"))


def test_B11_tls(start_broker: Start, authority: Authority) -> None:
    certificate, key = authority.issue("broker")
    broker = start_broker(tls_cert=certificate, tls_key=key, advertise="localhost:0")
    address = f"localhost:{broker.port}"
    context = ssl.create_default_context(cafile=authority.path)
    with Wire(broker.port) as plain:
        plain.send(Api.API_VERSIONS, 0, b"")
        assert plain.receive() == b"", "no plain text on a TLS port"
    settings = {"security_protocol": "SSL", "ssl_ca_location": authority.path}
    records: list[Sent] = [(b"k", b"%d" % i * 20_000, []) for i in range(20)]
    Confluent().produce(address, "t", records, **settings)
    found = AioKafka().consume(address, "t", 20, security_protocol="SSL", ssl_context=context)
    assert [value for _, _, value, _ in found] == [value for _, value, _ in records]


@pytest.mark.parametrize("setting", ["tls_cert", "tls_client_ca"])
def test_B11_a_certificate_that_cannot_be_read_is_named(
    setting: str, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.issue("broker")
    files: dict[str, Any] = {"tls_cert": certificate, "tls_key": key, setting: "absent.pem"}
    assert asyncio.run(serve(BrokerConfig(store="memory://tls", listen="127.0.0.1:0", **files))) == 1
    assert f"--{setting.replace('_', '-')} absent.pem" in caplog.text


def test_B11_client_certificates_are_principals(start_broker: Start, authority: Authority) -> None:
    certificate, key = authority.issue("broker")
    broker = start_broker(
        tls_cert=certificate,
        tls_key=key,
        tls_client_ca=authority.path,
        advertise="localhost:0",
        acls=True,
        super_users="User:CN=ops,O=Shop",
    )

    def connect(name: str) -> AdminClient:
        own, own_key = authority.issue(name)
        return AdminClient(
            {
                "bootstrap.servers": f"localhost:{broker.port}",
                "security.protocol": "SSL",
                "ssl.ca.location": authority.path,
                "ssl.certificate.location": own,
                "ssl.key.location": own_key,
                "log_level": 0,
            }
        )

    topic = confluent_kafka.admin.NewTopic("t", 1, 1)
    somebody, ops = connect("somebody"), connect("ops")
    with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        somebody.create_topics([topic])["t"].result(PATIENCE_S)
    assert ops.create_topics([topic])["t"].result(PATIENCE_S) is None


def test_B11_rules_decide_by_principal_and_nothing_else(start_broker: Start, users: str) -> None:
    broker = start_broker(sasl=users, acls=True, super_users="User:admin")
    admin = AdminClient(
        {
            "bootstrap.servers": broker.address,
            **{k.replace("_", "."): v for k, v in sasl("PLAIN", "admin").items()},
        }
    )
    topic = confluent_kafka.admin.NewTopic("orders", 1, 1)
    admin.create_topics([topic])["orders"].result(PATIENCE_S)

    def rule(kind: ResourceType, name: str, user: str, operation: AclOperation) -> AclBinding:
        allow = AclPermissionType.ALLOW
        return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, allow)

    rules = [
        rule(ResourceType.TOPIC, "orders", "alice", AclOperation.WRITE),
        rule(ResourceType.TOPIC, "orders", "bob", AclOperation.READ),
        rule(ResourceType.GROUP, "g-orders", "bob", AclOperation.READ),
    ]
    for future in admin.create_acls(rules).values():
        future.result(PATIENCE_S)

    alice, bob = sasl("SCRAM-SHA-256", "alice"), sasl("SCRAM-SHA-256", "bob")
    Confluent().produce(broker.address, "orders", [(b"k", b"v", [])], **alice)
    assert Confluent().consume(broker.address, "orders", 1, **bob) == [(0, b"k", b"v", [])]
    with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
        Confluent().produce(broker.address, "orders", [(b"k", b"v", [])], client_id="admin", **bob)

    any_rule = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert set(admin.describe_acls(any_rule).result(PATIENCE_S)) == set(rules)
    gone = AclBindingFilter(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:alice",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.delete_acls([gone])[gone].result(PATIENCE_S) == [rules[0]]
    with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
        Confluent().produce(broker.address, "orders", [(b"k", b"v", [])], **alice)


def test_B11_rules_survive_a_restart(start_broker: Start, users: str) -> None:
    from broker_shim.auth.acl_store import AclStore
    from logstore.objects.homes.memory import MemoryStore

    store = MemoryStore()
    with LocalBroker(store, sasl=users, acls=True):
        pass
    rule = Acl(Resource.TOPIC, "t", Pattern.LITERAL, "User:alice", "*", Operation.ALL, Permission.ALLOW)
    AclStore(store).change(lambda known: known | {rule})
    broker = start_broker(store, sasl=users, acls=True)
    assert broker.server.broker.authorizer.rules == {rule}


@pytest.mark.parametrize(
    ("rules", "operation", "name", "allowed"),
    [
        ([], Operation.READ, "t", False),
        ([acl(Operation.READ)], Operation.READ, "t", True),
        ([acl(Operation.READ)], Operation.WRITE, "t", False),
        ([acl(Operation.READ)], Operation.DESCRIBE, "t", True),
        ([acl(Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, "t", True),
        ([acl(Operation.ALL)], Operation.DELETE, "t", True),
        ([acl(Operation.READ, name="*")], Operation.READ, "anything", True),
        ([acl(Operation.READ, name="or", pattern=Pattern.PREFIXED)], Operation.READ, "orders", True),
        ([acl(Operation.READ, name="or", pattern=Pattern.PREFIXED)], Operation.READ, "bills", False),
        ([acl(Operation.READ, principal="User:*")], Operation.READ, "t", True),
        ([acl(Operation.READ, host="10.0.0.1")], Operation.READ, "t", False),
        (
            [acl(Operation.ALL), acl(Operation.WRITE, permission=Permission.DENY)],
            Operation.WRITE,
            "t",
            False,
        ),
        ([acl(Operation.ALL), acl(Operation.WRITE, permission=Permission.DENY)], Operation.READ, "t", True),
    ],
)
def test_B11_how_rules_combine(rules: list[Acl], operation: Operation, name: str, allowed: bool) -> None:
    authorizer = Authorizer(enabled=True, super_users=["User:root"])
    authorizer.rules = frozenset(rules)
    assert authorizer.allows("User:a", "127.0.0.1", operation, Resource.TOPIC, name) is allowed
    assert authorizer.allows("User:root", "127.0.0.1", operation, Resource.TOPIC, name)
    assert not authorizer.allows("User:a", "127.0.0.1", operation, Resource.GROUP, name)


def test_B11_filters_match_as_kafka_says() -> None:
    prefixed = acl(Operation.READ, name="or", pattern=Pattern.PREFIXED)
    literal = acl(Operation.READ, name="orders")

    def found(name: str | None, pattern: int) -> list[Acl]:
        wanted = AclFilter(Resource.ANY, name, pattern, None, None, Operation.ANY, Permission.ANY)
        return [each for each in (prefixed, literal) if wanted.matches(each)]

    assert found("orders", Pattern.MATCH) == [prefixed, literal]
    assert found("orders", Pattern.LITERAL) == [literal]
    assert found("or", Pattern.PREFIXED) == [prefixed]
    assert found(None, Pattern.ANY) == [prefixed, literal]


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "[::]:9092", "10.1.2.3:9092", "broker.example:9092"])
def test_B11_beyond_loopback_security_must_be_on_or_refused_out_loud(listen: str) -> None:
    with pytest.raises(ValueError, match="--insecure"):
        BrokerConfig(store="memory://x", listen=listen)
    with pytest.raises(ValueError, match="--insecure"):
        BrokerConfig(store="memory://x", listen=listen, sasl="users.json")
    shown = "broker.example:9092"
    BrokerConfig(store="memory://x", listen=listen, advertise=shown, insecure=True)
    BrokerConfig(
        store="memory://x", listen=listen, advertise=shown, tls_cert="c", tls_key="k", sasl="users.json"
    )
    BrokerConfig(store="memory://x", listen="127.0.0.1:9092")


def test_B11_produce_without_the_right_is_refused_for_that_topic_alone(start_broker: Start) -> None:
    """On loopback without SASL everybody is ANONYMOUS, and rules can speak of ANONYMOUS."""
    from broker_shim.auth.acl_store import AclStore
    from logstore.objects.homes.memory import MemoryStore

    store = MemoryStore()
    with LocalBroker(store) as setup, Wire(setup.port) as client:
        for name in ("open", "closed"):
            topics = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
            client.ask(Api.CREATE_TOPICS, 5, topics=topics)
    rule = acl(Operation.ALL, name="open", principal="User:ANONYMOUS")
    AclStore(store).change(lambda known: known | {rule})
    broker = start_broker(store, acls=True)
    with Wire(broker.port) as client:
        names = client.ask(Api.METADATA, 9, topics=None).topics
        assert [topic.name for topic in names] == ["open"], "a listing does not even name the other"
        assert client.produce("open", batch(b"v")).error_code == Code.NONE
        assert client.produce("closed", batch(b"v")).error_code == Code.TOPIC_AUTHORIZATION_FAILED
        assert client.fetch("closed", 0).error_code == Code.TOPIC_AUTHORIZATION_FAILED


def test_B11_rules_that_are_damaged_neither_stop_the_heartbeat_nor_open_the_door(start_broker: Start) -> None:
    store = FaultyStore(MemoryStore())
    broker = start_broker(store, acls=True, heartbeat_interval=0.02, heartbeat_timeout=PATIENCE_S)
    store.put("broker/acls", b'[["no", "rule"]]')
    read = store.count("get", prefix="broker/acls")
    broker.until(lambda: store.count("get", prefix="broker/acls") >= read + 3)
    with Wire(broker.port) as client:
        assert list(client.ask(Api.METADATA, 9, topics=None).topics) == []
        assert client.fetch("t", 0).error_code == Code.TOPIC_AUTHORIZATION_FAILED


def test_B11_who_may_do_nothing_learns_of_the_cluster_what_metadata_tells_him(start_broker: Start) -> None:
    """As in Kafka: admin tools describe the cluster first, whatever rights they have."""
    broker = start_broker(acls=True, super_users="User:admin")
    with Wire(broker.port) as client:
        told = client.ask(Api.METADATA, 9, topics=[])
        described = client.ask(Api.DESCRIBE_CLUSTER, 0)
        assert described.error_code == Code.NONE
        assert (described.cluster_id, described.controller_id) == (told.cluster_id, told.controller_id)
        assert [(b.broker_id, b.host, b.port) for b in described.brokers] == [
            (b.node_id, b.host, b.port) for b in told.brokers
        ]
