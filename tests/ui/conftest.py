"""A real browser: Debian's chromium, driven by playwright. Where there is none, the tests skip, loudly."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="THE PAGE WAS NOT TESTED IN A BROWSER: playwright is not installed"
    )
    if CHROMIUM is None:
        pytest.skip("THE PAGE WAS NOT TESTED IN A BROWSER: there is no chromium")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where pictures go: into the docs if `SCREENSHOTS=1`, else nowhere that stays."""
    return Path(__file__).parents[2] / "docs" if os.environ.get("SCREENSHOTS") == "1" else tmp_path
