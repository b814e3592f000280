"""The commands at the top of the page about the broker: started as they are there, on a folder and a free port."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import logstore
from broker_shim.wire.apis import Api
from tests.support.blocks import ROOT, blocks
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port


def test_the_table_of_apis_is_what_is_served() -> None:
    text = (ROOT / "docs" / "broker.md").read_text()
    table = text[text.index("| APIs and their versions |") :].split("\n\n")[0]
    found = re.findall(r"([A-Z][A-Za-z]+) (\d+)(?:–(\d+))?", table)
    documented = {name: (int(low), int(high or low)) for name, low, high in found}
    served = {"".join(part.title() for part in api.name.split("_")): (api.low, api.high) for api in Api}
    assert documented == served


_COMMANDS = [block for block in blocks(ROOT / "docs" / "broker.md") if block.language == "sh"]


def test_the_broker_starts_and_a_client_produces(tmp_path: Path) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed here (Debian: apt-get install kcat)")
    serve, produce = _COMMANDS[0].code.splitlines()
    address, store = f"127.0.0.1:{free_port()}", str(tmp_path / "store")
    serve = serve.replace("s3://bucket/prefix", store).replace("127.0.0.1:9092", address)
    produce = produce.replace("127.0.0.1:9092", address)
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    broker = subprocess.Popen(
        ["bash", "-c", f"exec {serve}"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert broker.stdout is not None, "asked for a pipe"
        assert address in broker.stdout.readline()  # it says where it listens once it does
        done = subprocess.run(
            ["bash", "-c", produce],
            input="paid\n",
            env=env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.communicate(timeout=PATIENCE_S)
    assert broker.returncode == 0
    with logstore.open(store, writer="read_only") as opened:
        assert [record.value for record in opened.topic("orders").partition(0).records()] == [b"paid"]
