"""The store that the commands of a test are about."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where `LOGSTORE_URL` says that the store is; nothing is there yet."""
    where = str(tmp_path / "store")
    monkeypatch.setenv("LOGSTORE_URL", where)
    return where
