"""Every setting of the broker and its default, once. Each is a flag, and each flag an environment variable.

`--flush-on-ack` is `BROKER_SHIM_FLUSH_ON_ACK`, and so on; a flag beats the variable. Times are in seconds,
sizes in bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

MIB = 1 << 20
PREFIX = "BROKER_SHIM_"
LOG_LEVELS = ("debug", "info", "warning", "error")


def setting(default: Any, help: str, *, above_zero: bool = False) -> Any:
    return field(default=default, metadata={"help": help, "above_zero": above_zero})


@dataclass(frozen=True)
class BrokerConfig:
    """How a broker behaves."""

    store: str = setting("", "where the log lives: s3://bucket/prefix, file:///path, memory://name")
    listen: str = setting("127.0.0.1:9092", "address and port for Kafka clients; port 0 picks a free one")
    advertise: str = setting(
        "",
        "host:port that clients are told (port 0: the one it listens on); the listening address unless set",
    )
    metrics: str = setting(
        "", "address and port for /healthz, /readyz, /metrics and, on loopback, the page; off unless set"
    )
    ui_token: str = setting(
        "", "the page at the metrics port asks for it: /?token=…; needed if that is not loopback"
    )
    node_id: int = setting(1, "this broker's number, different for each broker on one store")
    rack: str = setting(
        "", "the zone it runs in: with several brokers, consumers with this client.rack read from it"
    )
    cluster_id: str = setting("logstore", "what clients are told as the cluster's id")
    heartbeat_interval: float = setting(
        0.0,
        "how often a broker of several says that it lives; 0: this broker is alone and makes no such request",
    )
    heartbeat_timeout: float = setting(6.0, "a broker that was silent for this long has lost its partitions")
    flush_on_ack: bool = setting(True, "acks=1 and acks=all wait for the object store; false: for the buffer")
    flush_interval: float = setting(1.0, "unflushed data is at most this old when its upload starts")
    lanes: int = setting(
        1,
        "commit all partitions through so many lanes, one PUT each; 0: each partition to a chain of its own",
    )
    durable_linger: float = setting(0.0, "the least seconds between the starts of two uploads of a lane")
    flush_bytes: int = setting(8 * MIB, "a partition with this much unflushed data is flushed at once")
    max_buffered_bytes: int = setting(256 * MIB, "the limit for unflushed data of the whole broker")
    cache_bytes: int = setting(256 * MIB, "how much of the segments read is kept in memory")
    max_message_bytes: int = setting(
        MIB + 12_288, "the largest record batch a producer may send", above_zero=True
    )
    follow_interval: float = setting(
        1.0, "how often a waiting fetch looks for records of a writer that is not this broker; 0: never"
    )
    auto_create_topics: bool = setting(True, "create a topic when a client asks for it")
    num_partitions: int = setting(
        1, "partitions of a topic that is created without a number", above_zero=True
    )
    offsets_partitions: int = setting(
        8, "partitions of the internal topic that holds groups and offsets", above_zero=True
    )
    offsets_retention: float = setting(7 * 86400.0, "committed offsets of an empty group are kept this long")
    transaction_max_timeout: float = setting(
        900.0, "the longest time that a producer may ask for a transaction", above_zero=True
    )
    transactional_id_expiration: float = setting(
        7 * 86400.0, "a transactional id that was not used for this long is forgotten"
    )
    peer_ca: str = setting(
        "", "authorities (PEM) of the other brokers' certificates; the system's unless set"
    )
    peer_sasl: str = setting(
        "", 'a JSON file, {"username": …, "password": …}: how this broker logs in to the others'
    )
    group_min_session_timeout: float = setting(6.0, "the shortest session timeout a consumer may ask for")
    group_max_session_timeout: float = setting(1800.0, "the longest session timeout a consumer may ask for")
    group_initial_rebalance_delay: float = setting(0.5, "how long a new group waits for more members")
    group_consumer_session_timeout: float = setting(
        45.0, "group.protocol=consumer: a member that was silent for this long is out", above_zero=True
    )
    group_consumer_heartbeat_interval: float = setting(
        5.0, "group.protocol=consumer: how often members are told to say that they live", above_zero=True
    )
    max_connections: int = setting(10_000, "connections at one time; more are turned away", above_zero=True)
    max_frame_bytes: int = setting(100 * MIB, "the largest request", above_zero=True)
    max_control_bytes: int = setting(2 * MIB, "the largest request other than Produce", above_zero=True)
    max_request_memory: int = setting(
        512 * MIB, "bytes of requests being received or served, all together", above_zero=True
    )
    max_inflight: int = setting(128, "requests of one connection that wait for their answer", above_zero=True)
    fetch_max_bytes: int = setting(
        55 * MIB, "the largest fetch response, whatever a client asks for", above_zero=True
    )
    idle_timeout: float = setting(
        600.0, "a connection without a request for this long is closed", above_zero=True
    )
    stall_timeout: float = setting(30.0, "half a request may stand this long", above_zero=True)
    answer_timeout: float = setting(
        300.0, "an answer that its client does not read may stand this long", above_zero=True
    )
    max_unsent_bytes: int = setting(
        1024 * MIB, "unread answers, all together; past it the slowest are dropped"
    )
    drain_timeout: float = setting(20.0, "how long a stop waits for requests and uploads to finish")
    tls_cert: str = setting("", "certificate chain (PEM); turns TLS on")
    tls_key: str = setting("", "private key (PEM)")
    tls_client_ca: str = setting(
        "", "authorities (PEM) that client certificates must come from; turns mTLS on"
    )
    sasl: str = setting(
        "", "where users are: a JSON file, {name: password or scram credentials}; turns SASL on"
    )
    oauth_keys: str = setting(
        "",
        "the key set (JWKS) that tokens are signed by: a file, https://… or http:// on this machine; turns OAUTHBEARER on",
    )
    oauth_issuer: str = setting("", "the issuer that a token must name")
    oauth_audience: str = setting("", "the audience that a token must name")
    oauth_principal_claim: str = setting("sub", "the claim of a token that is its user")
    acls: bool = setting(False, "ask the access rules in the store before each operation")
    super_users: str = setting("", "principals that no rule binds: User:admin;User:ops")
    insecure: bool = setting(False, "listen beyond loopback without TLS and SASL")
    log_format: str = setting("text", "text (one line each) or json")
    log_level: str = setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        if not self.store:
            raise ValueError("no store: pass --store URL or set BROKER_SHIM_STORE")
        for name in ("listen", "advertise", "metrics"):
            if getattr(self, name):
                parse_address(getattr(self, name))
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("--tls-cert and --tls-key go together")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
        if self.log_format not in ("text", "json"):
            raise ValueError(f"--log-format is text or json, not {self.log_format!r}")
        if self.log_level.lower() not in LOG_LEVELS:
            raise ValueError(f"--log-level is {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        self._check_numbers()
        if self.heartbeat_interval and self.heartbeat_timeout < 3 * self.heartbeat_interval:
            raise ValueError("--heartbeat-timeout must be at least three times --heartbeat-interval")
        if self.group_consumer_heartbeat_interval >= self.group_consumer_session_timeout:
            raise ValueError(
                "--group-consumer-heartbeat-interval must be shorter than --group-consumer-session-timeout"
            )
        if self.max_frame_bytes > self.max_request_memory:
            raise ValueError("--max-frame-bytes must fit in --max-request-memory")
        if not 0 <= self.node_id < 1 << 31:
            raise ValueError("--node-id is a number from 0 to 2147483647")
        self._check_exposure()
        host, _ = parse_address(self.advertise or self.listen)
        if host in ("", "0.0.0.0", "::"):
            raise ValueError(
                f"{self.advertise or self.listen} is no address to connect to: say with --advertise HOST:PORT where clients "
                "find this broker"
            )

    def _check_numbers(self) -> None:
        """No time, size or count is below 0; and some must be above it, or nobody could be served."""
        for each in fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, int | float):
                continue
            flag = "--" + each.name.replace("_", "-")
            if not 0 <= value < float("inf"):
                raise ValueError(f"{flag} is a number from 0 on, not {value}")
            if value == 0 and each.metadata["above_zero"]:
                raise ValueError(f"{flag} is more than 0")

    def _check_exposure(self) -> None:
        """Beyond loopback anyone could read and write: that must be said out loud."""
        host, _ = parse_address(self.listen)
        knows_clients = self.sasl or self.oauth_keys or self.tls_client_ca
        if is_loopback(host) or self.insecure or (self.tls_cert and knows_clients):
            return
        raise ValueError(
            f"{self.listen} can be reached from elsewhere: pass --tls-cert, --tls-key and --sasl (or "
            "--oauth-keys, or --tls-client-ca), listen on 127.0.0.1, or say --insecure"
        )


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`; an IPv6 host stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address: host:port, with IPv6 hosts in brackets")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def from_environment() -> dict[str, Any]:
    """The settings that environment variables give. A value that does not fit is named."""
    found: dict[str, Any] = {}
    hints = get_type_hints(BrokerConfig)
    for each in fields(BrokerConfig):
        text = os.environ.get(PREFIX + each.name.upper())
        if text is not None:
            try:
                found[each.name] = parse_value(hints[each.name], text)
            except ValueError as error:
                raise ValueError(f"{PREFIX}{each.name.upper()}={text!r}: {error}") from error
    return found


def parse_value(kind: type, text: str) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise ValueError("it is true or false")
        return text.lower() in ("true", "1", "yes")
    return kind(text)
