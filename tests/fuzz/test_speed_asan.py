"""The C kernels under AddressSanitizer, for a few seconds; `fuzz_speed.py` runs as long as you like."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import fuzz_speed

# One bound check less: the reader of varints no longer looks where its record ends.
BROKEN = {"p < end && *p < 0x80": "*p < 0x80", "if (p == end)": "if (0)"}


@pytest.fixture
def compiler() -> str:
    if (found := shutil.which("gcc")) is None:
        pytest.skip("no gcc: the C kernels are not built here either")
    return found


def fuzz(folder: Path, source: Path, compiler: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, fuzz_speed.__file__, "--seconds", str(seconds), "--seed", "1"],
        env=fuzz_speed.build(str(folder), source, compiler),
        capture_output=True,
        text=True,
        check=False,
    )


def test_L20_damaged_areas_find_no_fault_in_the_c_kernels(tmp_path: Path, compiler: str) -> None:
    done = fuzz(tmp_path, fuzz_speed.SOURCE, compiler, seconds=6)
    assert done.returncode == 0, done.stderr
    assert "nothing found" in done.stdout


def test_the_fuzzer_finds_a_bound_that_is_not_checked(tmp_path: Path, compiler: str) -> None:
    source = fuzz_speed.SOURCE.read_text()
    for good, bad in BROKEN.items():
        assert good in source
        source = source.replace(good, bad)
    broken = tmp_path / "_speed.c"
    broken.write_text(source)
    done = fuzz(tmp_path, broken, compiler, seconds=30)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
