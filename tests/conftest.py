"""Fixtures that every test may use: S3 servers that start once for the session, and URLs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from servers import Server, export_credentials, moto_server, seaweedfs_server

export_credentials()


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
