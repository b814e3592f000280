"""What can be known of another process, and what cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.format.stored.owner import NO_TOKEN, UNKNOWN_BOOT, Owner
from logstore.process.presence import Liveness, Presence, liveness_of

_OTHER = """
import sys
from logstore.process.presence import Presence
presence = Presence()
sys.stdout.buffer.write(presence.show().pack().hex().encode() + b"\\n")
sys.stdout.flush()
sys.stdin.readline()
presence.hide()
print("hidden", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _OTHER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def shown_by(process: subprocess.Popen[str]) -> Owner:
    assert process.stdout is not None
    return Owner.parse(bytes.fromhex(process.stdout.readline().strip()))


def next_step(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "hidden\n"


def test_W17_this_process_is_known_as_itself() -> None:
    mine = Presence()
    owner = mine.show()
    assert (owner.pid, owner.host) == (os.getpid(), os.uname().nodename)
    assert owner == mine.show(), "one marker for all the writers of a store"
    assert liveness_of(owner) is Liveness.HERE
    assert liveness_of(replace(owner, started=owner.started - 1)) is Liveness.GONE, "the pid was used before"
    mine.hide()
    assert mine.show().token != owner.token
    mine.hide()


def test_W17_another_process_lives_until_it_hides_or_ends(other: subprocess.Popen[str]) -> None:
    owner = shown_by(other)
    assert (owner.pid, liveness_of(owner)) == (other.pid, Liveness.LIVING)
    assert liveness_of(replace(owner, started=owner.started + 1)) is Liveness.GONE
    next_step(other)
    assert liveness_of(owner) is Liveness.GONE, "it lives, and its store is closed"
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays in the process table
    for left in (owner, replace(owner, token=NO_TOKEN)):
        assert liveness_of(left) is Liveness.GONE, "nobody has waited for it yet"
    other.wait()
    assert liveness_of(owner) is Liveness.GONE


def test_W17_what_cannot_be_known_is_not_guessed(other: subprocess.Popen[str]) -> None:
    owner = shown_by(other)
    for stranger in (
        replace(owner, boot_id=bytes(15) + b"x"),
        replace(owner, boot_id=UNKNOWN_BOOT),
        replace(owner, pid_namespace=owner.pid_namespace + 1),
        replace(owner, net_namespace=owner.net_namespace + 1),  # its marker stands where we cannot look
        replace(owner, token=NO_TOKEN),
    ):
        assert liveness_of(stranger) is Liveness.UNKNOWN
    gone = replace(owner, pid=2**22 + 1, net_namespace=0, token=NO_TOKEN)
    assert liveness_of(gone) is Liveness.GONE, "above the largest pid there is"


def test_W17_a_process_that_proc_hides_is_not_taken_for_one_that_is_gone(
    other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, read_bytes = shown_by(other), Path.read_bytes

    def hidden(path: Path) -> bytes:
        if str(path) == f"/proc/{owner.pid}/stat":
            raise FileNotFoundError(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", hidden)
    assert liveness_of(owner) is Liveness.UNKNOWN


def test_W17_where_the_system_says_nothing_an_owner_still_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    mine = Presence()
    owner = mine.show()
    assert (owner.boot_id, owner.token, owner.pid) == (UNKNOWN_BOOT, NO_TOKEN, os.getpid())
    assert liveness_of(owner) is Liveness.UNKNOWN


def test_L29_a_marker_is_one_descriptor_and_is_closed_once() -> None:
    before = len(os.listdir("/proc/self/fd"))
    mine = Presence()
    mine.show()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    mine.hide()
    mine.hide()
    assert len(os.listdir("/proc/self/fd")) == before
