"""Put, doubt, look: what a conditional put's answer means is never guessed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore.errors import CorruptData, Determinate, Indeterminate, PreconditionFailed, StoreError
from logstore.objects import MemoryStore, ObjectInfo
from logstore.objects.protocol import Buffer
from logstore.objects.settled import Doubts, put_settled, settle

KEY = "a/document"


class Answering(MemoryStore):
    """Carries a conditional put out, or not, and then says what the test wants. `between` happens before it is answered."""

    def __init__(self, says: StoreError, *, carries_out: bool) -> None:
        super().__init__()
        self.says = says
        self.carries_out = carries_out
        self.between: Callable[[], object] = lambda: None

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if not if_absent and if_match is None:
            return super().put(key, data)
        if self.carries_out:
            super().put(key, data, if_absent=if_absent, if_match=if_match)
        self.between()
        raise self.says


REFUSED, LOST = PreconditionFailed("412"), Indeterminate("no answer")
DOUBTS = pytest.mark.parametrize("says", [REFUSED, LOST], ids=["refused", "unanswered"])


@DOUBTS
@pytest.mark.parametrize("replaces", [False, True])
def test_C03_a_put_that_was_carried_out_is_ours_whatever_was_answered(
    says: StoreError, replaces: bool
) -> None:
    store = Answering(says, carries_out=True)
    etag = store.put(KEY, b"old").etag if replaces else None
    stored = put_settled(store, KEY, b"mine", etag)
    assert stored is not None
    assert stored == store.head(KEY)
    assert store.get(KEY) == b"mine"


@DOUBTS
@pytest.mark.parametrize("replaces", [False, True])
def test_C03_anothers_is_told_from_ours(says: StoreError, replaces: bool) -> None:
    store = Answering(says, carries_out=False)
    etag = store.put(KEY, b"old").etag if replaces else None
    store.between = lambda: MemoryStore.put(store, KEY, b"theirs")
    assert put_settled(store, KEY, b"mine", etag) is None


@DOUBTS
def test_C03_what_may_still_be_carried_out_is_no_outcome(says: StoreError) -> None:
    """The version that was to be replaced still exists: ours may come later, so nobody may act as if it had not."""
    store = Answering(says, carries_out=False)
    with pytest.raises(Indeterminate, match=KEY):
        put_settled(store, KEY, b"mine", store.put(KEY, b"old").etag)
    with pytest.raises(Indeterminate, match="another"):
        put_settled(store, "another", b"mine", None)


def test_C03_what_surely_did_not_happen_is_said_at_once() -> None:
    store = Answering(Determinate("503"), carries_out=False)
    with pytest.raises(Determinate, match="503"):
        put_settled(store, KEY, b"mine", None)


def test_C03_a_look_that_fails_leaves_the_doubt() -> None:
    def refuse() -> None:
        raise REFUSED

    def unreachable() -> bytes:
        raise OSError("cut off")

    def damaged() -> bytes:
        raise CorruptData(KEY, None)

    with pytest.raises(Indeterminate, match="could not be read back: cut off"):
        settle(KEY, refuse, unreachable, lambda _: True)
    with pytest.raises(CorruptData):
        settle(KEY, refuse, damaged, lambda _: True)


def test_the_last_answer_that_may_get_lost_is_raised() -> None:
    doubts, tries = Doubts(), 0

    def ask() -> None:
        while True:
            with doubts:
                nonlocal tries
                tries += 1
                raise Indeterminate(f"answer {tries} was lost")

    with pytest.raises(Indeterminate, match="answer 5"):
        ask()


def test_what_is_no_doubt_is_raised_at_once() -> None:
    with pytest.raises(PreconditionFailed), Doubts():
        raise REFUSED
