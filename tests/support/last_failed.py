"""Which tests failed in the last run: printed, and an error if they are more than an accident explains.

python -m tests.support.last_failed --most 5
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".pytest_cache/v/cache/lastfailed"


def main(cache: Path = CACHE, argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="last_failed")
    parser.add_argument("--most", type=int, required=True)
    most: int = parser.parse_args(argv).most
    if not cache.exists():
        print("The run ended before a test did: nothing to run again.", file=sys.stderr)
        return 1
    failed = sorted(json.loads(cache.read_text()))
    print(f"{len(failed)} failed, and run once more if they are at most {most}:", *failed, sep="\n  ")
    return 0 if 0 < len(failed) <= most else 1


if __name__ == "__main__":
    sys.exit(main())
