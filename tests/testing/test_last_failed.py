"""CI runs what failed once more, and no more than that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.last_failed import main


@pytest.mark.parametrize(("failed", "code"), [(0, 1), (1, 0), (5, 0), (6, 1)])
def test_a_few_failures_are_run_again_and_many_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failed: int, code: int
) -> None:
    cache = tmp_path / "lastfailed"
    cache.write_text(json.dumps({f"tests/test_a.py::test_{n}": True for n in range(failed)}))
    assert main(cache, ["--most", "5"]) == code
    said = capsys.readouterr().out
    assert all(f"tests/test_a.py::test_{n}" in said for n in range(failed))


def test_a_run_that_never_came_to_a_test_is_not_run_again(tmp_path: Path) -> None:
    assert main(tmp_path / "lastfailed", ["--most", "5"]) == 1
