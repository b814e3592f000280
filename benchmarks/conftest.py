"""What all suites share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import cast, get_args

import pytest

from benchmarks.measure import Edition, Figures

EDITION = cast(Edition, os.environ.get("BENCH_EDITION", "full"))
if EDITION not in get_args(Edition):
    raise pytest.UsageError(f"BENCH_EDITION={EDITION}: there are {', '.join(get_args(Edition))}")
_BUSY = "while True: pass"


@contextmanager
def _neighbour() -> Iterator[None]:
    """A process for each core, all in one session of their own: Linux divides a core among sessions first (autogroup), so
    that half of it is left for us, whether what is measured has one thread or six."""
    each = f"for core in {' '.join(map(str, os.sched_getaffinity(0)))}; do '{sys.executable}' -c '{_BUSY}' & done; wait"
    with subprocess.Popen(["/bin/sh", "-c", each], start_new_session=True) as session:
        try:
            yield
        finally:
            os.killpg(session.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def figures() -> Iterator[Figures]:
    with _neighbour() if EDITION == "loaded" else nullcontext():
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
