"""Clients of others against a broker of ours: `python -m tests.compat [NAME …]`, or `make compat`.

Each is installed below `.compat/`, from PyPI, npm or Maven Central, runs a script of this folder against a broker on a
folder, and says a line for each thing that it did: "ok …" or "failed …". What cannot be installed is skipped, and said. The
end is a table; the exit code is 1 if anything failed.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps
from pathlib import Path

from tests.support.ports import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INSTALLED = ROOT / ".compat"
KAFKA = "4.3.1"
PATIENCE_S = 120.0
STREAMS = ("kafka-streams", "connect-runtime", "connect-file")
# The newest of each that the registry has. The connector goes with a Spark of its own minor release, which may be older
# than the one in .venv.
SPARK = "pyspark==4.2.1"
SPARK_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


class Skipped(Exception):
    """It is not to be had here."""


def run(*command: str, timeout: float = 600.0, cwd: Path = ROOT) -> str:
    """What it printed. An installation that fails is no failure of the broker's."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise Skipped(f"{' '.join(command[:4])} …: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def said(*command: str, timeout: float = 300.0) -> list[str]:
    """The lines of a client's script that say how it went; what ended it, if nothing does."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return [f"failed {Path(command[-1]).name}: no end within {timeout:.0f} s"]
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "failed "))]
    if done.returncode or not lines:
        lines.append(f"failed to the end: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return lines


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Skipped(f"there is no {program}")


def jars(name: str, *artifacts: str) -> Path:
    """With all that they depend on."""
    need("java", "mvn")
    folder = INSTALLED / f"{name}-{KAFKA}"
    if not (folder / "lib").exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
            for group, artifact, version in (
                one.split(":") for one in (*artifacts, "org.slf4j:slf4j-nop:1.7.36")
            )
        )
        (folder / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>compat</groupId>'
            f"<artifactId>{name}</artifactId><version>1</version><dependencies>{wanted}</dependencies></project>"
        )
        run("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=folder)
    return folder / "lib"


def modules(package: str) -> str:
    need("node", "npm")
    folder = INSTALLED / "node"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / package).exists():
        run("npm", "install", "--silent", "--no-audit", "--no-fund", package, cwd=folder)
    return str(folder)


def python_with(package: str, *extras: str) -> str:
    """In an environment of its own: such packages pin clients that the tests have in another version."""
    folder = INSTALLED / package
    wanted = f"{package}[{','.join(extras)}]" if extras else package
    if not (folder / "done").exists():
        run(sys.executable, "-m", "venv", str(folder))
        run(str(folder / "bin" / "pip"), "install", "--quiet", wanted)
        (folder / "done").touch()
    return str(folder / "bin" / "python")


def go_program(name: str, source: Path, module: str) -> str:
    """Built with the newest release of the module that the proxy has, once for each version of the source."""
    need("go")
    folder = INSTALLED / name
    folder.mkdir(parents=True, exist_ok=True)
    program, built_from = folder / name, folder / "main.go"
    if not program.exists() or built_from.read_bytes() != source.read_bytes():
        shutil.copyfile(source, built_from)
        if not (folder / "go.mod").exists():
            run("go", "mod", "init", name, cwd=folder)
            run("go", "get", f"{module}@latest", cwd=folder)
        run("go", "mod", "tidy", cwd=folder)
        run("go", "build", "-o", name, ".", cwd=folder)
    return str(program)


def java_client(address: str, folder: Path) -> list[str]:
    lib = jars("clients", f"org.apache.kafka:kafka-clients:{KAFKA}")
    return said("java", "-cp", f"{lib}/*", str(HERE / "Compat.java"), address)


def java_admin(address: str, folder: Path) -> list[str]:
    """Every call that its admin client has."""
    lib = jars("clients", f"org.apache.kafka:kafka-clients:{KAFKA}")
    return said("java", "-cp", f"{lib}/*", str(HERE / "AdminCalls.java"), address)


def kafka_streams(address: str, folder: Path) -> list[str]:
    lib = jars("streams", *(f"org.apache.kafka:{one}:{KAFKA}" for one in STREAMS))
    return said("java", "-cp", f"{lib}/*", str(HERE / "Streams.java"), address, str(folder))


def kafka_connect(address: str, folder: Path) -> list[str]:
    """A file goes through a topic into another file; the worker ends in the middle, and a second one goes on."""
    lib = jars("streams", *(f"org.apache.kafka:{one}:{KAFKA}" for one in STREAMS))
    port, source, sink = free_port(), folder / "in.txt", folder / "out.txt"
    rest = f"http://127.0.0.1:{port}/connectors"
    settings = {
        "bootstrap.servers": address,
        "group.id": "connect",
        "listeners": f"http://127.0.0.1:{port}",
        "offset.flush.interval.ms": "500",
        **{
            f"{kind}.converter": "org.apache.kafka.connect.storage.StringConverter"
            for kind in ("key", "value")
        },
        **{f"{kind}.storage.topic": f"connect-{kind}" for kind in ("config", "offset", "status")},
        **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
    }
    (folder / "worker.properties").write_text(
        "".join(f"{name}={value}\n" for name, value in settings.items())
    )
    worker = (
        "java",
        "-cp",
        f"{lib}/*",
        "org.apache.kafka.connect.cli.ConnectDistributed",
        "worker.properties",
    )
    lines: list[str] = []
    for turn, connectors in enumerate((("Source", "Sink"), ())):
        with source.open("a") as out:
            out.writelines(f"line {number}\n" for number in range(500 * turn, 500 * turn + 500))
        with running(*worker, cwd=folder, log=folder / f"worker-{turn}.log"):
            until(lambda: asked(rest))
            for kind in connectors:
                config = {
                    "connector.class": f"org.apache.kafka.connect.file.FileStream{kind}Connector",
                    "file": str(source if kind == "Source" else sink),
                    "topic" if kind == "Source" else "topics": "connect-lines",
                    "tasks.max": "1",
                }
                assert asked(rest, dumps({"name": kind, "config": config}).encode()), "it takes no connector"
            came = until(lambda: sink.exists() and sink.read_bytes() == source.read_bytes())
        name = f"distributed, a file source and a file sink, worker {turn + 1}"
        found = len(sink.read_text().splitlines()) if sink.exists() else 0
        lines.append(f"ok {name}" if came else f"failed {name}: {found} lines came")
    return lines


def kafkajs(address: str, folder: Path) -> list[str]:
    return said("node", str(HERE / "kafkajs.mjs"), address, modules("kafkajs"))


def platformatic(address: str, folder: Path) -> list[str]:
    return said("node", str(HERE / "platformatic.mjs"), address, modules("@platformatic/kafka"))


def quix(address: str, folder: Path) -> list[str]:
    python = python_with("quixstreams")
    script = str(HERE / "quix_counts.py")
    return [line for how in ("at-least-once", "exactly-once") for line in said(python, script, address, how)]


def faust(address: str, folder: Path) -> list[str]:
    python = python_with("faust-streaming")
    script = str(HERE / "faust_counts.py")
    return [line for life in ("1", "2") for line in said(python, script, address, life)]


def bytewax(address: str, folder: Path) -> list[str]:
    return said(python_with("bytewax", "kafka"), str(HERE / "bytewax_lines.py"), address)


def faststream(address: str, folder: Path) -> list[str]:
    python = python_with("faststream", "kafka", "confluent")
    script = str(HERE / "faststream_echo.py")
    return [line for client in ("aiokafka", "confluent") for line in said(python, script, address, client)]


def spark_connector(address: str, folder: Path) -> list[str]:
    need("java", "mvn")
    lib = INSTALLED / "spark"
    for artifact in SPARK_JARS:
        if not list(lib.glob(f"{artifact.split(':')[1]}-*.jar")):
            run("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={lib}")
    names = ",".join(str(jar) for jar in sorted(lib.glob("*.jar")))
    python = python_with(SPARK)
    return said(python, str(HERE / "spark_kafka.py"), address, str(folder), names)


CLIENTS: dict[str, Callable[[str, Path], list[str]]] = {
    "java": java_client,
    "java-admin": java_admin,
    "streams": kafka_streams,
    "connect": kafka_connect,
    "spark": spark_connector,
    "kafkajs": kafkajs,
    "platformatic": platformatic,
    "quix": quix,
    "faust": faust,
    "bytewax": bytewax,
    "faststream": faststream,
}


def until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def asked(url: str, body: bytes | None = None) -> bool:
    """Whether a server answered that it is so."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def running(*command: str, cwd: Path, log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_S)


def tried(name: str) -> list[str]:
    """What a client says of a broker of its own: "ok …", "failed …", or why it was "SKIPPED …"."""
    with tempfile.TemporaryDirectory(prefix="compat-") as made:
        folder, port = Path(made), free_port()
        address = f"127.0.0.1:{port}"
        broker = (
            sys.executable,
            "-m",
            "broker_shim",
            "--store",
            f"file://{folder}/store",
            "--listen",
            address,
        )
        with running(*broker, "--log-level", "warning", cwd=ROOT, log=folder / "broker.log"):
            assert until(lambda: listens(port)), "the broker does not come up"
            try:
                return CLIENTS[name](address, folder)
            except Skipped as why:
                return [f"SKIPPED {why}"]


def main(names: list[str]) -> int:
    unknown = set(names) - set(CLIENTS)
    if unknown:
        print(f"there is no {', '.join(sorted(unknown))}: {', '.join(CLIENTS)}", file=sys.stderr)
        return 2
    rows: list[tuple[str, str]] = []
    for name in names or list(CLIENTS):
        lines = tried(name)
        print(f"{name}:", *lines, sep="\n  ", flush=True)
        rows += [(name, line) for line in lines]
    counts = {kind: sum(line.startswith(kind) for _, line in rows) for kind in ("ok", "failed", "SKIPPED")}
    print(f"{counts['ok']} passed, {counts['failed']} failed, {counts['SKIPPED']} skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
