"""What the tests of lanes share."""

from __future__ import annotations

import pytest

from logstore.engine.write.lanes import lane_checkpoints


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and splits after a few entries."""
    monkeypatch.setattr(lane_checkpoints, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(lane_checkpoints, "SPLIT_EVERY", 6)
