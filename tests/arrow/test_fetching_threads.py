"""The threads that fetch for one commit of a table after the other."""

from __future__ import annotations

import subprocess
import sys

import pytest

import logstore
from logstore.arrow.scan.fetch import fetching_threads
from tests.support.patience import PATIENCE_S


def test_fetching_threads_are_kept_for_the_next_and_shared_by_no_two_at_a_time() -> None:
    with fetching_threads() as first:
        first.submit(int).result(PATIENCE_S)
        with fetching_threads() as second:
            assert second is not first
    with fetching_threads() as again:
        assert again is first


def test_fetching_threads_of_who_failed_are_ended() -> None:
    with pytest.raises(logstore.CorruptData), fetching_threads() as failed:
        failed.submit(int).result(PATIENCE_S)
        raise logstore.CorruptData("a.seg", 0, "damaged")
    with fetching_threads() as others:
        assert others is not failed
    with pytest.raises(RuntimeError, match="after shutdown"):
        failed.submit(int)


def test_a_forked_child_has_fetching_threads_of_its_own() -> None:
    code = (
        "import os\n"
        "from logstore.arrow.scan.fetch import fetching_threads\n"
        "def use():\n"
        "    with fetching_threads() as threads: assert threads.submit(int).result(20) == 0\n"
        "use()\n"
        "child = os.fork()\n"
        "use()\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
