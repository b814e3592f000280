"""The field's words: private ones that the glossary has replaced do not come back, in names, prose or messages."""

from __future__ import annotations

import re
import subprocess

from tests.support.blocks import ROOT

RETIRED = {
    "anew": "again, recreated",
    "dice": "rng",
    "era": "epoch",
    "hears": "is told, learns",
    "leave_to_parent": "after_fork_in_child",
    "sift": "deduplicate",
    "tiers": "partition state",
    "wish": "pending append",
    "wishes": "pending appends",
}
MAY_SAY = {
    "docs/decisions/0013-the-winner-commits-for-all.md": {"wishes"},  # what was there before
    "docs/decisions/0017-keyless-appends-go-in-turn.md": {"wish"},  # somebody's
    "logstore/layout/catalog.py": {"anew"},  # a key in stored objects
}


def test_retired_words_do_not_come_back() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "logstore", "broker_shim", "docs", "benchmarks", "examples", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [
        f"{name}: {word!r}; say {RETIRED[word]}"
        for name in listed.stdout.split()
        if name.endswith((".py", ".md", ".toml")) and (ROOT / name).exists()
        for word in sorted(set(re.findall(r"[a-z]+(?:_to_parent)?", (ROOT / name).read_text().lower())))
        if word in RETIRED and word not in MAY_SAY.get(name, ())
    ]
    assert not found, "\n".join(found)
