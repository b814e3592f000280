"""What the tests of maintenance and of garbage collection share."""

from __future__ import annotations

import pytest

from logstore.objects import fan_out


@pytest.fixture(params=["near", "far"])
def how_far_the_store_is(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From afar objects are read and deleted several at a time."""
    if request.param == "far":
        monkeypatch.setattr(fan_out, "QUICK_S", -1.0)
