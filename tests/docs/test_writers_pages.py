"""The examples of docs/writers.md and docs/upsert.md, run as one script each."""

from __future__ import annotations

import pytest

from tests.support.blocks import ROOT, blocks


@pytest.mark.parametrize("page", ["writers.md", "upsert.md"])
def test_every_example_runs(page: str) -> None:
    code = [block.code for block in blocks(ROOT / "docs" / page) if block.language == "python"]
    assert len(code) >= 2
    exec(compile("\n".join(code), page, "exec"), {})
