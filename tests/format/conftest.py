"""Every test of the record format runs over each way of reading and writing it."""

from __future__ import annotations

import pytest

from logstore.format import kernels
from logstore.format.plain import encode

ONLY_LOOPS, ONLY_COLUMNS = 10_000, 1

WAYS = {
    "loops": (kernels.PLAIN, ONLY_LOOPS),
    "columns": (kernels.PLAIN, ONLY_COLUMNS),
    **{one.name: (one, None) for one in kernels.ALL if one is not kernels.PLAIN},
}


@pytest.fixture(params=WAYS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Plain Python has two ways, chosen by the number of records; here each of them takes every batch."""
    active, threshold = WAYS[request.param]
    monkeypatch.setattr(kernels, "active", active)
    if threshold is not None:
        monkeypatch.setattr(encode, "COLUMN_WISE_FROM", threshold)
        monkeypatch.setattr(kernels, "ARRAYS_FROM", threshold)
    way: str = request.param
    return way
