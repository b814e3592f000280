"""Homes for the engine's tests: `objects` is quick, `any_home` is also a real S3 server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logstore.objects import LocalStore, MemoryStore, ObjectStore, close_store, open_url
from logstore.testing import ManualClock

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
