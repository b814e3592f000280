"""An install without a compiler goes on without the C kernels, and says what that costs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 120


def test_a_build_without_a_compiler_succeeds_and_says_what_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="a build brings its own; beside the tests it may be missing")
    source = "logstore/format/_speed.c"
    (tmp_path / source).parent.mkdir(parents=True)
    shutil.copy(ROOT / source, tmp_path / source)
    shutil.copy(ROOT / "setup.py", tmp_path / "setup.py")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "built", "--build-temp", "temporary"],
        cwd=tmp_path,
        env={**os.environ, "CC": "/bin/false"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "NOT built" in done.stderr
    assert "twice as much for appends" in done.stderr
    assert not list(tmp_path.rglob("*.so"))
