"""A flame graph of one workload, as SVG: `make profile WHAT=append`.

    python -m benchmarks.profile append [--seconds 10] [--native]

py-spy looks at the process from outside, so what it shows is what runs, threads and C code (`--native`) included. The time a
thread waits is left out.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.workloads import WORKLOADS

PROFILES = Path(__file__).parent / ".results" / "profiles"


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw a flame graph of a workload.")
    parser.add_argument("what", choices=sorted(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--native", action="store_true", help="with the frames of C code")
    arguments = parser.parse_args()
    beside = Path(sys.executable).with_name("py-spy")
    spy = str(beside) if beside.exists() else shutil.which("py-spy")
    if spy is None:
        print("py-spy is not installed: pip install py-spy", file=sys.stderr)
        return 2
    PROFILES.mkdir(parents=True, exist_ok=True)
    out = PROFILES / f"{arguments.what}.svg"
    workload = [sys.executable, "-m", "benchmarks.workloads", arguments.what, str(arguments.seconds)]
    options = [
        "--output",
        str(out),
        "--rate",
        "500",
        "--threads",
        *(["--native"] if arguments.native else []),
    ]
    ended = subprocess.run([spy, "record", *options, "--", *workload])
    if ended.returncode == 0:
        print(f"wrote {out}")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
