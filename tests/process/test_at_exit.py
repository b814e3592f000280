"""A program that ends without `close()` has not crashed: what it appended is stored."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import logstore
from tests.support.patience import PATIENCE_S

BEGIN = """
import os, sys
import logstore

store = logstore.open(sys.argv[1], flush_interval=3600)
topic = store.create_topic("t")
for number in range(5):
    topic.append(b"value-%d" % number, ack="buffered")
"""


def run(folder: Path, ending: str) -> subprocess.CompletedProcess[str]:
    program = BEGIN + textwrap.dedent(ending)
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def stored(folder: Path) -> list[bytes | None]:
    with logstore.open(str(folder), writer="read_only") as store:
        return [record.value for record in store.topic("t").partition(0).records()]


ALL = [b"value-%d" % number for number in range(5)]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("del store, topic", 0),
        ("raise SystemError('of its own')", 1),
    ],
    ids=["end", "exit", "forgotten", "exception"],
)
def test_buffered_records_are_stored_when_the_program_ends(tmp_path: Path, ending: str, status: int) -> None:
    ended = run(tmp_path, ending)
    assert (ended.returncode, stored(tmp_path)) == (status, ALL)
    assert "was not closed" in ended.stderr


def test_records_are_stored_where_no_thread_can_be_started_any_more(tmp_path: Path) -> None:
    """Python 3.12 starts none once the interpreter ends; here no Python does. A group of readers is left, too."""
    ended = run(
        tmp_path,
        """
        import atexit, threading

        group = store.group("readers", "t")

        def refuse(self):
            raise RuntimeError("can't create new thread at interpreter shutdown")

        @atexit.register
        def no_more_threads():
            threading.Thread.start = refuse
        """,
    )
    assert (ended.returncode, stored(tmp_path)) == (0, ALL)
    assert "was not closed" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_program_that_closes_its_store_is_told_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, "store.close()")
    assert (ended.returncode, ended.stderr, stored(tmp_path)) == (0, "", ALL)


def test_a_crash_takes_buffered_records_along(tmp_path: Path) -> None:
    """The contrast: this is what a buffered ack does not promise."""
    ended = run(tmp_path, "os._exit(0)")
    assert (ended.returncode, stored(tmp_path)) == (0, [])


def test_a_forked_child_does_not_store_its_parents_records(tmp_path: Path) -> None:
    """It has a copy of the buffer, and no right to it."""
    ended = run(
        tmp_path,
        """
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        with logstore.open(sys.argv[1], writer="read_only") as reader:
            assert not list(reader.topic("t").partition(0).records())
        """,
    )
    assert (ended.returncode, stored(tmp_path)) == (0, ALL)
    assert ended.stderr.count("was not closed") == 1


def test_a_store_that_is_down_at_the_end_is_said_with_the_offsets(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        from logstore.objects import LocalStore

        def refuse(self, *arguments, **options):
            raise logstore.StoreUnavailable("the disk is gone")

        LocalStore.put = refuse
        object.__setattr__(store.config, "append_timeout", 0.2)
        """,
    )
    assert (ended.returncode, stored(tmp_path)) == (0, [])
    assert "offsets 0 to 4" in ended.stderr
