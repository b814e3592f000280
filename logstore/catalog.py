"""Which topics there are: one small object each, changed only by conditional puts.

A deleted topic leaves its descriptor behind with `deleted` set; creating it again replaces that with a new incarnation. So
of two processes that create or delete the same topic at once exactly one wins, and the other is told.
"""

from __future__ import annotations

import logging
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from logstore.config import TopicConfig
from logstore.errors import (
    CorruptData,
    Indeterminate,
    ObjectNotFound,
    PreconditionFailed,
    TopicExists,
    UnknownTopic,
    UnsupportedStore,
)
from logstore.format.document import pack_document, parse_document
from logstore.objects.protocol import ObjectStore
from logstore.paths import CATALOG_PREFIX, catalog_key, check_topic_name

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
PARTITIONS_MAX = 100_000
_DOUBTS_MAX = 5  # answers that may get lost before the caller is asked to look


@dataclass(frozen=True, slots=True)
class TopicDescriptor:
    name: str
    incarnation: str
    partitions: int
    config: TopicConfig
    deleted: bool = False

    def pack(self) -> bytes:
        content = {
            "format": FORMAT_VERSION,
            "name": self.name,
            "incarnation": self.incarnation,
            "partitions": self.partitions,
            "deleted": self.deleted,
            "config": asdict(self.config),
        }
        return pack_document(content)

    @classmethod
    def parse(cls, key: str, data: bytes) -> TopicDescriptor:
        try:
            content = parse_document(data)
            if content["format"] != FORMAT_VERSION:
                raise UnsupportedStore(
                    f"{key}: topic format {content['format']}, this release reads {FORMAT_VERSION}: use a newer one"
                )
            if not re.fullmatch(r"[0-9a-f]{16}", content["incarnation"]):
                raise ValueError("the incarnation is malformed")
            config = TopicConfig(**content["config"])
            return cls(
                check_topic_name(content["name"]),
                content["incarnation"],
                content["partitions"],
                config,
                content["deleted"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(key, None, f"the topic's descriptor cannot be read ({error})") from error


class Catalog:
    """Holds no state: every call asks the store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def find(self, name: str) -> TopicDescriptor:
        found = self._get(check_topic_name(name))
        if found is None or found.deleted:
            raise UnknownTopic(f"there is no topic {name!r}: create it with create_topic({name!r})")
        return found

    def all(self) -> list[TopicDescriptor]:
        found = [
            self._get(info.key.removeprefix(CATALOG_PREFIX)) for info in self._store.list(CATALOG_PREFIX)
        ]
        return [topic for topic in found if topic is not None and not topic.deleted]

    def names(self) -> list[str]:
        """The names of all topics, sorted. One that cannot be read is among them, and does not hide the rest."""
        found = []
        for info in self._store.list(CATALOG_PREFIX):
            name = info.key.removeprefix(CATALOG_PREFIX)
            try:
                topic = self._get(name)
            except (CorruptData, UnsupportedStore) as error:
                logger.error("%s", error)
                found.append(name)
            else:
                if topic is not None and not topic.deleted:
                    found.append(name)
        return sorted(found)

    def create(
        self, name: str, partitions: int, settings: dict[str, Any], exist_ok: bool, incarnation: str
    ) -> TopicDescriptor:
        new = TopicDescriptor(
            check_topic_name(name), incarnation, _check_partitions(partitions), _topic_config(settings)
        )
        key = catalog_key(name)
        doubts = 0
        while True:
            known = self._store.head(key)
            old = self._get(name) if known is not None else None
            if old is not None and old.incarnation == incarnation:
                return old  # only the answer was lost
            if old is not None and not old.deleted:
                return self._existing(old, partitions, exist_ok)
            try:
                if known is None:
                    self._store.put(key, new.pack(), if_absent=True)
                else:
                    self._store.put(key, new.pack(), if_match=known.etag)
            except PreconditionFailed:
                continue  # somebody else was at it at the same time: look what came of it
            except Indeterminate:
                doubts += 1
                if doubts == _DOUBTS_MAX:
                    raise
                continue
            return new

    @staticmethod
    def _existing(old: TopicDescriptor, partitions: int, exist_ok: bool) -> TopicDescriptor:
        if not exist_ok:
            raise TopicExists(f"topic {old.name!r} exists: pass exist_ok=True to use it")
        if old.partitions != partitions:
            raise TopicExists(f"topic {old.name!r} exists with {old.partitions} partitions, not {partitions}")
        return old

    def change(self, name: str, **changes: Any) -> TopicDescriptor:
        """Replace the descriptor of a topic that exists by one with some fields changed."""
        key = catalog_key(check_topic_name(name))
        sent: TopicDescriptor | None = None
        doubts = 0
        while True:
            known = self._store.head(key)
            if sent is not None and self._get(name) == sent:
                return sent  # only the answer was lost
            old = self.find(name)
            new = TopicDescriptor(**{field.name: getattr(old, field.name) for field in fields(old)} | changes)
            assert known is not None, "find() has seen it"
            try:
                self._store.put(key, new.pack(), if_match=known.etag)
            except PreconditionFailed:
                continue
            except Indeterminate:
                sent, doubts = new, doubts + 1
                if doubts == _DOUBTS_MAX:
                    raise
                continue
            return new

    def _get(self, name: str) -> TopicDescriptor | None:
        key = catalog_key(name)
        try:
            return TopicDescriptor.parse(key, self._store.get(key))
        except ObjectNotFound:
            return None


def _check_partitions(partitions: object) -> int:
    if (
        not isinstance(partitions, int)
        or isinstance(partitions, bool)
        or not 1 <= partitions <= PARTITIONS_MAX
    ):
        raise ValueError(f"partitions={partitions!r}: it is a whole number from 1 to {PARTITIONS_MAX}")
    return partitions


def _topic_config(settings: dict[str, Any]) -> TopicConfig:
    known = [field.name for field in fields(TopicConfig)]
    for name in settings:
        if name not in known:
            raise TypeError(f"unknown topic setting {name!r}; there are: {', '.join(known)}")
    return TopicConfig(**settings)
