"""Every code block of the README and of the pages about the log itself is run, as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.blocks import PROSE, ROOT, RUNNABLE, blocks, name_of, pages
from tests.support.patience import PATIENCE_S

# Run by tests that know what these need: a Spark session, a database, a broker.
ELSEWHERE = ("broker.md", "ingest.md", "spark.md", "upsert.md", "writers.md")
_PAGES = [page for page in pages() if page.name not in ELSEWHERE]


def _with(language: str) -> list[Path]:
    return [page for page in _PAGES if any(block.language == language for block in blocks(page))]


@pytest.mark.parametrize("page", _with("python"), ids=name_of)
def test_python_blocks_run_in_order(page: Path, tmp_path: Path) -> None:
    """All Python blocks of a page form one script: later ones use the names of earlier ones."""
    code = "".join(
        f"# line {block.line}\n{block.code}\n" for block in blocks(page) if block.language == "python"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", _with("console"), ids=name_of)
def test_console_blocks_run_and_print_what_they_show(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.language != "console":
            continue
        lines = block.code.splitlines()
        script = "set -euo pipefail\n" + "\n".join(line[2:] for line in lines if line.startswith("$ "))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        for shown in (line for line in lines if line and not line.startswith("$ ")):
            assert shown in done.stdout.splitlines()


def test_make_targets_that_the_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in pages():
        named = re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE)
        assert set(named) <= targets, f"{name_of(page)} names a make target that does not exist"


def test_every_block_is_of_a_kind_that_is_run_or_is_no_code() -> None:
    for page in pages():
        for block in blocks(page):
            assert block.language in RUNNABLE + PROSE, (
                f"{page.name}:{block.line}: a block of {block.language!r}"
            )


def test_links_between_pages_lead_somewhere() -> None:
    for page in pages():
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), (
                f"{page.name} links to {target}, which is not there"
            )


def test_the_guarantee_stands_word_for_word_in_the_readme_and_in_the_package() -> None:
    import logstore

    def squeeze(text: str) -> str:
        return " ".join(text.replace(">", " ").split())

    sentence = (
        "An acknowledged record is readable at once, is never silently lost, never changes its offset, and its ack says "
        "exactly how durable it is"
    )
    assert sentence in squeeze((ROOT / "README.md").read_text())
    assert sentence in squeeze(logstore.__doc__ or "")
