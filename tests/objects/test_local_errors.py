"""What each errno of the file system becomes: did anything happen, and who can mend it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.errors import Determinate, Indeterminate, LogStoreError, StoreUnavailable
from logstore.objects import LocalStore
from tests.support.engine.harness import until
from tests.support.objects.folders import temporary_files
from tests.support.patience import PATIENCE_S


@pytest.fixture
def store(root: Path) -> LocalStore:
    made = LocalStore(root)
    made.put("log/first", b"x")
    return made


def broken(monkeypatch: pytest.MonkeyPatch, call: str, number: int, when: Callable[..., bool]) -> None:
    """Let a call of `os` fail with errno `number` when `when(*args)`."""
    real = getattr(os, call)

    def maybe(*args: object, **kwargs: object) -> object:
        if when(*args):
            raise OSError(number, os.strerror(number), str(args[0]))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, maybe)


def always(*_: object) -> bool:
    return True


def is_folder(descriptor: int, *_: object) -> bool:
    return os.path.isdir(f"/proc/self/fd/{descriptor}")


def outcome(call: Callable[[], object]) -> LogStoreError:
    with pytest.raises(LogStoreError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("call", "number", "kind", "retriable"),
    [
        ("write", errno.ENOSPC, Determinate, True),
        ("write", errno.EDQUOT, Determinate, True),
        ("write", errno.EIO, Determinate, True),
        ("fsync", errno.EIO, Determinate, True),
        ("utime", errno.EPERM, StoreUnavailable, False),
        ("link", errno.ENOSPC, Determinate, True),
        ("link", errno.EACCES, StoreUnavailable, False),
        ("link", errno.EROFS, StoreUnavailable, False),
        ("link", errno.EPERM, StoreUnavailable, False),
        ("link", errno.EIO, Indeterminate, False),
        ("link", errno.ESTALE, Indeterminate, False),
    ],
)
def test_W03_what_happened_before_the_object_has_its_name(
    store: LocalStore,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    kind: type,
    retriable: bool,
) -> None:
    broken(monkeypatch, call, number, always)
    error = outcome(lambda: store.put("log/new", b"y", if_absent=True))
    monkeypatch.undo()
    assert type(error) is kind
    assert error.retriable is retriable
    assert "log/new" in str(error)
    assert [info.key for info in store.list("")] == ["log/first"]
    assert temporary_files(root) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_W03_a_folder_that_may_not_be_written(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    broken(monkeypatch, "open", number, lambda path, flags, *_: bool(flags & os.O_CREAT))
    for write in (
        lambda: store.put("log/new", b"y", if_absent=True),
        lambda: store.put("log/first", b"y"),
        lambda: store.delete("log/first"),
    ):
        error = outcome(write)
        assert type(error) is StoreUnavailable
        assert error.retriable is False
        assert "write access" in str(error)
    assert store.get("log/first") == b"x"


def test_a_file_that_may_not_be_read(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "open", errno.EACCES, lambda path, flags, *_: not flags & os.O_CREAT)
    error = outcome(lambda: store.get("log/first"))
    assert type(error) is StoreUnavailable
    assert "read access" in str(error)


def test_a_root_whose_parent_is_closed_to_us_works(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "open", errno.EACCES, lambda path, *_: path == str(root.parent))
    store = LocalStore(root)
    store.put("log/new", b"y", if_absent=True)
    assert store.get("log/new") == b"y"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_W03_a_name_that_may_not_be_durable_is_indeterminate(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    broken(monkeypatch, "fsync", number, is_folder)
    created = outcome(lambda: store.put("log/new", b"y", if_absent=True))
    replaced = outcome(lambda: store.put("log/first", b"y"))
    deleted = outcome(lambda: store.delete("log/first"))
    monkeypatch.undo()
    assert [type(error) for error in (created, replaced, deleted)] == [Indeterminate] * 3
    assert [info.key for info in store.list("")] == ["log/new"], "all three were carried out"


def test_L03_what_may_not_be_durable_cannot_be_read_back_and_taken_for_stored(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost answer a writer reads what is there: its own object would mean that it is stored."""
    broken(monkeypatch, "fsync", errno.EIO, is_folder)
    outcome(lambda: store.put("log/new", b"y", if_absent=True))
    doubts = [
        outcome(lambda: store.get("log/new")),
        outcome(lambda: store.head("log/new")),
        outcome(lambda: store.put("log/new", b"y", if_absent=True)),
        outcome(lambda: store.delete("log/gone")),
    ]
    assert [type(error) for error in doubts] == [Determinate] * 4
    monkeypatch.undo()
    assert store.get("log/new") == b"y"


def test_L03_no_durable_ack_while_the_folder_cannot_be_fsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logstore.open(tmp_path, flush_interval=3600.0, probe_interval=0.01) as opened:
        log = opened.create_topic("t").partition(0)
        log.append(b"before")
        broken(monkeypatch, "fsync", errno.EIO, is_folder)
        future = log.submit(b"meanwhile")
        until(lambda: log._internal.health()["upload_failures"] >= 3)
        assert not future.done()
        monkeypatch.undo()
        assert future.result(PATIENCE_S).offset == 1
        assert [record.value for record in log.records()] == [b"before", b"meanwhile"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, Determinate), (errno.EIO, Indeterminate), (errno.EACCES, StoreUnavailable)],
)
def test_W03_a_rename_that_fails(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type
) -> None:
    broken(monkeypatch, "rename", number, always)
    assert type(outcome(lambda: store.put("log/first", b"y"))) is kind
    assert store.get("log/first") == b"x"


def test_W03_an_unlink_that_fails(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "unlink", errno.EIO, always)
    assert type(outcome(lambda: store.delete("log/first"))) is Indeterminate


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EIO, Determinate), (errno.EACCES, StoreUnavailable), (errno.EMFILE, Determinate)],
)
def test_W03_a_read_that_fails_changed_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type
) -> None:
    for call in ("open", "stat", "listdir"):
        broken(monkeypatch, call, number, always)
    for read in (
        lambda: store.get("log/first"),
        lambda: store.head("log/first"),
        lambda: list(store.list("")),
    ):
        assert type(outcome(read)) is kind


def test_a_file_that_shrinks_while_it_is_read(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    assert type(outcome(lambda: store.get("log/first"))) is Determinate


def test_a_read_goes_on_after_a_short_one(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("log/long", bytes(range(100)))
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: real(file, min(size, 7), at))
    assert store.get("log/long", 10, 90) == bytes(range(10, 90))
