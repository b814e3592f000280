"""What lies in the folder of a local store beside the objects."""

from __future__ import annotations

from pathlib import Path


def temporary_files(root: Path) -> list[Path]:
    return list((root / ".logstore" / "tmp").iterdir())
