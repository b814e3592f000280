"""What all suites share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.measure import Figures

QUICK = os.environ.get("BENCH_QUICK") == "1"


@pytest.fixture(scope="session")
def figures() -> Figures:
    return Figures(quick=QUICK)


@pytest.fixture(scope="module", autouse=True)
def _written_after_each_suite(figures: Figures) -> Iterator[None]:
    """So that a run which is cut short keeps what it has found."""
    yield
    figures.write()


@pytest.fixture(scope="session")
def quick() -> bool:
    """`make bench-quick`: smaller, fewer turns, the same checks."""
    return QUICK


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
