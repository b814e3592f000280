"""One PostgreSQL for the session; a database of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.ingest.pg_server import PostgresServer, fresh_database, postgres_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def dsn(postgres: PostgresServer) -> Iterator[str]:
    with fresh_database(postgres, f"test{next(_numbers)}") as database:
        yield database
