"""Opening in a place that is none or may not be used, or with settings that cannot be: a typed error says what to do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.config import WriterKind
from logstore.errors import (
    StoreUnavailable,
    UnsupportedStore,
)
from logstore.objects import MemoryStore, ObjectInfo
from logstore.objects.protocol import Buffer
from logstore.testing import Fault, FaultyStore
from tests.support.engine.harness import open_store

# Places


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("ftp://host/x", "s3://bucket/prefix"),
        ("s3://", "bucket's name is missing"),
        ("s3://bucket/x?endpoint=http://h", "endpoint_url"),
        ("s3://key:secret@bucket/x", "credentials do not belong"),
        ("s3://bucket/x?endpoint_url=host:9000", "http:// or https://"),
        ("file://host/x", "file:///absolute/path"),
        ("memory://", "needs a name"),
        ("", "no place for objects"),
        (42, "no object store"),
        (None, "no object store"),
        (1.5, "no object store"),
    ],
)
def test_a_place_that_is_none_is_refused_with_what_is_allowed(where: Any, says: str) -> None:
    with pytest.raises(UnsupportedStore, match=says) as caught:
        logstore.open(where)
    assert "secret" not in str(caught.value)


@pytest.mark.s3
@pytest.mark.parametrize("server", ["moto", "seaweedfs"])
@pytest.mark.parametrize("writer", ["exclusive", "read_only"])
def test_a_bucket_that_does_not_exist_is_named(
    server: str, writer: WriterKind, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(server).url(bucket="no-such-bucket")
    with pytest.raises(StoreUnavailable, match="no-such-bucket") as caught:
        logstore.open(url, writer=writer)
    assert not caught.value.retriable, "trying again does not create a bucket"


@pytest.mark.s3
def test_no_permission_is_said(seaweed_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(StoreUnavailable) as caught:
        logstore.open(seaweed_url())
    assert "wrong-secret" not in str(caught.value)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, if the tests run as root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    for above in (tmp_path, *tmp_path.parents):
        if above == Path(tempfile.gettempdir()):
            break
        above.chmod(above.stat().st_mode | 0o555)
    with as_nobody(), pytest.raises(StoreUnavailable, match="write access"):
        logstore.open(str(folder / "store"))
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"sunset")
    for writer in ("exclusive", "read_only"):
        with pytest.raises(UnsupportedStore, match="no log store"):
            logstore.open(str(tmp_path), writer=writer)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnsupportedStore, match="is a file"):
        logstore.open(str(tmp_path / "file"))


def test_read_only_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedStore, match="there is no log store here"):
        logstore.open(str(tmp_path / "new"), writer="read_only")
    assert not (tmp_path / "new").exists()


class Careless(MemoryStore):
    """Takes conditions and ignores one of them, as some S3 servers do."""

    def __init__(self, ignored: str) -> None:
        super().__init__()
        self._ignored = ignored

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if self._ignored == "if_absent":
            return super().put(key, data, if_match=if_match)
        return super().put(key, data, if_absent=if_absent)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("put", range(6))
def test_W04_a_put_that_fails_once_while_a_store_is_opened_is_no_reason_to_refuse_it(
    put: int, fault: Fault
) -> None:
    """Four of a new place's probe, one that makes it a store, and one that every opening tries."""
    objects = FaultyStore(MemoryStore())
    rule = objects.fail("put", skip=put, times=1, with_=fault)
    with open_store(objects) as store:
        assert store.create_topic("t").append(b"x").offset == 0
    assert rule.hits == 1
    objects.fail("put", times=1, with_=fault)
    with open_store(objects) as store:
        assert store.topics() == ["t"]


@pytest.mark.parametrize("ignored", ["if_absent", "if_match"])
def test_a_store_that_ignores_conditions_is_refused_before_anything_is_there(ignored: str) -> None:
    objects = Careless(ignored)
    with pytest.raises(UnsupportedStore, match="overwrote"):
        logstore.open(objects)
    assert list(objects.list("")) == []


def test_a_store_that_begins_to_ignore_conditions_is_refused_too() -> None:
    """A log store that was copied to a server that cannot hold it."""
    sound, objects = MemoryStore(), Careless("if_absent")
    open_store(sound).close()
    for info in sound.list(""):
        objects.put(info.key, sound.get(info.key))
    with pytest.raises(UnsupportedStore, match="ignores conditions"):
        logstore.open(objects)


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ack": "maybe"}, "buffered, local, durable"),
        ({"writer": "none"}, "exclusive, shared, read_only"),
        ({"compression": "rar"}, "zstd"),
        ({"flush_bytes": 0}, "at least 1"),
        ({"flush_interval": -1}, "at least 0"),
        ({"flush_interval": "1s"}, "a number"),
        ({"flush_interval": float("nan")}, "at least 0"),
        ({"max_batch_bytes": 1 << 30}, "max_buffered_bytes"),
        ({"ack": "local"}, "wal_dir"),
        ({"writer": "shared", "ack": "buffered"}, "durable acks only"),
    ],
)
def test_a_bad_setting_says_what_is_allowed(settings: dict[str, Any], says: str) -> None:
    objects = MemoryStore()
    with pytest.raises(ValueError, match=says):
        logstore.open(objects, **settings)
    assert list(objects.list("")) == []


def test_an_unknown_setting_lists_those_that_exist() -> None:
    with pytest.raises(TypeError, match="flush_interval"):
        logstore.open(MemoryStore(), flush_intervall=1.0)  # type: ignore[call-arg]


def test_a_wal_folder_that_cannot_be_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with logstore.open(MemoryStore(), wal_dir=tmp_path / "file" / "wal") as store:
        topic = store.create_topic("t")
        with pytest.raises(UnsupportedStore, match="set wal_dir"):
            topic.append(b"x", ack="local")
    with pytest.raises(ValueError, match="wal_dir=5"):
        logstore.open(MemoryStore(), wal_dir=5)  # type: ignore[arg-type]


def test_what_is_printed_says_what_it_is(tmp_path: Path) -> None:
    with logstore.open(str(tmp_path), writer="shared") as store:
        assert repr(store) == f"Store(LocalStore('{tmp_path}'), writer='shared')"
    assert repr(store).endswith(", closed)")
