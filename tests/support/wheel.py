"""The wheel of this checkout, built from a copy: the build leaves nothing here and finds nothing that was built here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.blocks import ROOT

SOURCES = (
    "logstore",
    "broker_shim",
    "pyspark_logstore",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
)


def build_wheel(folder: Path) -> Path:
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", "dist", str(source)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = (folder / "dist").glob("embedded_logstore-*.whl")
    return wheel
