"""Every object key in one place. The layout is API: a test pins it, and Spark, the CLI and other versions rely on it.

    store                                               what this place is: format version and store id
    probe/‹random›                                      for the moment in which a new place is tried
    catalog/‹topic›                                     a topic's descriptor (partitions, incarnation, settings)
    topics/‹topic›/‹incarnation›/‹partition›/
        ‹seq, 20 digits›.seg                            the chain; creating one is the commit
        manifest                                        a checkpoint of the chain
        merged/‹first seq›-‹last seq›-‹id›.seg          several segments rewritten as one by maintenance, for the version of
                                                        the manifest that the id begins with
        pending/‹born, 20 digits›-‹id›                  appends that a shared writer has put aside for whoever commits next
    lanes/‹lane›/
        ‹seq, 20 digits›.seg                            an entry: segments of many partitions; creating one is the commit
        checkpoint                                      what the entries hold of whom
    spark/‹app, a digest›/
        ledger                                          which write of the app is stored, and the plan of one under way
        staged/‹version, 20 digits›/‹ms›-‹id›           record batches that a task wrote, until the job commits them
    holds/‹topic›/‹incarnation›/‹who, a digest›         who copies the topic elsewhere, and how far: retention waits for it

A lane `born-‹incarnation›` is nobody's: the partitions of a topic are in it that nobody has written yet.

A topic's incarnation is new each time it is created, so a topic that was deleted and created again starts empty whatever
a slow writer of the old one still does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from logstore.errors import InvalidTopicName

STORE_KEY = "store"
PROBE_PREFIX = "probe/"
CATALOG_PREFIX = "catalog/"
TOPICS_PREFIX = "topics/"
SPARK_PREFIX = "spark/"
HOLDS_PREFIX = "holds/"
LANES_PREFIX = "lanes/"

PENDING_WINDOW = 256
"""In how many places, from the one where it was born, a pending append may be stored: the same in every release."""

_NAME_MAX = 249  # Kafka's limit; also keeps a file name below 255 bytes
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_MERGED_NAME = re.compile(r"(\d{20})-(\d{20})-([0-9a-f]{32})\.seg", re.ASCII)
BORN_IN_LANE = "l"
BIRTH_LANE = "born-"
INCARNATION = r"[0-9a-f]{16}l?"
"""With the letter, its partitions begin in a lane: see `PartitionPaths.birth_lane`."""
_PARTITION = re.compile(rf"topics/([A-Za-z0-9._-]+)/({INCARNATION})/(\d+)/", re.ASCII)
_PENDING_NAME = re.compile(r"(\d{20})-([0-9a-f]{32})", re.ASCII)
_SEGMENT_NAME = re.compile(r"(\d{20})\.seg", re.ASCII)
_STAGED_NAME = re.compile(r"spark/([0-9a-f]{32})/staged/(\d{20})/(\d{13,})-[0-9a-f]{32}", re.ASCII)


def check_topic_name(name: object) -> str:
    """The name itself, if it can be a key here and a topic in Kafka."""
    if not isinstance(name, str):
        raise InvalidTopicName(f"a topic name is a str, not {type(name).__name__}")
    if (why := refusal(name)) is not None:
        raise InvalidTopicName(f"{name[:80]!r} is no topic name: {why}")
    return name


def refusal(name: str) -> str | None:
    """What is wrong with it as a name that people choose; None if nothing is."""
    if name not in (".", "..") and len(name) <= _NAME_MAX and _NAME.fullmatch(name):
        return None
    return f"use 1 to {_NAME_MAX} of the characters A-Z a-z 0-9 '.' '_' '-', and not '.' or '..' alone"


def is_internal(topic: str) -> bool:
    """Whether a topic belongs to the broker or the library, and not to people: read where it is named, not by patterns."""
    return topic.startswith("__")


def catalog_key(topic: str) -> str:
    return CATALOG_PREFIX + topic


def behind(prefix: str) -> str:
    """Sorts after every key that begins with the prefix, which ends with a slash, and before every other one."""
    return prefix[:-1] + chr(ord("/") + 1)


def incarnation_prefix(topic: str, incarnation: str) -> str:
    return f"{TOPICS_PREFIX}{topic}/{incarnation}/"


def spark_ledger(app: str) -> str:
    return f"{SPARK_PREFIX}{app}/ledger"


class StagedName(NamedTuple):
    """What the key of a staged object says."""

    app: str
    version: int
    staged_at_ms: int

    @classmethod
    def parse(cls, key: str) -> StagedName | None:
        """None for any other object."""
        found = _STAGED_NAME.fullmatch(key)
        return cls(found[1], int(found[2]), int(found[3])) if found else None


class PendingName(NamedTuple):
    """What the key of a pending append says: the place that its owner had reached, which has read every place below, and the
    id that the append keeps for its whole life."""

    born: int
    id: bytes

    def is_dead(self, seq: int) -> bool:
        """Whether nobody may store it in place `seq` or later."""
        return self.born + PENDING_WINDOW <= seq


@dataclass(frozen=True, slots=True)
class PartitionPaths:
    """The keys of one partition."""

    topic: str
    incarnation: str
    partition: int

    @classmethod
    def of(cls, key: str) -> PartitionPaths | None:
        """Those of the partition that an object belongs to; None if it belongs to none."""
        found = _PARTITION.match(key)
        return cls(found[1], found[2], int(found[3])) if found else None

    @property
    def prefix(self) -> str:
        return f"{incarnation_prefix(self.topic, self.incarnation)}{self.partition}/"

    @property
    def birth_lane(self) -> str | None:
        """The lane in which its chain begins, before anybody has written it; None if it begins in its own chain."""
        return birth_lane(self.incarnation)

    @property
    def manifest(self) -> str:
        return self.prefix + "manifest"

    @property
    def merged_prefix(self) -> str:
        return self.prefix + "merged/"

    def segment(self, seq: int) -> str:
        return f"{self.prefix}{seq:020d}.seg"

    def merged(self, first_seq: int, last_seq: int, identity: str) -> str:
        return f"{self.merged_prefix}{first_seq:020d}-{last_seq:020d}-{identity}.seg"

    def merged_name(self, key: str) -> tuple[int, int, str] | None:
        """First seq, last seq and identity in a merged object's key; None for any other object below the prefix."""
        found = _MERGED_NAME.fullmatch(key, len(self.merged_prefix))
        return (int(found[1]), int(found[2]), found[3]) if found else None

    @property
    def pending_prefix(self) -> str:
        return self.prefix + "pending/"

    def pending(self, name: PendingName) -> str:
        return f"{self.pending_prefix}{name.born:020d}-{name.id.hex()}"

    def pending_name(self, key: str) -> PendingName | None:
        """None for any other object."""
        found = _PENDING_NAME.fullmatch(key.removeprefix(self.pending_prefix))
        return PendingName(int(found[1]), bytes.fromhex(found[2])) if found else None

    def seq_of(self, key: str) -> int | None:
        """The sequence number in a segment's key; None for any other object below the prefix."""
        found = _SEGMENT_NAME.fullmatch(key, len(self.prefix))
        return int(found[1]) if found else None

    def names_of(self, keys: Iterable[str]) -> tuple[list[int], set[str]]:
        """Of objects: the seqs of segments, and the names of all others below the prefix."""
        seqs: list[int] = []
        names: set[str] = set()
        for key in keys:
            seq = self.seq_of(key)
            if seq is None:
                names.add(key.removeprefix(self.prefix))
            else:
                seqs.append(seq)
        return seqs, names

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class LanePaths:
    """The keys of one lane."""

    lane: str

    @property
    def prefix(self) -> str:
        return f"{LANES_PREFIX}{self.lane}/"

    @property
    def checkpoint(self) -> str:
        return self.prefix + "checkpoint"

    def entry(self, seq: int) -> str:
        return f"{self.prefix}{seq:020d}.seg"

    def seq_of(self, key: str) -> int | None:
        """The place in an entry's key; None for any other object below the prefix."""
        found = _SEGMENT_NAME.fullmatch(key, len(self.prefix))
        return int(found[1]) if found else None

    @classmethod
    def entry_of(cls, key: str) -> tuple[str, int] | None:
        """The lane and the place of an entry, by its key; None if it is the key of something else."""
        lane, _, _ = key.removeprefix(LANES_PREFIX).partition("/")
        seq = cls(lane).seq_of(key) if key.startswith(LANES_PREFIX) else None
        return None if seq is None else (lane, seq)

    def __str__(self) -> str:
        return f"lane {self.lane}"


def birth_lane(incarnation: str) -> str | None:
    """The lane in which the partitions of such a topic begin; None if they begin in chains of their own."""
    return BIRTH_LANE + incarnation if incarnation.endswith(BORN_IN_LANE) else None


def may_be_transferred(prefix: str) -> bool:
    """Whether claims of the partition go on in other lanes by an entry there: those of topics that begin in a lane."""
    paths = PartitionPaths.of(prefix)
    return paths is not None and paths.birth_lane is not None


def is_birth_lane(lane: str) -> bool:
    """Whether it is one that nobody owns: see `PartitionPaths.birth_lane`."""
    return lane.startswith(BIRTH_LANE) and "." not in lane


def named_lane(name: str, number: int) -> str:
    """A lane that was given a name. One without has a random number for it, and no dot."""
    return f"{name}.{number}"


def for_version(version: int, identity: bytes) -> bytes:
    """The identity of a merged object that is made for this version of the manifest, and for no other."""
    return version.to_bytes(8, "big") + identity[8:]


def version_of(identity: str) -> int:
    """Which version of the manifest a merged object was made for. (Before the name said it, a random one: none there is.)"""
    return int(identity[:16], 16)
