"""Resident memory through an outage of ten simulated minutes at full load: within the limits, and flat.

Measured by the kernel (VmHWM, VmRSS of /proc) in a process of its own; `benchmarks/outage.py` is what runs there. Records
come in lists of 1,000, and one by one, which is the dearest way to hold 100 bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import Figures

SUITE = "memory"
ROOT = Path(__file__).parents[1]
MIB = 1 << 20
BUFFER, CACHE = 64 * MIB, 32 * MIB
ALLOWANCE_MIB = 60
FLAT_MIB = 4


@pytest.mark.parametrize("kind", ["bulk", "single"])
def test_ten_minutes_of_outage(kind: str, tmp_path: Path, figures: Figures, quick: bool) -> None:
    if quick and kind == "single":
        pytest.skip("half a million single appends: in the full run alone")
    minutes = 3 if quick else 10
    arguments = [kind, str(tmp_path / "store"), str(BUFFER), str(CACHE), str(minutes)]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.outage", *arguments],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=110,
    )
    found: dict[str, Any] = json.loads(ended.stdout)
    assert BUFFER * 0.95 < found["buffered_max"] <= BUFFER, "the outage never met the limit"
    assert found["cached"] > CACHE * 0.6, "the cache was not full"
    assert found["refused_puts"] > 0
    assert found["refused_appends"] >= minutes * 60
    resident = found["resident_mib"]
    how = "lists of 1,000" if kind == "bulk" else "one by one"
    figures.add(
        SUITE,
        f"peak beyond buffer and cache limits, {how}",
        found["peak_mib"] - (BUFFER + CACHE) / MIB,
        "MiB",
        target=ALLOWANCE_MIB,
        lower_is_better=True,
        peak_MiB=round(found["peak_mib"], 1),
        acked_records=found["acked_records"],
        refused_appends=found["refused_appends"],
    )
    figures.add(
        SUITE,
        f"growth from the first to the last minute of the outage, {how}",
        max(resident[2:]) - resident[1],
        "MiB",
        target=FLAT_MIB,
        lower_is_better=True,
        limit_MiB=(BUFFER + CACHE) / MIB + ALLOWANCE_MIB,
        resident_MiB_by_minute=[round(mib, 1) for mib in resident],
    )
