"""A process that forks while a store is writing: the store stays the parent's, and the child is told."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

_SETUP = """
import os, sys, logstore
from pathlib import Path

here = Path(sys.argv[1])
"""

_REFUSED = """
store = logstore.open(here / "objects", writer=sys.argv[2], flush_interval=3600, append_timeout=600)
topic = store.create_topic("t")
log = topic.partition(0)
log.append(b"stored")
weak = None if sys.argv[2] == "shared" else "buffered"
waiting = topic.append(b"the parent's", ack=weak)
child = os.fork()
if child == 0:
    calls = [
        lambda: topic.append(b"x", ack=weak),
        lambda: topic.append(b"x"),
        lambda: log.append([b"x", b"y"]),
        lambda: log.submit(b"x"),
        lambda: log.reopen(),
        lambda: store.create_topic("u"),
        lambda: store.flush(),
    ]
    if weak:
        calls += [lambda: waiting.wait_durable(), lambda: log.flush()]
    for number, call in enumerate(calls):
        try:
            call()
        except logstore.Closed as error:
            assert "fork" in str(error), (number, error)
        else:
            raise AssertionError(f"call {number} was not refused")
    assert next(log.records()).value == b"stored"
    store.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert topic.append(b"goes on").offset == 2
store.close()
with logstore.open(here / "objects", writer="read_only") as reader:
    values = [record.value for record in reader.topic("t").partition(0).records()]
assert values == [b"stored", b"the parent's", b"goes on"], values
"""

_REPLICATED = """
store = logstore.open(here / "objects", append_timeout=600)
writer = store.create_topic("t").partition(0).replicated("a")
writer.compare_and_append([b"0"], 0, 1)
child = os.fork()
if child == 0:
    try:
        writer.compare_and_append([b"1"], 1, 2)
    except logstore.Closed:
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert writer.compare_and_append([b"1"], 1, 2).by == "us"
store.close()
"""

_WAL = """
settings = dict(wal_dir=here / "wal", ack="local")
store = logstore.open(here / "objects", **settings)
store.create_topic("t").append(b"0")
stay, go = os.pipe()
child = os.fork()
if child == 0:
    os.close(go)
    os.read(stay, 1)
    os._exit(0)
store.close()
with logstore.open(here / "objects", **settings) as again:
    assert again.topic("t").append(b"1").durability == "local"
os.close(go)
os.waitpid(child, 0)
"""


def run(tmp_path: Path, script: str, *arguments: str) -> None:
    words = [sys.executable, "-c", _SETUP + textwrap.dedent(script), str(tmp_path), *arguments]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_L11_a_forked_child_is_refused_and_the_parent_goes_on(kind: str, tmp_path: Path) -> None:
    """Its ack would be for a record that nobody stores, at an offset that the parent gives to another."""
    run(tmp_path, _REFUSED, kind)


def test_W07_a_forked_replicated_writer_is_refused_and_the_parents_goes_on(tmp_path: Path) -> None:
    run(tmp_path, _REPLICATED)


def test_L09_a_forked_child_does_not_keep_the_wal_of_its_parent_locked(tmp_path: Path) -> None:
    run(tmp_path, _WAL)
