"""The local folder: atomic across processes, durable in the right order, honest about every errno."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from logstore.errors import (
    InvalidKey,
    ObjectNotFound,
    PreconditionFailed,
)
from logstore.objects import LocalStore
from tests.support.objects.folders import temporary_files
from tests.support.objects.local_children import add_ones, create_each, die_at

SPAWN = multiprocessing.get_context("spawn")
PROCESSES = 3

# Names out of the characters on both sides of "/" in the order of bytes, so that folder order and key order
# differ.
NAMES = st.text("a0-.", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


@contextmanager
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(PROCESSES, mp_context=SPAWN) as pool:
        yield pool


class TestAcrossProcesses:
    def test_W03_one_process_creates_each_object(self, store: LocalStore, root: Path) -> None:
        rounds = 40
        with SPAWN.Manager() as manager, processes() as pool:
            start = manager.Barrier(PROCESSES)
            winners = list(
                pool.map(
                    create_each,
                    [str(root)] * PROCESSES,
                    range(PROCESSES),
                    [rounds] * PROCESSES,
                    [start] * PROCESSES,
                )
            )
        assert sorted(number for won in winners for number in won) == list(range(rounds))
        for me, won in enumerate(winners):
            for number in won:
                assert store.get(f"race/{number}") == b"by %d" % me

    def test_W03_no_update_is_lost_between_processes(self, store: LocalStore, root: Path) -> None:
        store.put("counter", b"0")
        with SPAWN.Manager() as manager, processes() as pool:
            start = manager.Barrier(PROCESSES)
            lost = list(pool.map(add_ones, [str(root)] * PROCESSES, [60] * PROCESSES, [start] * PROCESSES))
        assert store.get("counter") == b"%d" % (60 * PROCESSES)
        assert sum(lost) > 0, "the processes never met: the test shows nothing"

    @pytest.mark.parametrize(
        ("call", "if_absent"), [("fsync", True), ("link", True), ("rename", False), ("utime", False)]
    )
    def test_L01_a_crash_before_the_object_has_its_name_leaves_nothing_visible(
        self, store: LocalStore, root: Path, call: str, if_absent: bool
    ) -> None:
        store.put("log/before", b"1", if_absent=True)
        child = SPAWN.Process(target=die_at, args=(str(root), call, if_absent))
        child.start()
        child.join()
        assert child.exitcode == -9
        assert [info.key for info in store.list("")] == ["log/before"]
        with pytest.raises(ObjectNotFound):
            store.get("log/victim")
        store.put("log/victim", b"2", if_absent=True)
        assert store.get("log/victim") == b"2"

    def test_a_crash_after_the_object_has_its_name_leaves_it_whole(
        self, store: LocalStore, root: Path
    ) -> None:
        child = SPAWN.Process(target=die_at, args=(str(root), "unlink", True))
        child.start()
        child.join()
        assert child.exitcode == -9
        assert [(info.key, info.size) for info in store.list("")] == [("log/victim", 100_000)]
        assert len(temporary_files(root)) == 1


class TestSweep:
    def test_left_overs_of_a_crash_go_after_a_day(self, root: Path) -> None:
        LocalStore(root).put("k", b"1")
        orphan = root / ".logstore" / "tmp" / "orphan"
        orphan.write_bytes(b"half an object")
        written_ns = orphan.stat().st_mtime_ns

        LocalStore(root, wall_ns=lambda: written_ns + 23 * 3600 * 10**9).put("k", b"2")
        assert temporary_files(root) == [orphan], "it may still belong to a slow writer"
        LocalStore(root, wall_ns=lambda: written_ns + 25 * 3600 * 10**9).put("k", b"3")
        assert temporary_files(root) == []

    def test_puts_clean_up_behind_themselves(self, store: LocalStore, root: Path) -> None:
        store.put("k", b"1", if_absent=True)
        etag = store.put("k", b"2").etag
        for condition in ({"if_absent": True}, {"if_match": "stale"}):
            with pytest.raises(PreconditionFailed):
                store.put("k", b"3", **condition)
        store.put("k", b"4", if_match=etag)
        assert temporary_files(root) == []

    def test_reading_makes_no_folder(self, store: LocalStore, root: Path) -> None:
        assert store.head("k") is None
        assert list(store.list("")) == []
        with pytest.raises(ObjectNotFound):
            store.get("k")
        assert not root.parent.exists()


class TestEtag:
    def test_the_version_grows_though_the_clock_stands_still(self, root: Path) -> None:
        store = LocalStore(root, wall_ns=lambda: 10**18)
        etags = [store.put("k", b"same size").etag for _ in range(20)]
        assert len({etag.partition("-")[0] for etag in etags}) == 20

    def test_the_version_grows_though_the_clock_goes_back(self, root: Path) -> None:
        now = iter(range(10**18, 0, -(10**12)))
        store = LocalStore(root, wall_ns=lambda: next(now))
        old = store.put("k", b"1")
        new = store.put("k", b"2", if_match=old.etag)
        with pytest.raises(PreconditionFailed):
            store.put("k", b"3", if_match=old.etag)
        assert store.head("k") == new

    def test_an_edit_by_hand_changes_it(self, store: LocalStore, root: Path) -> None:
        etag = store.put("k", b"abc").etag
        with open(root / "k", "r+b") as file:
            file.write(b"X")
        with pytest.raises(PreconditionFailed):
            store.put("k", b"new", if_match=etag)
        assert store.get("k") == b"Xbc"


class TestKeys:
    def test_nothing_leaves_the_root(self, store: LocalStore, root: Path) -> None:
        for key in ("../out", "a/../../out", "/etc/passwd", "..", "a/.."):
            with pytest.raises(InvalidKey):
                store.put(key, b"x")
        assert not root.parent.exists()

    @pytest.mark.parametrize("key", [".logstore", ".logstore/tmp/x", ".logstore/locks/00"])
    def test_its_own_folder_is_no_key(self, store: LocalStore, key: str) -> None:
        store.put("k", b"x")
        with pytest.raises(InvalidKey, match="own files"):
            store.put(key, b"x")
        with pytest.raises(InvalidKey):
            store.get(key)
        assert [info.key for info in store.list(".")] == []
        assert [info.key for info in store.list(".logstore/")] == []
        assert [info.key for info in store.list("")] == ["k"]

    def test_a_name_that_only_begins_like_it_is_a_key(self, store: LocalStore) -> None:
        store.put(".logstore2/x", b"x")
        store.put("a/.logstore/x", b"x")
        assert [info.key for info in store.list("")] == [".logstore2/x", "a/.logstore/x"]

    @pytest.mark.parametrize("if_absent", [True, False])
    def test_a_key_cannot_be_both_file_and_folder(self, store: LocalStore, if_absent: bool) -> None:
        store.put("a", b"file")
        with pytest.raises(InvalidKey, match="folder"):
            store.put("a/b", b"x", if_absent=if_absent)
        store.put("c/d", b"file")
        with pytest.raises((InvalidKey, PreconditionFailed)):
            store.put("c", b"x", if_absent=if_absent)
        assert [info.key for info in store.list("")] == ["a", "c/d"]

    def test_a_name_longer_than_the_file_system_takes(self, store: LocalStore) -> None:
        with pytest.raises(InvalidKey, match="too long"):
            store.put("x" * 300, b"x")

    def test_files_of_others_with_names_that_are_no_text_are_ignored(
        self, store: LocalStore, root: Path
    ) -> None:
        store.put("k", b"x")
        (Path(os.fsdecode(os.fsencode(root) + b"/\xff"))).write_bytes(b"?")
        os.mkdir(os.fsencode(root) + b"/\xfe")
        assert [info.key for info in store.list("")] == ["k"]


class TestListing:
    def test_more_keys_than_fit_a_page(self, store: LocalStore) -> None:
        wanted = [f"p/{number:05}" for number in range(0, 2100, 2)]
        for key in wanted:
            store.put(key, b"", if_absent=True)
        assert [info.key for info in store.list("p/")] == wanted
        assert [info.key for info in store.list("p/", wanted[999])] == wanted[1000:]
        assert [info.key for info in store.list("p/", "p/02001")] == wanted[1001:]

    @settings(max_examples=150, deadline=None)
    @given(
        keys=st.sets(PATHS, max_size=12),
        prefix=st.text("a0-./", max_size=3),
        start_after=st.text("a0-./", max_size=5),
    )
    def test_any_tree_lists_as_its_sorted_keys(
        self, tmp_path_factory: pytest.TempPathFactory, keys: set[str], prefix: str, start_after: str
    ) -> None:
        root = tmp_path_factory.mktemp("tree")
        kept = [key for key in keys if not any(other.startswith(key + "/") for other in keys)]
        for key in kept:
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            (root / key).write_bytes(b"x")
        try:
            found = [info.key for info in LocalStore(root).list(prefix, start_after)]
        except InvalidKey:
            assume(False)
        assert found == sorted(key for key in kept if key.startswith(prefix) and key > start_after)

    def test_only_what_can_match_is_opened_and_only_what_is_handed_out_is_looked_at(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A chain of 100,000 segments beside other partitions: the tail costs one folder and two stats."""
        names = [f"{number:020}.seg" for number in range(100_000)]
        opened: list[str] = []
        looked_at: list[str] = []
        real = os.stat

        def listdir(folder: str) -> list[str]:
            opened.append(os.path.relpath(folder, root))
            return names[::-1]

        def look(path: str, **_: object) -> os.stat_result:
            looked_at.append(os.path.basename(path))
            return real(__file__)

        monkeypatch.setattr(os, "listdir", listdir)
        monkeypatch.setattr(os, "stat", look)
        found = [info.key for info in LocalStore(root).list("topics/t/i/0/", f"topics/t/i/0/{names[-3]}")]
        monkeypatch.undo()
        assert found == [f"topics/t/i/0/{name}" for name in names[-2:]]
        assert opened == ["topics/t/i/0"]
        assert looked_at == names[-3:], "the start itself might have been a folder"

    def test_folders_that_lie_before_the_start_are_not_opened(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, root: Path
    ) -> None:
        for key in ("a/1", "b/1", "b/2", "b/c/1", "c/1"):
            store.put(key, b"x")
        opened: list[str] = []
        real = os.listdir
        monkeypatch.setattr(
            os, "listdir", lambda folder: opened.append(os.path.relpath(folder, root)) or real(folder)
        )
        assert [info.key for info in store.list("", "b/1")] == ["b/2", "b/c/1", "c/1"]
        assert opened == [".", "b", "b/c", "c"]

    def test_an_object_deleted_under_way_is_left_out(self, store: LocalStore) -> None:
        for key in ("a", "b", "c/d", "e"):
            store.put(key, b"x")
        found = store.list("")
        assert next(found).key == "a"
        store.delete("b")
        store.delete("c/d")
        assert [info.key for info in found] == ["e"]


class TestDurability:
    """Which calls reach the disk, and in which order: a crash at any point must find what was promised."""

    @pytest.fixture
    def order(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        calls: list[str] = []
        base = str(root.parent.parent)

        def name(path: object) -> str:
            text = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
            relative = os.path.relpath(text, base)
            return "temporary" if "/.logstore/tmp/" in relative else relative

        def watch(call: str) -> None:
            real = getattr(os, call)

            def watched(*args: object, **kwargs: object) -> object:
                answer = real(*args, **kwargs)
                calls.append(" ".join([call, *(name(arg) for arg in args[:2])]))
                return answer

            monkeypatch.setattr(os, call, watched)

        for call in ("fsync", "link", "rename"):
            watch(call)
        return calls

    def test_L01_create_is_file_then_name_then_folder(
        self, store: LocalStore, root: Path, order: list[str]
    ) -> None:
        store.put("log/1", b"x", if_absent=True)
        base = root.parent.parent
        assert order == [
            "fsync deep/root",  # the entry of log
            "fsync deep",  # the entry of root
            "fsync .",  # the entry of deep: the folder was made by us too
            # and the rest of the way: somebody may have made those a moment ago
            *(f"fsync {os.path.relpath(above, base)}" for above in base.parents),
            "fsync temporary",
            "link temporary deep/root/log/1",
            "fsync deep/root/log",
        ]
        order.clear()
        store.put("log/2", b"x", if_absent=True)
        assert order == ["fsync temporary", "link temporary deep/root/log/2", "fsync deep/root/log"]

    def test_L01_replace_is_file_then_name_then_folder(self, store: LocalStore, order: list[str]) -> None:
        store.put("k", b"x")
        order.clear()
        store.put("k", b"y")
        assert order == ["fsync temporary", "rename temporary deep/root/k", "fsync deep/root"]

    def test_W09_what_stood_in_the_way_is_durable_before_the_loser_knows_of_it(
        self, store: LocalStore, order: list[str]
    ) -> None:
        """The winner may have linked its object and not yet fsynced the folder; the loser acts on what it sees."""
        store.put("log/1", b"the winner's")
        for condition in ({"if_absent": True}, {"if_match": "stale"}):
            order.clear()
            with pytest.raises(PreconditionFailed):
                store.put("log/1", b"mine", **condition)
            assert order == ["fsync temporary", "fsync deep/root/log"]

    def test_L01_delete_fsyncs_the_folder(self, store: LocalStore, order: list[str]) -> None:
        store.put("log/1", b"x")
        order.clear()
        store.delete("log/1")
        assert order == ["fsync deep/root/log"]

    def test_a_folder_that_vanished_is_made_again(self, store: LocalStore, root: Path) -> None:
        store.put("log/1", b"x")
        store.delete("log/1")
        (root / "log").rmdir()
        store.put("log/1", b"y", if_absent=True)
        (root / "log" / "1").unlink()
        (root / "log").rmdir()
        store.put("log/1", b"z")
        assert store.get("log/1") == b"z"


def test_C13_objects_and_folders_are_private_to_their_user(tmp_path: Path) -> None:
    for private, folder, file in ((True, 0o700, 0o600), (False, 0o777, 0o666)):
        root = tmp_path / str(private)
        umask = os.umask(0)
        try:
            store = LocalStore(root, private=private)
            store.put("deep/er/log", b"x", if_absent=True)
            store.put("deep/er/log", b"y")
        finally:
            os.umask(umask)
        made = [root, *root.rglob("*")]
        assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {folder}
        assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {file}
        assert len(made) > 6


def test_the_clock_is_the_wall_clock_by_default(store: LocalStore, root: Path) -> None:
    before = time.time_ns() // 1000 * 1000
    store.put("k", b"x")
    assert before <= (root / "k").stat().st_mtime_ns <= time.time_ns()
