"""L25: who deletes a topic may die at any request. Somebody else finishes it: no record stays, no writer acks into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

import logstore
from logstore.errors import CorruptData, Fenced, LogStoreError, UnknownTopic
from logstore.format.stored.document import pack_document, parse_document
from logstore.layout.catalog import Catalog
from logstore.objects import MemoryStore
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import ManualClock
from tests.support.engine.dying import DiesAt
from tests.support.engine.harness import crash, open_store, pairs, running

REQUESTS_MAX = 200


class Scene:
    """A topic of three partitions: one with records, merged ones among them, one that two writers have had, an empty one.

    The sleepers are processes that hold it and do nothing while it is deleted: one owns partition 0, one was the owner of
    partition 1, one has never appended to partition 2.
    """

    def __init__(self) -> None:
        self.objects = MemoryStore()
        self.clock = ManualClock()
        self.sleeper = open_store(self.objects, self.clock)
        topic = self.sleeper.create_topic("t", partitions=3)
        topic.append(b"secret", partition=1)
        with running(self.objects, self.clock) as other:
            other.topic("t").append(b"secret", partition=1)
        for _ in range(8):
            topic.append(b"secret", partition=0)
        upkeep = topic.partition(0)._internal.maintenance
        assert upkeep.compact(self.clock.now_ms(), bytes(16)) > 0
        self.asleep = [topic.partition(number) for number in range(3)]
        self.old = topic._internal.descriptor.incarnation

    def delete_and_die(self, request: int, *, after: bool) -> bool:
        """False if the deletion came to its end before that request."""
        dying = DiesAt(self.objects)
        store = open_store(dying, self.clock)
        dying.die_at(request, after=after)
        with suppress(LogStoreError):
            store.delete_topic("t")
        crash(store)
        return dying.died

    def contents(self) -> dict[str, bytes]:
        return {info.key: self.objects.get(info.key) for info in self.objects.list("topics/")}

    def check_gone(self) -> None:
        for log in self.asleep:
            with pytest.raises((UnknownTopic, Fenced)):
                log.append(b"late secret")
        # What was in a lane goes with the lane's old entries: see `check_lanes`.
        left = [info.key for info in self.objects.list("") if b"secret" in self.objects.get(info.key)]
        assert [key for key in left if not key.startswith("lanes/")] == []
        assert Catalog(self.objects).unfinished() == []

    def check_lanes(self) -> None:
        """Nothing is left in the entries either, once a collection has come that nobody's grace period holds up."""
        with open_store(self.objects, self.clock, writer="read_only", delete_grace=0.0) as store:
            store.collect_garbage()
        left = [info.key for info in self.objects.list("") if b"secret" in self.objects.get(info.key)]
        assert left == []

    def close(self) -> None:
        self.sleeper.close()


@contextmanager
def scene() -> Iterator[Scene]:
    made = Scene()
    try:
        yield made
    finally:
        made.close()


def at_every_request(after: bool, then: Callable[[Scene], None]) -> None:
    """Kill a deletion at its first request, its second and so on; each time, `then` must find and leave things right."""
    for request in range(REQUESTS_MAX):
        with scene() as here:
            if not here.delete_and_die(request, after=after):
                assert request > 20, "the deletion was meant to be a long one"
                return
            then(here)
    raise AssertionError("the deletion never came to its end")


AFTER = pytest.mark.parametrize("after", [False, True], ids=["before_it", "after_it"])


@AFTER
def test_L25_a_deletion_that_died_at_any_request_is_finished_by_the_next_call(after: bool) -> None:
    def again(here: Scene) -> None:
        with running(here.objects, here.clock) as store:
            with suppress(UnknownTopic):  # then the first call did all of it
                store.delete_topic("t")
            here.check_gone()
            with pytest.raises(UnknownTopic):
                store.delete_topic("t")
        here.check_lanes()

    at_every_request(after, again)


@AFTER
def test_L25_a_deletion_that_died_at_any_request_is_finished_by_garbage_collection(after: bool) -> None:
    def collect(here: Scene) -> None:
        with open_store(here.objects, here.clock, writer="read_only") as store:
            if store.topics():  # it died before it had deleted anything
                assert store.collect_garbage() == []
                assert len(pairs(store.topic("t").partition(0))) == 8
                return
            listed = [item.key for item in store.collect_garbage(dry_run=True)]
            before = here.contents()
            assert [item.key for item in store.collect_garbage()] == listed
            after = here.contents()
            changed = [key for key in before if after.get(key) != before[key]]
            assert listed == [
                key for key in changed if not key.endswith("/manifest")
            ]  # those are tombstones now
            assert store.collect_garbage() == store.collect_garbage(dry_run=True) == []
        here.check_gone()

    at_every_request(after, collect)


@AFTER
def test_L25_a_new_topic_of_that_name_is_untouched_when_the_old_one_is_swept(after: bool) -> None:
    def create_first(here: Scene) -> None:
        with running(here.objects, here.clock) as store:
            if store.topics():
                return
            topic = store.create_topic("t", partitions=1)
            topic.append(b"new")
            store.collect_garbage()
            here.check_gone()
            assert topic.append(b"newer").offset == 1
            assert pairs(store.topic("t").partition(0)) == [(0, b"new"), (1, b"newer")]

    at_every_request(after, create_first)


def test_L25_what_is_left_of_an_older_topic_goes_with_the_next_one_of_that_name() -> None:
    with scene() as here:
        assert here.delete_and_die(4, after=True)
        with running(here.objects, here.clock) as store:
            store.create_topic("t").append(b"new secret")
            assert len(Catalog(here.objects).unfinished()) == 1
            store.delete_topic("t")
        here.check_gone()


def test_L25_collecting_one_topic_finishes_its_deletion_and_no_others() -> None:
    with scene() as here:
        assert here.delete_and_die(4, after=True)
        with running(here.objects, here.clock) as store:
            store.create_topic("other")
            assert store.collect_garbage("other") == []
            assert len(Catalog(here.objects).unfinished()) == 1
            with pytest.raises(UnknownTopic):
                store.collect_garbage("nobody")
            assert store.collect_garbage("t")
        here.check_gone()


def test_L25_a_deletion_whose_answer_was_lost_does_not_delete_the_next_topic_of_that_name() -> None:
    """The descriptor was written, the answer was lost, and before we look again somebody has recreated the topic."""
    objects = MemoryStore()

    class Loses:
        """The store, but the first answer to a deleting put is lost, and meanwhile `others` act."""

        def __init__(self) -> None:
            self.armed = False

        def __getattr__(self, name: str) -> object:
            return getattr(objects, name)

        def put(self, key: str, data: Buffer, **conditions: object) -> ObjectInfo:
            done = objects.put(key, data, **conditions)  # type: ignore[arg-type]
            if self.armed and key == "catalog/t":
                self.armed = False
                with running(objects) as other:
                    other.create_topic("t", partitions=2).append(b"new", partition=1)
                raise logstore.Indeterminate("the answer was lost")
            return done

    loses = Loses()
    with running(loses) as store:  # type: ignore[arg-type]
        old = store.create_topic("t")
        old.append(b"old")
        loses.armed = True
        store.delete_topic("t")
        assert pairs(store.topic("t").partition(1)) == [(0, b"new")]
        assert all(
            b"old" not in objects.get(info.key)
            for info in objects.list(f"topics/t/{old._internal.descriptor.incarnation}/")
        )


def test_L25_a_topic_deleted_by_a_release_that_kept_no_list_is_swept_too() -> None:
    with scene() as here:
        content = parse_document(here.objects.get("catalog/t"))
        del content["removing"], content["revision"]
        here.objects.put("catalog/t", pack_document(content | {"deleted": True}))
        with running(here.objects, here.clock) as store:
            assert store.topics() == []
            assert store.collect_garbage()
        here.check_gone()


def test_L20_a_damaged_descriptor_keeps_its_topics_objects_and_stops_no_other_topics_collection() -> None:
    """Whether what is left of an older topic of that name is garbage, nobody can say; for the other topics it is."""
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock) as store:
        for name in ("bad", "good"):
            store.create_topic(name).append(b"secret")
        late = [
            store.topic(name).partition(0)._internal.paths.merged(0, 1, "a" * 32) for name in ("bad", "good")
        ]
    with running(objects, clock) as store:
        for name in ("bad", "good"):
            store.delete_topic(name)
            store.create_topic(name)
    for key in late:  # what a merge had under way when the topics were deleted
        objects.put(key, b"secret")
    objects.put("catalog/bad", b"{")
    with running(objects, clock) as store:
        gone = {garbage.key for garbage in store.collect_garbage()}
        with pytest.raises(CorruptData, match="catalog/bad"):
            store.collect_garbage("bad")
    assert gone == {late[1]}
    assert [objects.head(key) is not None for key in late] == [True, False]
