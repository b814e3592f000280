"""L25: topics that several processes create, delete and alter at once, under every order of their requests.

What must hold in each: of those who create, at most one wins; what was changed and answered stands, unless the topic went;
an incarnation that is not the topic's is either removed or listed to be, so nobody forgets it; and once the deletions are
finished no old record is left anywhere, while every acked record of the topic that stands is where its ack said.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from contextlib import suppress

import pytest

import logstore
from logstore.errors import LogStoreError, StoreError, TopicExists, UnknownTopic
from logstore.layout.catalog import Catalog, Removal, TopicDescriptor
from logstore.objects import MemoryStore, ObjectStore
from tests.support.engine.actors import Switch
from tests.support.patience import PATIENCE_S
from tests.support.scheduler import (
    Choices,
    InstantClock,
    RandomChoices,
    Schedule,
    for_every_schedule,
)

pytestmark = pytest.mark.usefixtures("quiet")

A, B, C = "a" * 16, "b" * 16, "c" * 16
FAULTS = pytest.mark.parametrize("faults", [0, 1, pytest.param(2, marks=pytest.mark.soak)])


def outcome(call: Callable[[], TopicDescriptor]) -> TopicDescriptor | Exception:
    try:
        return call()
    except (LogStoreError, ValueError) as error:
        return error


class Place:
    """A catalog with topic t, of incarnation A; `stood` lists every descriptor that ever did."""

    def __init__(self) -> None:
        self.objects = MemoryStore()
        Catalog(self.objects).create("t", 2, {}, False, A)

    def run(
        self, choices: Choices, *acts: Callable[[Catalog], TopicDescriptor], faults: int = 0
    ) -> list[TopicDescriptor | Exception]:
        results: dict[int, TopicDescriptor | Exception] = {}

        def actor(number: int, act: Callable[[Catalog], TopicDescriptor]) -> Callable[[ObjectStore], None]:
            def run(store: ObjectStore) -> None:
                results[number] = outcome(lambda: act(Catalog(store)))

            return run

        schedule = Schedule(self.objects, choices, faults_max=faults)
        schedule.run([actor(number, act) for number, act in enumerate(acts)])
        return [results[number] for number in range(len(acts))]

    def now(self) -> TopicDescriptor:
        return TopicDescriptor.parse("catalog/t", self.objects.get("catalog/t"))


def delete(catalog: Catalog) -> TopicDescriptor:
    return catalog.delete("t")


def create(incarnation: str) -> Callable[[Catalog], TopicDescriptor]:
    return lambda catalog: catalog.create("t", 1, {}, False, incarnation)


def recreate(incarnation: str) -> Callable[[Catalog], TopicDescriptor]:
    def both(catalog: Catalog) -> TopicDescriptor:
        with suppress(UnknownTopic):
            catalog.delete("t")
        return create(incarnation)(catalog)

    return both


def alter(catalog: Catalog) -> TopicDescriptor:
    return catalog.alter("t", {"segment_bytes": 7})


def grow(catalog: Catalog) -> TopicDescriptor:
    return catalog.add_partitions("t", 5)


@FAULTS
def test_L25_changes_that_were_answered_all_stand(faults: int) -> None:
    def run(choices: Choices) -> None:
        place = Place()
        altered, grown = place.run(choices, alter, grow, faults=faults)
        now = place.now()
        if isinstance(altered, TopicDescriptor):
            assert now.config.segment_bytes == 7
        if isinstance(grown, TopicDescriptor):
            assert now.partitions == 5
        if not faults:
            assert now.revision == 2
            assert {type(altered), type(grown)} == {TopicDescriptor}
        assert (now.incarnation, now.deleted, now.removing) == (A, False, ())

    assert for_every_schedule(run) >= 20


@FAULTS
def test_L25_a_deletion_is_listed_with_the_partitions_that_the_topic_had_at_its_end(faults: int) -> None:
    def run(choices: Choices) -> None:
        place = Place()
        deleted, grown = place.run(choices, delete, grow, faults=faults)
        now = place.now()
        assert isinstance(grown, TopicDescriptor | UnknownTopic | StoreError)
        if isinstance(deleted, TopicDescriptor):
            assert now.deleted
            assert now.removing == (Removal(A, now.partitions),)
        if isinstance(grown, TopicDescriptor):
            assert now.partitions == 5

    assert for_every_schedule(run) >= 20


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("faults", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_L25_of_two_who_delete_and_create_at_once_no_incarnation_is_forgotten(faults: int) -> None:
    """Whichever stood is the topic, or is listed to be removed. One of them at least gets its topic."""
    winners: set[int] = set()

    def run(choices: Choices) -> None:
        place = Place()
        results = place.run(choices, recreate(B), recreate(C), faults=faults)
        made = [result.incarnation for result in results if isinstance(result, TopicDescriptor)]
        winners.add(len(made))
        now = place.now()
        listed = [removal.incarnation for removal in now.removing]
        assert len(listed) == len(set(listed))
        gone = set(listed)
        assert A in gone or (now.incarnation == A and not now.deleted)
        assert set(made) <= gone | {now.incarnation}
        assert not now.deleted or now.incarnation in gone
        assert now.deleted or now.incarnation not in gone
        if not faults:
            assert made
            assert not now.deleted
            assert all(isinstance(result, TopicDescriptor | TopicExists) for result in results)

    assert for_every_schedule(run, limit=10_000_000) > 100
    assert {1, 2} <= winners  # one deletes what the other has just made, or finds it and is told


@FAULTS
def test_L25_of_two_who_create_at_once_one_wins(faults: int) -> None:
    def run(choices: Choices) -> None:
        place = Place()
        Catalog(place.objects).delete("t")
        results = place.run(choices, create(B), create(C), faults=faults)
        made = [result.incarnation for result in results if isinstance(result, TopicDescriptor)]
        assert len(made) <= 1
        now = place.now()
        if made:
            assert now.incarnation == made[0]
        elif not faults:
            raise AssertionError("nobody won")
        assert [removal.incarnation for removal in now.removing] == [A]

    assert for_every_schedule(run) >= 20


class Member:
    """A process of its own on the same objects. What it does while it is scheduled may fail; that is part of the story."""

    def __init__(self, objects: MemoryStore, seed: int, act: Callable[[Member], None]) -> None:
        self.objects = objects
        self.switch = Switch(objects)
        self.store = logstore.open(
            self.switch,
            clock=InstantClock(),
            stall_after=math.inf,
            rng=random.Random(seed),
            compression="none",
            probe_interval=0.001,
            append_timeout=PATIENCE_S,
        )
        self.acked: list[tuple[str, int, int, bytes]] = []
        self._act = act

    def run(self, scheduled: ObjectStore) -> None:
        self.switch.inner = scheduled
        try:
            with suppress(LogStoreError):
                self._act(self)
        finally:
            self.switch.inner = self.objects

    def append(self, topic: logstore.Topic, value: bytes) -> None:
        receipt = topic.append(value)
        self.acked.append((topic._internal.descriptor.incarnation, receipt.partition, receipt.offset, value))

    def close(self) -> None:
        with suppress(LogStoreError):
            self.store.close(timeout=0.5)


def deleting(member: Member) -> None:
    member.store.delete_topic("t")


def creating(member: Member) -> None:
    topic = member.store.create_topic("t", exist_ok=True)
    member.append(topic, b"new-0")
    member.append(topic, b"new-1")


def collecting(member: Member) -> None:
    member.store.collect_garbage()


def merging(member: Member) -> None:
    upkeep = member.store.topic("t").partition(0)._internal.maintenance
    assert upkeep.compact(0, bytes(16)) in (0, 4, 5)


def trimming(member: Member) -> None:
    member.store.topic("t").partition(0).delete_before(1)


def growing(member: Member) -> None:
    member.append(member.store.add_partitions("t", 2), b"grown")


def contents(objects: MemoryStore, incarnation: str) -> set[tuple[str, int, int, bytes]]:
    with logstore.open(objects, writer="read_only") as store:
        topic = store.topic("t")
        assert topic._internal.descriptor.incarnation == incarnation
        return {
            (incarnation, number, record.offset or 0, record.value or b"")
            for number in range(topic.partitions)
            for record in topic.partition(number).records()
        }


def run_members(choices: Choices, *acts: Callable[[Member], None], faults: int) -> None:
    objects = MemoryStore()
    sleeper = Member(objects, 1, lambda _: None)
    topic = sleeper.store.create_topic("t")
    for number in range(
        5 if merging in acts else 1
    ):  # few: from eight on a chain is loaded by several threads
        topic.append(b"old-%d" % number)
    members = [Member(objects, 2 + number, act) for number, act in enumerate(acts)]
    try:
        schedule = Schedule(objects, choices, faults_max=faults, reads_fail=True)
        schedule.run([member.run for member in members])
        with logstore.open(objects, rng=random.Random(99)) as last:
            last.collect_garbage()
            assert last._catalog.unfinished() == []
            alive = last.topic("t")._internal.descriptor.incarnation if last.topics() else None
            check(objects, alive, members)
            if alive != topic._internal.descriptor.incarnation:
                with pytest.raises((UnknownTopic, logstore.Fenced)):
                    topic.append(b"old, and late")
                check(objects, alive, members)
    finally:
        for member in (sleeper, *members):
            member.close()


def check(objects: MemoryStore, alive: str | None, members: list[Member]) -> None:
    """No byte of a record lies where no topic is, and the topic that stands holds what was acked there."""
    for info in objects.list("topics/"):
        found = re.match(r"topics/t/([0-9a-f]{16}l?)/", info.key)
        assert found is not None
        if found[1] != alive:
            assert re.search(b"old|new-|grown", objects.get(info.key)) is None, info.key
    if alive is not None:
        acked = {each for member in members for each in member.acked if each[0] == alive}
        assert acked <= contents(objects, alive)


STORIES = {
    "deletion and creation": (deleting, creating),
    "two deletions": (deleting, deleting),
    "deletion and collection": (deleting, collecting),
    "deletion and growth": (deleting, growing),
    "deletion and merging": (deleting, merging),
    "deletion and trimming": (deleting, trimming),
    "all of them": (deleting, creating, collecting, growing),
}


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("faults", [0, 3])
def test_L25_random_schedules_of_whole_processes(story: str, faults: int) -> None:
    for seed in range(40):
        try:
            run_members(RandomChoices(seed), *STORIES[story], faults=faults)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("story", STORIES)
def test_L25_many_random_schedules_of_whole_processes(story: str) -> None:
    for seed in range(40, 3000):
        try:
            run_members(RandomChoices(seed), *STORIES[story], faults=seed % 5)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
