"""How much a look at a small local store imports: time cannot be tested on a loaded machine, what takes it can."""

from __future__ import annotations

import json
import subprocess
import sys

import logstore
from tests.support.patience import PATIENCE_S

LOOK = """
import sys
from logstore.cli import main
assert main(["topics"]) == 0
import json
print(json.dumps(sorted(sys.modules)))
"""
MODULES_MAX = 100
HEAVY = {"numpy", "rich", "boto3", "botocore", "pyarrow", "asyncio", "prometheus_client", "opentelemetry"}
HEAVY |= {"importlib.metadata", "email", "zipfile", "socket"}  # what crc32c brings in by its front door


def modules_after(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return set(found)


def test_O03_a_look_at_a_local_store_imports_no_numpy_no_writer_and_nothing_for_terminals(url: str) -> None:
    with logstore.open(url) as store:
        store.create_topic("orders", 2).append(b"x")
    imported = modules_after(LOOK)
    assert imported & HEAVY == set()
    ours = {name for name in imported if name.startswith("logstore")}
    assert "logstore.engine.chain.chain" in ours, "it did look"
    assert [
        name for name in ours if name.startswith(("logstore.engine.write", "logstore.engine.shared"))
    ] == []
    assert len(ours) <= MODULES_MAX


def test_importing_the_package_imports_what_is_used_of_it_when_it_is_used() -> None:
    bare = modules_after("import sys, json, logstore; print(json.dumps(sorted(sys.modules)))")
    assert bare & HEAVY == set()
    assert "logstore.store" not in bare
    opened = modules_after(
        "import sys, json, logstore; logstore.open; print(json.dumps(sorted(sys.modules)))"
    )
    assert "logstore.store" in opened
