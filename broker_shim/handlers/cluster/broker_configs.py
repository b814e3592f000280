"""A broker's settings under Kafka's names, as they are: its flags, and what it does whatever the flags are. And those of its
groups, which are the same for all. Read only."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from broker_shim.auth.sasl import MECHANISMS
from broker_shim.config import BrokerConfig
from broker_shim.handlers.security.sasl_api import OAUTHBEARER
from broker_shim.handlers.topics.topic_configs import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    SETTINGS,
    SOURCE_DEFAULT,
    SOURCE_FLAG,
    STRING,
    Entry,
)
from broker_shim.partitions.cluster import Node

_Row = tuple[str, Any, int, str]
"""Name, value, type, and the flag that it comes from ("": none, this broker is so)."""


def describe(config: BrokerConfig, me: Node) -> list[Entry]:
    """What tools ask a broker for."""
    protocol = security_protocol(config)
    mechanisms = [*(MECHANISMS if config.sasl else ()), *([OAUTHBEARER] if config.oauth_keys else ())]
    endpoint = f"{protocol}://{_in_brackets(me.host)}:{me.port}"
    kept = "-1" if config.offsets_retention * 1000 > LONG_MAX else str(round(config.offsets_retention / 60))
    rows: list[_Row] = [
        ("advertised.listeners", endpoint, STRING, "advertise"),
        ("auto.create.topics.enable", config.auto_create_topics, BOOLEAN, "auto_create_topics"),
        ("broker.id", config.node_id, INT, "node_id"),
        ("compression.type", SETTINGS["compression.type"].default, STRING, ""),
        ("connections.max.idle.ms", round(config.idle_timeout * 1000), LONG, "idle_timeout"),
        ("default.replication.factor", 1, INT, ""),
        ("delete.topic.enable", True, BOOLEAN, ""),
        ("fetch.max.bytes", config.fetch_max_bytes, INT, "fetch_max_bytes"),
        ("flush.on.ack", config.flush_on_ack, BOOLEAN, "flush_on_ack"),
        *((f"group.{name}", value, kind, flag) for name, value, kind, flag in _of_groups(config)),
        (
            "group.initial.rebalance.delay.ms",
            round(config.group_initial_rebalance_delay * 1000),
            INT,
            "group_initial_rebalance_delay",
        ),
        (
            "group.max.session.timeout.ms",
            round(config.group_max_session_timeout * 1000),
            INT,
            "group_max_session_timeout",
        ),
        (
            "group.min.session.timeout.ms",
            round(config.group_min_session_timeout * 1000),
            INT,
            "group_min_session_timeout",
        ),
        ("listeners", f"{protocol}://{config.listen}", STRING, "listen"),
        ("log.cleanup.policy", SETTINGS["cleanup.policy"].default, LIST, ""),
        ("log.dirs", place(config.store), STRING, "store"),
        ("log.message.timestamp.type", SETTINGS["message.timestamp.type"].default, STRING, ""),
        ("log.retention.bytes", SETTINGS["retention.bytes"].default, LONG, ""),
        ("log.retention.ms", SETTINGS["retention.ms"].default, LONG, ""),
        ("log.segment.bytes", SETTINGS["segment.bytes"].default, INT, ""),
        ("max.connections", config.max_connections, INT, "max_connections"),
        ("message.max.bytes", config.max_message_bytes, INT, "max_message_bytes"),
        ("min.insync.replicas", SETTINGS["min.insync.replicas"].default, INT, ""),
        ("node.id", config.node_id, INT, "node_id"),
        ("num.partitions", config.num_partitions, INT, "num_partitions"),
        ("offsets.retention.minutes", kept, INT, "offsets_retention"),
        ("offsets.topic.num.partitions", config.offsets_partitions, INT, "offsets_partitions"),
        ("offsets.topic.replication.factor", 1, INT, ""),
        ("sasl.enabled.mechanisms", ",".join(mechanisms), LIST, "sasl" if config.sasl else "oauth_keys"),
        ("socket.request.max.bytes", config.max_frame_bytes, INT, "max_frame_bytes"),
        ("ssl.client.auth", "required" if config.tls_client_ca else "none", STRING, "tls_client_ca"),
        ("super.users", config.super_users, STRING, "super_users"),
        ("unclean.leader.election.enable", SETTINGS["unclean.leader.election.enable"].default, BOOLEAN, ""),
    ]
    return _entries(config, rows)


def describe_group(config: BrokerConfig) -> list[Entry]:
    """What tools ask a group of the consumer protocol for."""
    return _entries(config, _of_groups(config))


def _of_groups(config: BrokerConfig) -> list[_Row]:
    return [
        (
            f"consumer.{what.replace('_', '.')}.ms",
            round(getattr(config, f"group_consumer_{what}") * 1000),
            INT,
            f"group_consumer_{what}",
        )
        for what in ("heartbeat_interval", "session_timeout")
    ]


def _entries(config: BrokerConfig, rows: list[_Row]) -> list[Entry]:
    entries = []
    for name, value, kind, flag in rows:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        source = SOURCE_FLAG if flag and is_set(config, flag) else SOURCE_DEFAULT
        entries.append(Entry(name, shown, True, source, kind, ((name, shown, source),)))
    return entries


def is_set(config: BrokerConfig, flag: str) -> bool:
    """Is it anything else than its default?"""
    return any(each.name == flag and getattr(config, flag) != each.default for each in fields(config))


def security_protocol(config: BrokerConfig) -> str:
    if config.sasl or config.oauth_keys:
        return "SASL_SSL" if config.tls_cert else "SASL_PLAINTEXT"
    return "SSL" if config.tls_cert else "PLAINTEXT"


def place(store: str) -> str:
    """Where the log lives, without what an address may carry beside: keys, and options."""
    parts = urlsplit(store)
    if not parts.scheme:
        return store
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
