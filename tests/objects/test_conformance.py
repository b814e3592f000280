"""The protocol, promise by promise, on memory, a local folder, moto and a real S3 server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore.errors import InvalidKey, ObjectNotFound, PreconditionFailed
from logstore.objects import ObjectInfo, ObjectStore, check_conditions

BODY = b"0123456789"

# What get(start, end) of BODY must be.
RANGES: dict[tuple[int | None, int | None], bytes] = {
    (None, None): BODY,
    (0, None): BODY,
    (3, None): b"3456789",
    (3, 6): b"345",
    (None, 4): b"0123",
    (9, 10): b"9",
    (-1, None): b"9",
    (-3, None): b"789",
    (-3, 9): b"78",
    (-3, 2): b"",
    (-10, None): BODY,
    (-100, None): BODY,
    (-100, 4): b"0123",
    (7, 100): b"789",
    (10, None): b"",
    (10, 20): b"",
    (100, 200): b"",
    (5, 5): b"",
    (6, 5): b"",
    (None, 0): b"",
}

UNUSUAL_KEYS = [
    "é/ü",
    "日本語/キー",
    "a b/c+d",
    "100%/x%41",
    "q?x=1&y=2",
    "h#ash",
    "emoji-😀",
    "tilde~!'()*",
    "~",
    "x" * 250,
]
BAD_KEYS = [
    "",
    "/",
    "/absolute",
    "a//b",
    "a/",
    "..",
    "../out",
    "a/../b",
    "a/..",
    ".",
    "./a",
    "a/./b",
    "nul\0",
    "\ud800",
    "n\n",
]


def keys(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    return [info.key for info in store.list(prefix, start_after)]


def race(threads: int, attempt: Callable[[int], object]) -> list[int]:
    """Run `attempt(i)` on all threads at once; the numbers of those that were not told PreconditionFailed."""
    start = threading.Barrier(threads)

    def run(number: int) -> bool:
        start.wait()
        try:
            attempt(number)
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(threads) as pool:
        return [number for number, won in enumerate(pool.map(run, range(threads))) if won]


def test_it_has_the_methods(store: ObjectStore) -> None:
    assert isinstance(store, ObjectStore)


def test_W03_it_passes_the_probe_and_the_probe_leaves_nothing(store: ObjectStore) -> None:
    check_conditions(store, "probe/")
    assert keys(store) == []


class TestPutAndGet:
    def test_what_was_put_comes_back(self, store: ObjectStore) -> None:
        info = store.put("a/b", BODY)
        assert (info.key, info.size) == ("a/b", 10)
        assert store.get("a/b") == BODY
        assert store.head("a/b") == info
        assert list(store.list("a/")) == [info]

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_buffer_is_taken(self, store: ObjectStore, kind: type) -> None:
        assert store.put("k", kind(BODY), if_absent=True).size == 10
        assert store.get("k") == BODY

    def test_a_slice_of_a_view_is_taken(self, store: ObjectStore) -> None:
        store.put("k", memoryview(BODY)[2:5])
        assert store.get("k") == b"234"

    def test_a_view_of_wide_items_counts_its_bytes(self, store: ObjectStore) -> None:
        assert store.put("k", memoryview(BODY[:8]).cast("I")).size == 8
        assert store.get("k") == BODY[:8]

    def test_an_object_may_be_empty(self, store: ObjectStore) -> None:
        assert store.put("empty", b"", if_absent=True).size == 0
        assert store.get("empty") == b""
        assert store.get("empty", -5) == b""
        assert store.get("empty", 0, 10) == b""
        assert [info.size for info in store.list("")] == [0]

    def test_an_object_larger_than_any_buffer_on_the_way(self, store: ObjectStore) -> None:
        body = bytes(range(256)) * (36 << 10)  # 9 MiB: SeaweedFS keeps it in several chunks
        info = store.put("large", body, if_absent=True)
        assert store.get("large") == body
        assert store.get("large", 4 << 20, (4 << 20) + 300) == body[4 << 20 : (4 << 20) + 300]
        assert store.head("large") == info

    def test_a_put_replaces_the_whole_object(self, store: ObjectStore) -> None:
        store.put("k", b"a long first version")
        store.put("k", b"short")
        assert store.get("k") == b"short"
        assert [info.size for info in store.list("")] == [5]

    def test_a_changed_buffer_does_not_change_the_object(self, store: ObjectStore) -> None:
        buffer = bytearray(BODY)
        store.put("k", buffer)
        buffer[:] = b"**********"
        assert store.get("k") == BODY

    def test_ranges_are_cut_to_the_object(self, store: ObjectStore) -> None:
        store.put("k", BODY)
        assert {(start, end): store.get("k", start, end) for start, end in RANGES} == RANGES

    def test_an_end_does_not_count_from_the_end(self, store: ObjectStore) -> None:
        store.put("k", BODY)
        with pytest.raises(ValueError, match="end=-1"):
            store.get("k", 0, -1)

    @pytest.mark.parametrize("bounds", [(), (0, 4), (-4,), (5, 5)])
    def test_getting_what_is_not_there(self, store: ObjectStore, bounds: tuple[int, ...]) -> None:
        store.put("other", BODY)
        with pytest.raises(ObjectNotFound, match="missing/key"):
            store.get("missing/key", *bounds)
        assert store.head("missing/key") is None

    def test_a_folder_is_no_object(self, store: ObjectStore) -> None:
        store.put("folder/file", BODY)
        assert store.head("folder") is None
        with pytest.raises(ObjectNotFound):
            store.get("folder")

    def test_nothing_is_below_an_object(self, store: ObjectStore) -> None:
        store.put("file", BODY)
        assert store.head("file/below") is None
        with pytest.raises(ObjectNotFound):
            store.get("file/below")
        assert keys(store, "file/") == []


class TestDelete:
    def test_a_deleted_object_is_gone(self, store: ObjectStore) -> None:
        store.put("a", b"1")
        store.put("b", b"2")
        store.delete("a")
        assert store.head("a") is None
        assert keys(store) == ["b"]

    def test_deleting_what_is_not_there_is_no_error(self, store: ObjectStore) -> None:
        store.delete("never/was")
        store.put("k", b"1")
        store.delete("k")
        store.delete("k")
        assert keys(store) == []

    def test_a_deleted_key_can_be_created_again(self, store: ObjectStore) -> None:
        store.put("k", b"1", if_absent=True)
        store.delete("k")
        store.put("k", b"2", if_absent=True)
        assert store.get("k") == b"2"


class TestConditions:
    def test_W03_create_if_absent_refuses_the_second(self, store: ObjectStore) -> None:
        store.put("k", b"first", if_absent=True)
        with pytest.raises(PreconditionFailed, match="k"):
            store.put("k", b"second", if_absent=True)
        assert store.get("k") == b"first"

    def test_W03_if_match_takes_the_current_version_only(self, store: ObjectStore) -> None:
        old = store.put("k", b"one")
        new = store.put("k", b"two", if_match=old.etag)
        assert new.etag != old.etag
        with pytest.raises(PreconditionFailed):
            store.put("k", b"three", if_match=old.etag)
        assert store.get("k") == b"two"

    def test_W03_the_etag_may_come_from_head_or_list(self, store: ObjectStore) -> None:
        store.put("k", b"one")
        head = store.head("k")
        assert head is not None
        store.put("k", b"two", if_match=head.etag)
        (listed,) = store.list("k")
        store.put("k", b"three", if_match=listed.etag)
        assert store.get("k") == b"three"

    def test_W03_if_match_needs_an_object(self, store: ObjectStore) -> None:
        gone = store.put("k", b"one")
        store.delete("k")
        with pytest.raises(PreconditionFailed):
            store.put("k", b"two", if_match=gone.etag)
        assert store.head("k") is None

    def test_W03_if_match_sees_an_unconditional_put(self, store: ObjectStore) -> None:
        seen = store.put("k", b"one")
        store.put("k", b"somebody else's")
        with pytest.raises(PreconditionFailed):
            store.put("k", b"two", if_match=seen.etag)
        assert store.get("k") == b"somebody else's"

    def test_W03_if_match_sees_a_new_object_of_the_same_size(self, store: ObjectStore) -> None:
        seen = store.put("k", b"one")
        store.delete("k")
        store.put("k", b"two", if_absent=True)
        with pytest.raises(PreconditionFailed):
            store.put("k", b"new", if_match=seen.etag)
        assert store.get("k") == b"two"

    def test_W03_one_of_many_creators_wins(self, store: ObjectStore, home: str) -> None:
        threads, rounds = (5, 2) if home == "seaweedfs" else (16, 10)
        for number in range(rounds):
            key = f"race/{number}"

            def create(thread: int, key: str = key) -> ObjectInfo:
                return store.put(key, b"by %d" % thread, if_absent=True)

            winners = race(threads, create)
            assert len(winners) == 1
            assert store.get(key) == b"by %d" % winners[0]

    def test_W03_one_of_many_compare_and_sets_wins(self, store: ObjectStore, home: str) -> None:
        threads, rounds = (5, 2) if home == "seaweedfs" else (16, 10)
        info = store.put("counter", b"start")
        for number in range(rounds):
            etag = info.etag

            def swap(thread: int, number: int = number, etag: str = etag) -> ObjectInfo:
                return store.put("counter", b"%d by %d" % (number, thread), if_match=etag)

            winners = race(threads, swap)
            assert len(winners) == 1
            assert store.get("counter") == b"%d by %d" % (number, winners[0])
            found = store.head("counter")
            assert found is not None
            info = found

    def test_readers_see_whole_objects_while_it_is_replaced(self, store: ObjectStore, home: str) -> None:
        rounds = 10 if home in ("moto", "seaweedfs") else 100
        versions = [bytes([number]) * (20_000 + number) for number in range(rounds)]
        store.put("k", versions[0])
        done = threading.Event()

        def read() -> set[bytes]:
            seen = set()
            while not done.is_set():
                seen.add(store.get("k"))
            return seen

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            for version in versions:
                store.put("k", version)
            done.set()
            for reader in readers:
                assert reader.result() <= set(versions)


class TestList:
    def test_key_order_is_not_folder_order(self, store: ObjectStore) -> None:
        wanted = ["a b", "a+b", "a-", "a.b", "a/b", "a/b2", "a0", "b/c/d", "b/c0", "z"]
        for key in reversed(wanted):
            store.put(key, key.encode())
        assert keys(store) == wanted
        assert keys(store, "a") == wanted[:7]
        assert keys(store, "a/") == ["a/b", "a/b2"]
        assert keys(store, "b/c") == ["b/c/d", "b/c0"]
        assert keys(store, "b/c/") == ["b/c/d"]
        assert keys(store, "nothing/") == []

    def test_start_after_need_not_exist(self, store: ObjectStore) -> None:
        wanted = [f"log/{number:03}.seg" for number in range(0, 40, 2)]
        for key in wanted:
            store.put(key, b"x", if_absent=True)
        assert keys(store, "log/", "log/004.seg") == wanted[3:]
        assert keys(store, "log/", "log/005.seg") == wanted[3:]
        assert keys(store, "log/", "log/038.seg") == []
        assert keys(store, "log/", "log/") == wanted
        assert keys(store, "log/", "a") == wanted
        assert keys(store, "log/", "z") == []
        assert keys(store, "log/01", "log/012") == [
            "log/012.seg",
            "log/014.seg",
            "log/016.seg",
            "log/018.seg",
        ]

    def test_it_is_lazy_and_can_be_left(self, store: ObjectStore) -> None:
        for number in range(5):
            store.put(f"k{number}", b"x")
        found = store.list("")
        assert next(found).key == "k0"
        assert next(found).key == "k1"
        del found
        assert len(keys(store)) == 5

    def test_sizes_and_etags_are_those_of_head(self, store: ObjectStore) -> None:
        for number in range(4):
            store.put(f"d/{number}", b"x" * number)
        for info in store.list("d/"):
            assert store.head(info.key) == info


class TestKeys:
    def test_unusual_keys_come_back_as_they_are(self, store: ObjectStore) -> None:
        for key in UNUSUAL_KEYS:
            info = store.put(key, key.encode(), if_absent=True)
            assert store.get(key) == key.encode()
            assert list(store.list("")) == [info]
            assert list(store.list(key[:1])) == [info]
            store.delete(key)
            assert keys(store) == []

    def test_unicode_sorts_by_bytes(self, store: ObjectStore) -> None:
        wanted = sorted(["a", "z", "é", "ü", "日", "\uffef", "😀"], key=str.encode)
        for key in wanted:
            store.put(key, b"x")
        assert keys(store) == wanted
        assert keys(store, "", "日") == ["日", "\uffef", "😀"][1:]

    def test_a_bad_key_is_refused_by_every_verb(self, store: ObjectStore) -> None:
        for key in BAD_KEYS:
            for verb in (store.get, store.head, store.delete, lambda bad: store.put(bad, b"x")):
                with pytest.raises(InvalidKey) as caught:
                    verb(key)
                assert caught.value.retriable is False
        assert keys(store) == []

    def test_a_key_has_at_most_1024_bytes(self, store: ObjectStore) -> None:
        with pytest.raises(InvalidKey, match="1024"):
            store.put("ü" * 513, b"x")

    @pytest.mark.parametrize("prefix", ["../", "/", "a//", "a/../"])
    def test_a_bad_prefix_is_refused(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(InvalidKey):
            store.list(prefix)
