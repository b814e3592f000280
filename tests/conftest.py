"""Fixtures that every test may use: S3 servers that start once for the session, and URLs on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

import logstore
from logstore.engine.maintenance import checkpoint
from logstore.objects import LocalStore, MemoryStore, ObjectStore, close_store, open_url
from logstore.testing import ManualClock
from tests.support.descriptor_guard import DescriptorGuard
from tests.support.engine import harness
from tests.support.servers import Server, export_credentials, moto_server, seaweedfs_server

export_credentials()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer | None) -> ByFile:
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """With several workers (`make test`) a file stays on one of them, and so does all that needs a JVM: else each worker
    would start servers and clusters of its own. (`--dist=loadgroup` is meant for this; with pytest 9.2 it groups nothing.)
    """

    def __init__(self, config: pytest.Config, log: Producer | None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # in the order of the collection, which is below

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if "spark" in Path(file).parts else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest piece begins first: the other worker does the rest meanwhile."""
    items.sort(key=lambda item: "spark" not in item.path.parts)


@pytest.fixture(scope="session")
def _descriptor_guard() -> Iterator[DescriptorGuard]:
    guard = DescriptorGuard()
    with pytest.MonkeyPatch.context() as patch:
        guard.install(patch)
        yield guard


@pytest.fixture(autouse=True)
def descriptors(_descriptor_guard: DescriptorGuard) -> Iterator[DescriptorGuard]:
    """C08: fails the test in which a descriptor is closed twice, or one that is not ours is touched."""
    _descriptor_guard.misuse.clear()
    yield _descriptor_guard
    assert _descriptor_guard.misuse == []


@pytest.fixture(scope="session")
def moto() -> Iterator[Server]:
    """moto in this process, with atomic conditions."""
    with moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[Server]:
    """A real S3 server; starting it takes some seconds, once."""
    with seaweedfs_server() as server:
        yield server


@pytest.fixture
def moto_url(moto: Server) -> Callable[[], str]:
    """Call it for a URL with a prefix of its own."""
    return moto.url


@pytest.fixture
def seaweed_url(seaweedfs: Server) -> Callable[[], str]:
    """Call it for a URL with a prefix of its own."""
    return seaweedfs.url


_S3 = [pytest.param(name, marks=pytest.mark.s3) for name in ("moto", "seaweedfs")]


def _open_home(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if name == "memory":
        return MemoryStore()
    if name == "local":
        return LocalStore(tmp_path / "objects")
    return open_url(request.getfixturevalue(name).url())


@pytest.fixture(params=["memory", "local"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    home = _open_home(request.param, request, tmp_path)
    yield home
    close_store(home)


@pytest.fixture(params=["memory", "local", *_S3])
def any_home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """For promises about durability: they must hold wherever the objects are."""
    home = _open_home(request.param, request, tmp_path)
    yield home
    close_store(home)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def wal_dir(tmp_path: Path) -> Callable[[], str]:
    """Call it for a folder for local acks."""
    made = iter(range(1000))
    return lambda: str(tmp_path / f"wal-{next(made)}")


@pytest.fixture
def where(tmp_path: Path) -> str:
    """The URL of a log store on local disk that does not exist yet."""
    return (tmp_path / "log").as_uri()


@pytest.fixture
def make_log(where: str) -> Callable[..., str]:
    """`make_log("orders", [segments of partition 0], …)`: each segment is a list of records, committed as one."""

    def make(topic: str, *partitions: list[list[logstore.Record]], **settings: Any) -> str:
        with logstore.open(where, **settings) as store:
            made = store.create_topic(topic, partitions=len(partitions), exist_ok=True)
            for number, segments in enumerate(partitions):
                for records in segments:
                    made.partition(number).append(records)
        return where

    return make


@pytest.fixture
def stores() -> Iterator[list[logstore.Store]]:
    """What a test appends to it is closed at the end, whatever became of it."""
    opened: list[logstore.Store] = []
    yield opened
    for store in opened:
        with suppress(logstore.OutcomeUnknown):  # what a test left unstored on purpose
            store.close(timeout=0.1)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A writer that stops says so in the log. For tests in which thousands do, as planned."""
    caplog.set_level(logging.CRITICAL)


@pytest.fixture
def no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance runs where the test says, so that the same seed gives the same run."""
    monkeypatch.setattr(checkpoint, "EVERY_SEGMENTS", 1 << 30)
    monkeypatch.setattr(checkpoint, "EVERY_PARTS", 1 << 30)
    monkeypatch.setattr(checkpoint, "LANES_MAX", 1 << 30)


@pytest.fixture
def own_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclusive writers commit to their partitions' own chains, as those of stores from before lanes do: for tests that look
    at the segments there, at their places and at what is left in them."""
    monkeypatch.setitem(harness.DEFAULTS, "lanes", 0)


@pytest.fixture(params=["lane", "own chain"])
def lane_or_chain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with the writers that commit to a lane, which is the default, once with shared ones."""
    if request.param == "own chain":
        monkeypatch.setitem(harness.DEFAULTS, "writer", "shared")


@pytest.fixture
def begin_in_own_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """New topics begin in chains of their own, as those of releases before did, and of stores without lanes: their writers
    go on in a lane, behind a fence in the partition's chain."""
    monkeypatch.setattr(logstore.store, "BORN_IN_LANE", "")
