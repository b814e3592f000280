"""The house: every module has a room, a room imports only what lies below it, and each foreign library has one place.

`ROOMS` is the architecture, from the ground up: what a room may import is said in one line, and lines name only rooms above
themselves in this list. A new arrow is a new word in this table, and so a decision.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("logstore", "broker_shim", "pyspark_logstore")

GROUND = "errors config format objects layout"
CHAIN = f"{GROUND} engine.host engine.lanes engine.chain"
OPEN = f"{CHAIN} engine.runtime engine.memory"
WRITERS = f"{OPEN} engine.write"
HANDLERS = f"{GROUND} broker.wire broker.net broker.auth broker.settings broker.partitions broker.handlers"

ROOMS: dict[str, str] = {
    # what everything stands on
    "errors": "",
    "format": "",
    "config": "format",
    "objects": "errors",
    "layout": "errors config format objects",
    "process": "errors config format",
    # the engine
    "engine": "",
    "engine.host": "errors objects",
    "engine.lanes": f"{GROUND} engine.host",
    "engine.chain": f"{GROUND} engine.host engine.lanes",
    "engine.runtime": f"{GROUND} process engine.host engine.lanes engine.chain",
    "engine.memory": f"{CHAIN} engine.runtime",
    "engine.read": OPEN,
    "engine.write": f"{OPEN} process",
    "engine.shared": WRITERS,
    "engine.replicated": f"{WRITERS} engine.shared",
    "engine.garbage": CHAIN,
    "engine.maintenance": f"{OPEN} engine.garbage",
    "engine.partition": f"{WRITERS} engine.read engine.shared engine.replicated engine.maintenance",
    "upsert": "errors format engine.partition engine.replicated",
    # columns: another way to read, so below the topic, which imports it when somebody asks for columns
    "arrow": "",
    "arrow.plan": f"{OPEN} engine.read",
    "arrow.scan": f"{CHAIN} arrow.plan upsert",
    "arrow.table": f"{GROUND} arrow.plan arrow.scan",
    # the API
    "topic": f"{GROUND} engine.host engine.memory engine.partition arrow.table",
    "atomic": "errors format engine.memory engine.write engine.partition topic",
    "groups": f"{OPEN} engine.partition topic",
    "store": f"{OPEN} process engine.write engine.garbage engine.maintenance engine.partition topic atomic groups",
    "producer": f"{GROUND} engine.memory engine.shared engine.partition",
    "standby": "engine.partition",
    "writers": "producer standby engine.replicated engine.partition",
    "aio": f"{OPEN} engine.garbage engine.partition topic atomic groups store",
    "testing": "errors config format objects",
    # above the log
    "ingest": "errors config format objects layout engine.host engine.memory engine.partition topic store",
    "logstore": "errors config format objects engine.memory engine.partition topic groups store aio writers testing ingest "
    "upsert",
    # numbers: of money, and of an open store
    "cost": "",
    "metrics": f"{OPEN} engine.write engine.partition store cost logstore",
    "ui": "errors config engine.lanes engine.memory engine.partition topic store cost metrics",
    # tables
    "lake.values": "errors",
    "lake": f"{GROUND} arrow.plan arrow.scan topic lake.values",
    # Spark
    "spark.options": f"{GROUND} arrow.plan arrow.scan",
    "spark.read": f"{GROUND} arrow.plan arrow.scan spark.options",
    "spark.write": f"{OPEN} engine.write engine.shared arrow.plan spark.options",
    "spark": f"{GROUND} arrow.plan lake spark.options spark.read spark.write",
    "pyspark_logstore": "spark",
    # commands
    "cli": f"{OPEN} engine.partition topic groups store ingest lake cost ui logstore",
    # the broker
    "broker": "",
    "broker.wire": "errors",
    "broker.net": "broker.wire",
    "broker.auth": "errors objects layout",
    "broker.settings": "writers store metrics ui broker.wire",
    "broker.partitions": f"{GROUND} engine.memory engine.partition topic store broker.wire broker.net",
    "broker.groups": f"{GROUND} engine.memory broker.wire broker.partitions",
    "broker.transactions": f"{GROUND} engine.memory broker.wire broker.net broker.partitions broker.groups",
    "broker.handlers": "broker.wire broker.net broker.auth",
    "broker.handlers.security": f"{GROUND} broker.wire broker.net broker.auth broker.partitions broker.handlers",
    "broker.handlers.records": f"{HANDLERS} engine.memory",
    "broker.handlers.topics": f"{HANDLERS} topic store broker.groups",
    "broker.handlers.cluster": f"{HANDLERS} topic store broker.handlers.security broker.handlers.topics",
    "broker.handlers.coordinators": f"{HANDLERS} topic broker.groups broker.transactions broker.handlers.records",
    "broker.server": "errors config objects store ui logstore broker.wire broker.net broker.auth broker.settings "
    "broker.partitions broker.groups broker.transactions broker.handlers broker.handlers.security broker.handlers.records "
    "broker.handlers.topics broker.handlers.cluster broker.handlers.coordinators",
    # for the tests of others
    "testing.pytest_plugin": "errors objects store testing logstore broker.settings broker.server",
}
"""Each may import itself, too."""

SPECIAL = {
    "logstore": "logstore",
    "broker_shim": "broker",
    "broker_shim.config": "broker.settings",
    "broker_shim.logs": "broker.settings",
    "broker_shim.metrics": "broker.settings",
    "broker_shim.broker": "broker.server",
    "broker_shim.coordinated": "broker.server",
    "broker_shim.server": "broker.server",
    "broker_shim.__main__": "broker.server",
}
FACADES = {
    "logstore.objects",
    "logstore.aio",
    "logstore.groups",
    "logstore.ingest",
    "logstore.ingest.postgres",
    "logstore.upsert",
    "logstore.testing",
    "logstore.cli",
    "logstore.metrics",
    "logstore.ui",
}
"""Packages whose `__init__` re-exports what is in them. Those of the other rooms hold a docstring."""


@cache
def modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def room_of(module: str) -> str:
    """The longest name in `ROOMS` that the module lies below."""
    if module in SPECIAL:
        return SPECIAL[module]
    parts = module.removeprefix("logstore.").replace("broker_shim.", "broker.").split(".")
    for end in range(len(parts), 0, -1):
        room = ".".join(parts[:end])
        if room in ROOMS and not (end < len(parts) and _must_be_deeper(room)):
            return room
    raise AssertionError(f"{module} has no room: give it one, or its room a line in ROOMS")


def _must_be_deeper(room: str) -> bool:
    """Whether the room is a folder of rooms, in which no module lies by itself."""
    return room in ("engine", "arrow", "broker")


@cache
def imports_of(module: str) -> frozenset[str]:
    """All modules and names that it imports: at its top, inside of functions and for the type checker alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def ours(module: str) -> Iterator[str]:
    """The modules of this repository that it imports."""
    for name in imports_of(module):
        while name and name not in modules():
            name = name.rpartition(".")[0]
        if name:
            yield name


def importers_of(*libraries: str) -> set[str]:
    return {
        module for module in modules() if any(name.split(".")[0] in libraries for name in imports_of(module))
    }


def test_every_module_has_a_room() -> None:
    assert {room_of(module) for module in modules()} <= set(ROOMS)


def test_the_table_itself_points_down() -> None:
    above: set[str] = set()
    for room, below in ROOMS.items():
        assert set(below.split()) <= above, (
            f"{room} may import {set(below.split()) - above}, which come later"
        )
        above.add(room)


def test_arrows_point_down() -> None:
    wrong = [
        f"{module} ({room}) imports {target} ({room_of(target)})"
        for module in modules()
        for room in [room_of(module)]
        for target in ours(module)
        if room_of(target) not in (room, *ROOMS[room].split())
    ]
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_what_a_room_may_import_it_does_import() -> None:
    """A line that allows more than is used would let an arrow in that nobody decided on."""
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module in modules():
        used[room_of(module)].update(room_of(target) for target in ours(module))
    general = set(OPEN.split())
    idle = {
        room: sorted(unused)
        for room, below in ROOMS.items()
        if (unused := set(below.split()) - used[room] - general)
    }
    assert not idle


def test_no_module_imports_itself_over_others() -> None:
    done: set[str] = set()
    under_way: list[str] = []

    def visit(module: str) -> None:
        if module in done:
            return
        if module in under_way:
            pytest.fail(" → ".join([*under_way[under_way.index(module) :], module]))
        under_way.append(module)
        for target in ours(module):
            if target != module and target not in FACADES and target != "logstore":
                visit(target)
        under_way.pop()
        done.add(module)

    for module in modules():
        visit(module)


def test_rooms_say_what_they_are() -> None:
    for name, path in modules().items():
        if path.name == "__init__.py" and name.count("."):
            said = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert said, f"{name} has no docstring"
            if room_of(name) == name.removeprefix("logstore.").replace("broker_shim", "broker"):
                says = "ay import" in said and "alled by" in said
                assert says or name == "logstore.engine", (
                    f"{name}: say what lives here, what it may import and who may call it"
                )


LINES_MAX, FILES_MAX = 500, 16


def test_a_file_holds_one_idea_and_a_room_a_few_files() -> None:
    """Models are left out: each is one protocol, and is read in one sitting."""
    files = [path for package in (*PACKAGES, "tests") for path in (ROOT / package).rglob("*.py")]
    models = ROOT / "tests" / "model"
    for path in files:
        if models not in path.parents:
            lines = path.read_text().count("\n")
            assert lines <= LINES_MAX, f"{path.relative_to(ROOT)} has {lines} lines: it is two ideas"
    for room in {path.parent for path in files} - {models}:
        inside = [path.name for path in room.glob("*.py") if path.name not in ("__init__.py", "conftest.py")]
        assert len(inside) <= FILES_MAX, f"{room.relative_to(ROOT)} has {len(inside)} files: it is two rooms"


def test_each_library_has_one_place() -> None:
    assert importers_of("boto3", "botocore") == {"logstore.objects.homes.s3"}
    assert importers_of("kio", "kafka", "aiokafka", "confluent_kafka") == {"broker_shim.wire.messages"}
    assert importers_of("jwt") == {"broker_shim.auth.oauth"}
    assert all(module.startswith("logstore.spark") for module in importers_of("pyspark", "py4j"))
    assert all(
        module.startswith(("logstore.format.", "logstore.arrow.", "logstore.lake.", "logstore.spark."))
        for module in importers_of("pyarrow")
        - {"logstore.topic"}  # its signatures name types, for the checker alone
    )
    assert importers_of("click", "typer") == {"logstore.cli.terminal.frame"}
    assert importers_of("rich") == {"logstore.cli.terminal.progress"}
    assert importers_of("prometheus_client") == {"logstore.metrics", "logstore.metrics.prometheus"}
    assert all(module.startswith("logstore.metrics") for module in importers_of("opentelemetry"))
    assert importers_of("deltalake") == {"logstore.lake.delta"}
    assert importers_of("pyiceberg") == {"logstore.lake.iceberg"}
    assert importers_of("fastavro") == {"logstore.lake.values.avro"}
    assert importers_of("google") == {"logstore.lake.values.protobuf"}
    assert all(
        module.startswith(("logstore.ingest.postgres.", "logstore.cli.commands.copies.ingest"))
        for module in importers_of("psycopg")
    )


def loaded_by(statement: str, blocked: tuple[str, ...] = ()) -> set[str]:
    code = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_library_alone_is_light() -> None:
    heavy = {
        "pyspark",
        "py4j",
        "pyarrow",
        "pandas",
        "kio",
        "kafka",
        "boto3",
        "botocore",
        "psycopg",
        "asyncio",
        "click",
        "rich",
        "prometheus_client",
        "opentelemetry",
    }
    assert not loaded_by("import logstore") & heavy


def test_columns_need_no_spark() -> None:
    below = sorted(name for name in modules() if name.startswith(("logstore.arrow", "logstore.lake")))
    loaded_by(f"import {', '.join(below)}", blocked=("pyspark", "py4j"))


def test_no_test_imports_from_another_test() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = (node.module or "").split(".")
                assert node.level == 0, f"{path} imports relatively: tests have one root, `tests`"
                assert not any(name.startswith("test_") for name in names), (
                    f"{path} imports from {node.module}"
                )
