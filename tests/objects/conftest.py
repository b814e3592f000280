"""`store`: each home of objects in turn, empty. One suite for all of them is what makes them one protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.objects import LocalStore, MemoryStore, ObjectStore, close_store, open_url

HOMES = (
    "memory",
    "local",
    pytest.param("moto", marks=pytest.mark.s3),
    pytest.param("seaweedfs", marks=pytest.mark.s3),
)


@pytest.fixture(params=HOMES)
def home(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(home: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if home == "memory":
        made: ObjectStore = MemoryStore()
    elif home == "local":
        made = LocalStore(tmp_path / "store")
    else:
        made = open_url(request.getfixturevalue(home).url())
    yield made
    close_store(made)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder for objects that does not exist yet, and neither does the one that it is in."""
    return tmp_path / "deep" / "root"
