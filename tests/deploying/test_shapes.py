"""W17: each row of the table in docs/deploying.md, with the real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import logstore
from tests.support.deploying.running import APP, ROOT, Service, environment, gunicorn, uvicorn
from tests.support.engine.harness import until
from tests.support.engine.other_process import OtherProcess
from tests.support.patience import PATIENCE_S

ROUNDS = 50
"""Of eight requests each: after so many, the kernel has handed one to a second worker."""

STOPPED = (0, -signal.SIGTERM)
"""A single uvicorn shuts down in order, and then lets the signal end it after all."""


def stored(home: Path, topic: str = "events") -> list[bytes]:
    with logstore.open(home / "store", writer="read_only") as store:
        log = store.topic(topic).partition(0)
        assert log.lost_ranges() == []
        return [record.value or b"" for record in log.records()]


def shell(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "logstore.cli", *words]
    env = environment(home / "store")
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


# N workers


def workers_share(service: Service, home: Path) -> None:
    """Every request is answered with an offset of its own, whichever worker it comes to."""
    pids: Counter[int] = Counter()
    sent: list[str] = []
    for number in range(ROUNDS):
        values = [f"{number}-{place}" for place in range(8)]
        answers = service.append_all(values)
        assert [status for status, _ in answers] == [200] * 8, answers
        pids.update(answer["pid"] for _, answer in answers)
        sent += values
        if len(pids) > 1:
            break
    assert len(pids) > 1
    assert sorted(stored(home)) == sorted(value.encode() for value in sent)


def test_W17_uvicorn_with_four_workers_that_share(tmp_path: Path) -> None:
    with uvicorn(tmp_path, workers=4, writer="shared") as service:
        workers_share(service, tmp_path)
        appended = shell(tmp_path, "append", "events", "from a shell")
        assert (appended.returncode, appended.stderr) == (0, ""), "it joins them"
        assert {status for status, _ in service.append_all(["after it"] * 8)} == {200}
        assert service.stop() == 0
        assert "WARNING" not in service.log()


def test_W17_gunicorn_with_four_workers_that_share(tmp_path: Path) -> None:
    with gunicorn(tmp_path, workers=4, writer="shared") as service:
        workers_share(service, tmp_path)
        assert service.stop() == 0


def test_W17_uvicorn_with_four_workers_and_default_settings_says_what_to_do(tmp_path: Path) -> None:
    """One of them has the partition and goes on; the others say who has it, in an error that may be tried again."""
    with uvicorn(tmp_path, workers=4) as service:
        answers: list[tuple[int, dict[str, object]]] = []
        for _ in range(ROUNDS):
            answers += service.append_all(["x"] * 8)
            if {status for status, _ in answers} == {200, 503}:
                break
        by_status = {
            status: {answer["pid"] for each, answer in answers if each == status} for status in (200, 503)
        }
        assert set(by_status) == {status for status, _ in answers}, "none is stopped"
        assert len(by_status[200]) == 1
        (owner,) = by_status[200]
        for status, answer in answers:
            if status == 503:
                assert answer["error"] == "PartitionInUse"
                assert f"process {owner} " in str(answer["text"])
                assert 'writer="shared"' in str(answer["text"])
        refused = shell(tmp_path, "append", "events", "debug")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"process {owner} " in refused.stderr
        acked = sum(status == 200 for status, _ in answers)
        for _ in range(ROUNDS):
            more = service.append_all(["x"] * 8)
            assert 500 not in {status for status, _ in more}
            acked += sum(status == 200 for status, _ in more)
            if any(status == 200 for status, _ in more):
                break
        assert len(stored(tmp_path)) == acked


_POOL = """
import os, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import logstore

store = None

def open_store():
    global store
    store = logstore.open(os.environ["LOGSTORE_URL"], writer=sys.argv[1])

def task(number):
    try:
        return store.create_topic("events", exist_ok=True).append(b"%d" % number).offset
    except logstore.LogStoreError as error:
        return type(error).__name__

with ProcessPoolExecutor(4, get_context("fork"), open_store) as pool:
    print(*sorted({str(outcome) for _ in range(5) for outcome in pool.map(task, range(8))}))
"""


@pytest.mark.parametrize("writer", ["shared", "exclusive"])
def test_W17_a_prefork_pool(tmp_path: Path, writer: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _POOL, writer],
        env=environment(tmp_path / "store"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    outcomes = set(done.stdout.split())
    errors = {outcome for outcome in outcomes if not outcome.isdigit()}
    assert errors <= (set() if writer == "shared" else {"PartitionInUse"})
    assert len(outcomes - errors) == len(stored(tmp_path))
    assert len(stored(tmp_path)) == 40 or writer == "exclusive"


def test_W17_celery_with_a_prefork_pool(tmp_path: Path) -> None:
    env = environment(tmp_path / "store", writer="shared") | {"APP_HOME": str(tmp_path)}
    celery = [sys.executable, "-m", "celery", "-A", f"{APP}.celery_app"]
    with logstore.open(tmp_path / "store", writer="shared") as store:
        store.create_topic("events")
    send = textwrap.dedent(f"""
        from {APP}.celery_app import append
        for number in range(24): append.delay(f"task-{{number}}")
        """)
    subprocess.run([sys.executable, "-c", send], env=env, cwd=tmp_path, timeout=PATIENCE_S, check=True)
    options = [
        "worker",
        "--pool",
        "prefork",
        "-c",
        "4",
        "-l",
        "WARNING",
        "--without-gossip",
        "--without-mingle",
    ]
    with (tmp_path / "celery.log").open("wb") as log:
        worker = subprocess.Popen(
            [*celery, *options], env=env, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: len(stored(tmp_path)) == 24)
    finally:
        worker.terminate()
        worker.wait(PATIENCE_S)
    names, pids = zip(*(value.decode().split() for value in stored(tmp_path)), strict=True)
    assert sorted(names) == sorted(f"task-{number}" for number in range(24))
    assert len(set(pids)) > 1
    assert "Traceback" not in (tmp_path / "celery.log").read_text()


# Replicas, and what comes and goes beside a service


def test_W17_four_replicas_that_share(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        replicas = [OtherProcess(tmp_path / "store", "events", writer="shared") for _ in range(4)]
        try:
            acked = list(
                threads.map(
                    lambda replica: [replica.append(f"{replica.pid} {n}") for n in range(25)], replicas
                )
            )
        finally:
            for replica in replicas:
                replica.__exit__(None, None, None)
    assert sorted(offset for each in acked for _, offset in each) == list(range(100))
    assert len(set(stored(tmp_path))) == 100


def test_W17_a_rolling_deploy_on_one_machine(tmp_path: Path) -> None:
    """The new one is ready, and refused, while the old one lives. SIGTERM stores what the old one holds, and hands over."""
    with uvicorn(tmp_path, ack="buffered", flush_interval=3600) as old:
        assert old.append("first")[1]["durability"] == "buffered"
        with uvicorn(tmp_path, ack="buffered", flush_interval=3600) as new:
            status, told = new.append("too early")
            assert (status, told["error"]) == (503, "PartitionInUse")
            assert new.get("/ready")[0] == 200
            assert old.append("second")[0] == 200
            assert old.stop() in STOPPED
            assert new.append("third") == (
                200,
                {"offset": 2, "durability": "buffered", "pid": new.process.pid},
            )
            assert new.stop() in STOPPED
    assert stored(tmp_path) == [b"first", b"second", b"third"]


def test_W17_one_that_was_replaced_is_not_ready_any_more(tmp_path: Path) -> None:
    """So that the platform takes it out of service, and starts it again if it is to live."""
    with uvicorn(tmp_path) as old, logstore.open(tmp_path / "store", take_over=True) as new:
        assert old.append("first")[0] == 200
        assert new.topic("events").append(b"second").offset == 1
        status, told = old.append("late")
        assert (status, told["error"]) == (500, "Fenced")
        assert old.get("/ready")[0] == 503


def recipe() -> str:
    """The block of the page that handles SIGTERM."""
    found = re.search(
        r"```python\n(import signal\n.*?)```", (ROOT / "docs/deploying.md").read_text(), re.DOTALL
    )
    assert found is not None
    return found[1]


@pytest.mark.parametrize("with_recipe", [True, False])
def test_W17_sigterm_closes_a_program_that_has_the_recipe(tmp_path: Path, with_recipe: bool) -> None:
    program = (recipe() if with_recipe else "import signal\n") + textwrap.dedent("""
        import os
        import time
        import logstore

        with logstore.open(os.environ["LOGSTORE_URL"], flush_interval=3600) as store:
            store.create_topic("events").append(b"buffered", ack="buffered")
            print("acked", flush=True)
            while True:  # not `signal.pause`, which would not see a signal that comes right before it
                time.sleep(0.05)
        """)
    env = environment(tmp_path / "store")
    process = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"acked\n"
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (0 if with_recipe else -signal.SIGTERM)
    assert stored(tmp_path) == ([b"buffered"] if with_recipe else [])
