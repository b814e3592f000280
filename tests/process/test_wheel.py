"""What `pip wheel .` gives: everything that the packages need, and the C kernels for this Python."""

from __future__ import annotations

import importlib.machinery
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import logstore
from tests.support.wheel import build_wheel

FIRST_STEPS = """
import sys
sys.path.insert(0, sys.argv[1])
import logstore
assert logstore.__file__.startswith(sys.argv[1]), logstore.__file__
with logstore.open("memory://wheel") as store:
    print(store.create_topic("t").append(b"hello").offset, logstore.__version__)
from logstore.cli import main
main(["--version"])
"""


@pytest.mark.skipif(
    shutil.which("cc") is None, reason="a C compiler is not here, and the wheel would have no kernels"
)
def test_a_wheel_has_the_kernels_and_all_that_is_no_code(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    expected = {
        f"logstore/format/_speed{suffix}",
        "logstore/py.typed",
        "logstore/ui/page.html",
        "broker_shim/py.typed",
        "pyspark_logstore/__init__.py",
    }
    assert expected <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEPS, str(installed)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines() == [
        f"0 {logstore.__version__}",
        f"logstore {logstore.__version__} (with C kernels)",
    ], done.stderr
