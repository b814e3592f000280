"""A partition's state owns its lock and its fields: nobody outside of `engine/memory` takes the one or assigns the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.engine.memory.partition_state import Marks
from logstore.objects.homes.memory import MemoryStore
from tests.support.engine.harness import open_store

ROOT = Path(__file__).parents[3]
MEMORY = ROOT / "logstore" / "engine" / "memory"
LIFECYCLE = ROOT / "logstore" / "engine" / "write" / "lifecycle.py"


def sources() -> Iterator[Path]:
    for package in ("logstore", "broker_shim", "pyspark_logstore"):
        yield from (path for path in sorted((ROOT / package).rglob("*.py")) if MEMORY not in path.parents)


def is_state(node: ast.expr) -> bool:
    """`state`, `self._state`, `log._state`: what a partition's state is called everywhere."""
    return (isinstance(node, ast.Name) and node.id == "state") or (
        isinstance(node, ast.Attribute) and node.attr == "_state"
    )


def trespasses(tree: ast.AST) -> Iterator[str]:
    """Where a state's field is assigned, or something of it is used that is its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_state(node.value):
            if not isinstance(node.ctx, ast.Load):
                yield f"line {node.lineno} assigns {node.attr}"
            elif node.attr in ("lock", "moved") or node.attr.startswith("_"):
                yield f"line {node.lineno} uses {node.attr}"


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("state.durable = 3", 1),
        ("self._state.window = state.buffer = None", 2),
        ("state.low += 1", 1),
        ("with self._state._lock: pass", 1),
        ("low = state.low", 0),
        ("self._state = state", 0),
    ],
)
def test_a_trespass_is_seen(line: str, count: int) -> None:
    assert len(list(trespasses(ast.parse(line)))) == count


def test_nobody_outside_assigns_a_field_or_takes_the_lock() -> None:
    found = {
        path: list(trespasses(ast.parse(path.read_text())))
        for path in sources()
        if path.is_relative_to(ROOT / "logstore" / "engine")
    }
    assert {str(path): lines for path, lines in found.items() if lines} == {}


def test_the_lock_is_given_to_the_writers_life_cycle_and_to_nobody_else() -> None:
    assert [path for path in sources() if "writers_lock()" in path.read_text()] == [LIFECYCLE]


def test_marks_are_one_look() -> None:
    with open_store(MemoryStore(), flush_interval=3600.0) as store:
        log = store.create_topic("t").partition(0)
        log.append([b"a", b"b"], ack="durable")
        log.append(b"c", ack="buffered")
        assert log._internal.state.marks() == Marks(low=0, durable=2, buffered=3)
