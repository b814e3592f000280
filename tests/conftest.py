"""Fixtures that every test may use: S3 servers that start once for the session, and URLs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import Server, export_credentials, moto_server, seaweedfs_server

export_credentials()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers (`make test`) a file stays on one of them, and so does all that needs a JVM. That is the longest
    piece, so it begins first: the other worker does the rest meanwhile."""
    for item in items:
        place = item.path.relative_to(Path(__file__).parent).parts
        item.add_marker(pytest.mark.xdist_group("spark" if place[0] == "spark" else "/".join(place)))
    items.sort(key=lambda item: "spark" not in item.path.parts)


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
