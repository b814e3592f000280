"""A store of somebody else's, with the protocol's five methods and the errors of its own client library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

import logstore
from logstore.errors import Indeterminate
from logstore.objects import MemoryStore
from logstore.objects.protocol import Buffer, ObjectInfo
from tests.support.patience import PATIENCE_S

T = TypeVar("T")

READS: dict[str, Callable[[logstore.Store], object]] = {
    "get": lambda store: [record.value for record in store.topic("t").partition(0).records()],
    "list": lambda store: store.topics(),
}


class Foreign:
    """Raises `error` in the next `times` calls of `operation`: before the call is carried out, or after."""

    def __init__(self, error: BaseException) -> None:
        self._inner = MemoryStore()
        self._error = error
        self._operation, self._times, self._after = "", 0, False

    def fail(self, operation: str, times: int, *, after: bool = False) -> None:
        self._operation, self._times, self._after = operation, times, after

    def _through(self, operation: str, call: Callable[[], T]) -> T:
        fails = operation == self._operation and self._times > 0
        if not fails:
            return call()
        self._times -= 1
        if self._after:
            call()
        raise self._error

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._through("get", lambda: self._inner.get(key, start, end))

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return self._through(
            "put", lambda: self._inner.put(key, data, if_absent=if_absent, if_match=if_match)
        )

    def head(self, key: str) -> ObjectInfo | None:
        return self._through("head", lambda: self._inner.head(key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._through("list", lambda: self._inner.list(prefix, start_after))

    def delete(self, key: str) -> None:
        self._through("delete", lambda: self._inner.delete(key))


ERRORS = (TimeoutError("no answer"), OSError("reset"), KeyError("body"), ValueError("half an answer"))


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def objects(request: pytest.FixtureRequest) -> Foreign:
    return Foreign(request.param)


@pytest.mark.parametrize("operation", READS)
def test_W03_a_read_that_fails_with_a_foreign_error_is_tried_again(objects: Foreign, operation: str) -> None:
    with logstore.open(objects) as store:
        store.create_topic("t").append(b"x")
        expected = READS[operation](store)
    with logstore.open(objects, writer="read_only", cache_bytes=0) as store:
        objects.fail(operation, 1)
        assert READS[operation](store) == expected


@pytest.mark.parametrize("operation", READS)
def test_W03_a_foreign_error_that_stays_is_indeterminate_and_names_its_cause(
    objects: Foreign, operation: str
) -> None:
    with logstore.open(objects) as store:
        store.create_topic("t").append(b"x")
    with logstore.open(objects, writer="read_only", cache_bytes=0) as store:
        objects.fail(operation, 1_000)
        with pytest.raises(Indeterminate) as caught:
            READS[operation](store)
        assert caught.value.__cause__ is objects._error
        assert type(objects._error).__name__ in str(caught.value)


def test_W04_a_topic_whose_creation_got_a_foreign_error_for_an_answer_is_there_once(objects: Foreign) -> None:
    with logstore.open(objects) as store:
        objects.fail("put", 1, after=True)
        assert store.create_topic("t").append(b"x").offset == 0
        assert store.topics() == ["t"]


@pytest.mark.parametrize("after", [False, True])
def test_W04_an_append_whose_upload_got_a_foreign_error_for_an_answer_is_stored_once(
    objects: Foreign, after: bool
) -> None:
    with logstore.open(objects) as store:
        topic = store.create_topic("t")
        topic.append(b"0")
        objects.fail("put", 1, after=after)
        assert topic.append(b"1").offset == 1
        assert [record.value for record in topic.partition(0).records()] == [b"0", b"1"]


def test_W03_opening_says_what_the_foreign_error_was_and_not_that_the_store_is_damaged(
    objects: Foreign,
) -> None:
    objects.fail("get", 1_000)
    with pytest.raises(Indeterminate):
        logstore.open(objects)


@pytest.mark.parametrize("error", [asyncio.CancelledError("the loop ends"), SystemExit(3)], ids=repr)
def test_W03_an_error_that_is_no_exception_ends_no_thread_that_uploads(error: BaseException) -> None:
    objects = Foreign(error)
    with logstore.open(objects) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"0")
        objects.fail("put", 2)
        assert log.append(b"1", timeout=PATIENCE_S).offset == 1
        assert [record.value for record in log.records()] == [b"0", b"1"]


def test_W03_an_interrupt_reaches_the_main_thread_as_it_is() -> None:
    objects = Foreign(KeyboardInterrupt())
    with logstore.open(objects) as store:
        objects.fail("list", 1)
        with pytest.raises(KeyboardInterrupt):
            store.topics()
