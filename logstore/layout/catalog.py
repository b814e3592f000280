"""Which topics there are: one small object each, changed only by conditional puts.

A deleted topic leaves its descriptor behind with `deleted` set; creating it again replaces that with a new incarnation. So
of two processes that create the same topic at once exactly one wins, and the other is told.

A deletion takes many requests, and whoever makes them may die. Until they are all done the descriptor names the incarnation
in `removing`, also when a new topic has taken the name: so anybody can finish it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

from logstore.config import TopicConfig, check_names
from logstore.errors import (
    CorruptData,
    TopicExists,
    UnknownTopic,
    UnsupportedStore,
)
from logstore.format.stored.document import pack_document
from logstore.layout.documents import read_document
from logstore.layout.paths import (
    BORN_IN_LANE,
    CATALOG_PREFIX,
    INCARNATION,
    STORE_KEY,
    catalog_key,
    check_topic_name,
)
from logstore.objects.fan_out import fan_out
from logstore.objects.protocol import ObjectStore, get_if_there
from logstore.objects.settled import Doubts, put_settled

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
BORN_VERSION = 2
"""Its partitions, or those of an incarnation that is being removed, begin in a lane."""
PARTITIONS_MAX = 100_000
_ALWAYS_STORED = ("retention_seconds", "retention_bytes", "segment_bytes")
_READ_AT_ONCE = 32
Unreadable = CorruptData | UnsupportedStore
"""Why a descriptor cannot be read."""
ANY_PARTITIONS = 1
"""The default of `create_topic`: who takes a topic that exists and names no number is content with any."""


class Removal(NamedTuple):
    """A deleted incarnation whose records may not be gone yet, and how many partitions it had."""

    incarnation: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicDescriptor:
    """`revision` grows with each change, across incarnations: of two descriptors the newer one can be told.
    `is_recreated`: the name was a former topic's, and clients may remember that one. `kafka`: the settings that Kafka's
    clients gave the topic, word for word, sorted by name; what they mean here is in `config`."""

    name: str
    incarnation: str
    partitions: int
    config: TopicConfig
    deleted: bool = False
    revision: int = 0
    removing: tuple[Removal, ...] = ()
    is_recreated: bool = False
    kafka: tuple[tuple[str, str], ...] = ()

    @property
    def topic_id(self) -> UUID:
        """What Kafka's clients know this incarnation by: the same as long as it lives, another for the next of its name."""
        return topic_id_of(self.name, self.incarnation)

    @property
    def _format(self) -> int:
        incarnations = (self.incarnation, *(removal.incarnation for removal in self.removing))
        return BORN_VERSION if any(one.endswith(BORN_IN_LANE) for one in incarnations) else FORMAT_VERSION

    def pack(self) -> bytes:
        content: dict[str, Any] = {
            "format": self._format,
            "name": self.name,
            "incarnation": self.incarnation,
            "partitions": self.partitions,
            "deleted": self.deleted,
            "config": _stored(self.config),
            "revision": self.revision,
            "removing": [list(removal) for removal in self.removing],
            "is_anew": self.is_recreated,
        }
        if self.kafka:
            content["kafka"] = dict(self.kafka)
        return pack_document(content)

    @classmethod
    def parse(cls, key: str, data: bytes) -> TopicDescriptor:
        def build(content: dict[str, Any]) -> TopicDescriptor:
            current = _removal([content["incarnation"], content["partitions"]])
            # Before there was a list, nobody noted whether a removal had ended.
            removing = content.get("removing", [current] if content["deleted"] else [])
            return cls(
                check_topic_name(content["name"]),
                current.incarnation,
                current.partitions,
                TopicConfig(**content["config"]),
                content["deleted"],
                content.get("revision", 0),
                tuple(_removal(row) for row in removing),
                content.get("is_anew", False),
                kafka_settings(content.get("kafka", {})),
            )

        return read_document(key, data, "the topic's descriptor", (FORMAT_VERSION, BORN_VERSION), build)


KafkaChange = Callable[[TopicDescriptor], tuple[Mapping[str, str], Mapping[str, Any]]]
"""What becomes of a topic: all that Kafka's clients have set, and fields of its `TopicConfig`."""


class Catalog:
    """Holds no state: every call asks the store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        # By key: the etag in the last listing and what was read then. Replaced as a whole, never changed.
        self._known: dict[str, tuple[str, TopicDescriptor]] = {}

    def find(self, name: str) -> TopicDescriptor:
        found = self._get(check_topic_name(name))
        if found is None or found.deleted:
            raise self._unknown(name)
        return found

    def has_deleted(self, name: str, incarnation: str) -> bool:
        """Whether that topic was deleted for certain: a descriptor that is not there at all says nothing."""
        found = self._get(name)
        return found is not None and (found.deleted or found.incarnation != incarnation)

    def all(self) -> list[TopicDescriptor]:
        """Every topic. Raises if one cannot be read."""
        found: list[TopicDescriptor] = []
        for _, topic in self.described():
            if isinstance(topic, Exception):
                raise topic
            found.append(topic)
        return found

    def names(self) -> list[str]:
        """The names of all topics, sorted. One that cannot be read is among them, and does not hide the rest."""
        return [name for name, _ in self.described()]

    def described(self) -> list[tuple[str, TopicDescriptor | Unreadable]]:
        """Every topic by its name, sorted, with its descriptor or why that cannot be read. A listing, and a request for each
        descriptor that has changed since the last time, side by side."""
        return [(name, one) for name, one in self._read() if isinstance(one, Exception) or not one.deleted]

    def unfinished(self) -> list[tuple[str, Removal]]:
        """Deletions that were begun and, as far as anybody noted, not finished: topic and incarnation."""
        return [
            (name, removal)
            for name, topic in self._read()
            for removal in (() if isinstance(topic, Exception) else topic.removing)
        ]

    def _read(self) -> list[tuple[str, TopicDescriptor | Unreadable]]:
        """The same, with deleted topics."""
        etags = {info.key: info.etag for info in self._store.list(CATALOG_PREFIX)}
        known = {key: one for key, one in self._known.items() if etags.get(key) == one[0]}
        new = [key for key in etags if key not in known]
        calls = [partial(self._try_to_read, key.removeprefix(CATALOG_PREFIX)) for key in new]
        read = dict(zip(new, fan_out(calls, at_once=_READ_AT_ONCE), strict=True))
        # One that has changed since the listing is remembered by the older etag, and so read again next time.
        for key, one in read.items():
            if isinstance(one, TopicDescriptor):
                known[key] = etags[key], one
        self._known = known
        found = ((key, known[key][1] if key in known else read[key]) for key in etags)
        return [(key.removeprefix(CATALOG_PREFIX), one) for key, one in found if one is not None]

    def _try_to_read(self, name: str) -> TopicDescriptor | Unreadable | None:
        try:
            return self._get(name)
        except (CorruptData, UnsupportedStore) as error:
            logger.error("%s", error)
            return error

    def create(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        exist_ok: bool,
        incarnation: str,
        kafka: Mapping[str, str] | None = None,
    ) -> TopicDescriptor:
        new = TopicDescriptor(
            check_topic_name(name),
            incarnation,
            _check_partitions(partitions),
            _topic_config(settings),
            kafka=kafka_settings(kafka or {}),
        )
        key = catalog_key(name)
        doubts = Doubts()
        while True:
            known = self._store.head(key)
            old = self._get(name) if known is not None else None
            if old is not None and old.incarnation == incarnation:
                return old  # only the answer was lost
            if old is not None and not old.deleted:
                return self._existing(old, partitions, exist_ok)
            if old is not None:
                new = replace(new, revision=old.revision + 1, removing=old.removing, is_recreated=True)
            with doubts:
                if put_settled(self._store, key, new.pack(), None if known is None else known.etag):
                    return new
            # Else somebody else was at it at the same time: look what came of it.

    @staticmethod
    def _existing(old: TopicDescriptor, partitions: int, exist_ok: bool) -> TopicDescriptor:
        if not exist_ok:
            raise TopicExists(f"topic {old.name!r} exists: pass exist_ok=True to use it")
        if partitions not in (old.partitions, ANY_PARTITIONS):
            raise TopicExists(f"topic {old.name!r} exists with {old.partitions} partitions, not {partitions}")
        return old

    def alter(self, name: str, settings: Mapping[str, Any]) -> TopicDescriptor:
        """Change some of a topic's settings; the others stay."""
        return self.alter_kafka(name, lambda old: (dict(old.kafka), settings))

    def alter_kafka(self, name: str, change: KafkaChange) -> TopicDescriptor:
        """Change the settings that Kafka's clients gave a topic, and its own with them, in one step."""

        def altered(old: TopicDescriptor) -> TopicDescriptor:
            kafka, settings = change(old)
            config = _topic_config({**asdict(old.config), **settings})
            return replace(old, config=config, kafka=kafka_settings(kafka))

        return self._change(name, self._of_one_incarnation(altered))

    def add_partitions(self, name: str, total: int) -> TopicDescriptor:
        """Give a topic more partitions, so that it has `total`; nothing happens if it has as many."""
        _check_partitions(total)

        def grown(old: TopicDescriptor) -> TopicDescriptor:
            if total < old.partitions:
                raise ValueError(
                    f"partitions={total!r}: topic {name!r} has {old.partitions}, and they only become more: the records of "
                    "one that was taken away would be lost"
                )
            return replace(old, partitions=total)

        return self._change(name, self._of_one_incarnation(grown))

    def delete(self, name: str) -> TopicDescriptor:
        """Note that the topic is gone; what is left to remove is in the descriptor's `removing`. `UnknownTopic` if there is
        neither a topic nor anything left of one."""
        target: str | None = None

        def gone(old: TopicDescriptor) -> TopicDescriptor:
            nonlocal target
            if target is None and old.deleted and not old.removing:
                raise self._unknown(name)
            target = target or old.incarnation
            # A lost answer makes us look again: by then somebody may have created the next topic of this name.
            if old.deleted or old.incarnation != target:
                return old
            mine = Removal(old.incarnation, old.partitions)
            return replace(old, deleted=True, removing=(*old.removing, mine))

        return self._change(name, gone)

    def removed(self, name: str, removal: Removal) -> TopicDescriptor:
        """Note that nothing is left of that incarnation."""

        def without(old: TopicDescriptor) -> TopicDescriptor:
            return replace(old, removing=tuple(other for other in old.removing if other != removal))

        return self._change(name, without)

    def _change(self, name: str, change: Callable[[TopicDescriptor], TopicDescriptor]) -> TopicDescriptor:
        """Replace the present descriptor, also a deleted one, by what `change` makes of it; nothing is written if that
        is the same. `change` is called again if somebody else was faster."""
        key = catalog_key(check_topic_name(name))
        sent: TopicDescriptor | None = None
        doubts = Doubts()
        while True:
            known = self._store.head(key)
            old = self._get(name) if known is not None else None
            if known is None or old is None:
                raise self._unknown(name)
            if sent is not None and old == sent:
                return sent  # only the answer was lost
            new = change(old)
            if new == old:
                return old
            sent = replace(new, revision=old.revision + 1)
            with doubts:
                if put_settled(self._store, key, sent.pack(), known.etag):
                    return sent

    def _get(self, name: str) -> TopicDescriptor | None:
        key = catalog_key(name)
        data = get_if_there(self._store, key)
        return None if data is None else TopicDescriptor.parse(key, data)

    def _of_one_incarnation(
        self, change: Callable[[TopicDescriptor], TopicDescriptor]
    ) -> Callable[[TopicDescriptor], TopicDescriptor]:
        """`change`, for the topic that was met first: one that took its name since is another one."""
        target: str | None = None

        def checked(old: TopicDescriptor) -> TopicDescriptor:
            nonlocal target
            target = target or old.incarnation
            if old.deleted or old.incarnation != target:
                raise self._unknown(old.name)
            return change(old)

        return checked

    def _unknown(self, name: str) -> UnknownTopic:
        if self._store.head(STORE_KEY) is None:
            return UnknownTopic(
                f"there is no topic {name!r} in {self._store!r}: there is no log store there at all. Check the path or URL"
            )
        return UnknownTopic(
            f"there is no topic {name!r} in {self._store!r}: check both names, or create it with create_topic({name!r})"
        )


@lru_cache(100_000)
def topic_id_of(name: str, incarnation: str) -> UUID:
    """Kafka's tools take an id that begins with `-`, in their spelling (base64), for an option: there is none."""
    for number in count():
        digest = blake2b(f"{name}/{incarnation}/{number}".encode(), digest_size=16).digest()
        if digest[0] >> 2 != 62:
            return UUID(bytes=digest)
    raise AssertionError("unreachable")


def kafka_settings(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """As a descriptor holds them."""
    if not all(isinstance(text, str) for pair in given.items() for text in pair):
        raise ValueError("a setting of Kafka's is not text")
    return tuple(sorted(given.items()))


def _stored(config: TopicConfig) -> dict[str, Any]:
    """Settings that came later are named only where they are set: earlier releases read the other topics."""
    return {
        each.name: value
        for each in fields(TopicConfig)
        if (value := getattr(config, each.name)) != each.default or each.name in _ALWAYS_STORED
    }


def _removal(row: list[Any]) -> Removal:
    incarnation, partitions = row
    if not re.fullmatch(INCARNATION, incarnation):
        raise ValueError("an incarnation is malformed")
    return Removal(incarnation, _check_partitions(partitions))


def _check_partitions(partitions: object) -> int:
    if (
        not isinstance(partitions, int)
        or isinstance(partitions, bool)
        or not 1 <= partitions <= PARTITIONS_MAX
    ):
        raise ValueError(f"partitions={partitions!r}: it is a whole number from 1 to {PARTITIONS_MAX}")
    return partitions


def _topic_config(settings: Mapping[str, Any]) -> TopicConfig:
    check_names("topic setting", settings, TopicConfig, "partitions", "exist_ok")
    return TopicConfig(**settings)
