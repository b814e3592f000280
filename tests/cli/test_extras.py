"""What an extra brings and is not there is named together with the extra."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = ("pyarrow", "deltalake", "pyspark", "prometheus_client", "opentelemetry", "psycopg", "scramp")
SECONDS = 60
ATTEMPTS = {
    "arrow": "logstore.open('memory://a').create_topic('t').to_arrow()",
    "lake": "from logstore.lake import Materializer",
    "metrics": "from logstore.metrics import collector; collector(logstore.open('memory://b'))",
    "metrics (OpenTelemetry)": "from logstore.metrics import instrument; instrument(logstore.open('memory://c'))",
    "spark": "import logstore.spark",
    "postgres": "import logstore.ingest.postgres",
    "broker": "from logstore.testing.pytest_plugin import Broker; Broker()",
}


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    bare = f"import sys\nfor name in {LIBRARIES!r}: sys.modules[name] = None\n{code}"
    return subprocess.run([sys.executable, "-c", bare], capture_output=True, text=True, timeout=SECONDS)


def test_what_an_extra_would_bring_is_named_with_the_extra() -> None:
    code = f"""
import json, logstore
said = {{}}
for extra, attempt in {ATTEMPTS!r}.items():
    try:
        exec(attempt)
    except ModuleNotFoundError as error:
        said[extra] = str(error)
print(json.dumps(said))
"""
    done = without_extras(code)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.keys() == ATTEMPTS.keys()
    for extra, message in said.items():
        assert f'is not installed: pip install "embedded-logstore[{extra.split()[0]}]"' in message


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("lake", "materialize t --to delta:./t --once"),
        ("postgres", "ingest postgres --publication p --dsn x"),
    ],
)
def test_a_command_says_which_extra_it_needs_and_ends_with_1(
    extra: str, command: str, tmp_path: Path
) -> None:
    url = str(tmp_path / "log")
    code = f"""
import logstore
from logstore.cli import main
with logstore.open({url!r}) as store:
    store.create_topic("t")
sys.exit(main({[*command.split(), "--store", url]!r}))
"""
    done = without_extras(code)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith(f"logstore {command.split()[0]}: "), done.stderr
    assert f'pip install "embedded-logstore[{extra}]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broker_says_which_extra_it_needs() -> None:
    done = without_extras("from broker_shim.__main__ import main\nsys.exit(main(['--store', 'memory://x']))")
    assert done.returncode == 1, done.stderr
    assert 'scramp is not installed: pip install "embedded-logstore[broker]"' in done.stderr
    assert "Traceback" not in done.stderr
