"""What all suites share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast, get_args

import pytest

from benchmarks.measure import Edition, Figures

EDITION = cast(Edition, os.environ.get("BENCH_EDITION", "full"))
if EDITION not in get_args(Edition):
    raise pytest.UsageError(f"BENCH_EDITION={EDITION}: there are {', '.join(get_args(Edition))}")
_BUSY = "while True: pass"


@pytest.fixture(scope="session")
def figures() -> Iterator[Figures]:
    with ExitStack() as load:
        for _ in range(os.cpu_count() or 1) if EDITION == "loaded" else ():
            other = load.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY]))
            load.callback(other.kill)
        yield Figures(EDITION)


@pytest.fixture(scope="module", autouse=True)
def _written_after_each_suite(figures: Figures) -> Iterator[None]:
    """So that a run which is cut short keeps what it has found."""
    yield
    figures.write()


@pytest.fixture(scope="session")
def quick() -> bool:
    """`make bench-quick`: smaller, fewer turns, the same checks."""
    return EDITION == "quick"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
