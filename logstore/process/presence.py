"""Whether the process that owns a chain still lives: without a clock, a heartbeat or a request to the store.

A fence names its owner (`format.stored.owner`). On the same boot of the same machine, in the same pid namespace, the
kernel knows whether that process lives: its pid with its start time, which no other process ever has. A process may outlive
its store, so an open store also holds a *marker*, a Unix socket in the abstract namespace under a random name that the fence
tells. Nobody ever sends anything to it. The kernel takes it away when the process dies; `close` and, in a forked child,
`os.register_at_fork` do otherwise.

From another machine, another container, or where there is no `/proc`, nothing can be known, and nothing is guessed.
"""

from __future__ import annotations

import os
import socket
import sys
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from logstore.format.stored.owner import NO_TOKEN, UNKNOWN_BOOT, Owner

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DEAD_STATES = (b"Z", b"X", b"x")
_NOBODY = -1
_STARTED = 22 - 3  # field 22 of /proc/‹pid›/stat, counted from the third, the first behind the command's name


class Liveness(Enum):
    """What is known of an owner from here."""

    HERE = "this process"
    LIVING = "it lives, and its store is open"
    GONE = "it has ended, or its store is closed"
    UNKNOWN = "it cannot be known from here"


class Machine(NamedTuple):
    """What pids mean here: the same three in two processes mean that each can ask the kernel about the other."""

    boot_id: bytes
    pid_namespace: int
    net_namespace: int


class Presence:
    """Of one store: `show` says who it is that writes, until `hide`. Safe for threads that open writers one by one or at
    once: the worst is a marker that nobody was told of, and `hide` takes those along."""

    def __init__(self) -> None:
        self._owner: Owner | None = None
        self._markers: list[socket.socket] = []
        _open.add(self)

    def show(self) -> Owner:
        """This process, with a marker that exists from now on."""
        owner = self._owner
        if owner is None or owner.pid != os.getpid():
            token = os.urandom(len(NO_TOKEN))
            marker = _place_marker(token)
            if marker is not None:
                self._markers.append(marker)
            owner = self._owner = _this_process(token if marker is not None else NO_TOKEN)
        return owner

    def hide(self) -> None:
        """The store is closed: whoever asks finds that it is."""
        while self._markers:
            self._markers.pop().close()
        self._owner = None


_open: WeakSet[Presence] = WeakSet()


def _after_fork_in_child() -> None:
    """A forked child holds its parent's markers too, and would keep them alive."""
    for presence in list(_open):
        presence.hide()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def liveness_of(owner: Owner) -> Liveness:
    """Ask the kernel, if this machine's can know."""
    machine = this_machine()
    if machine is None or owner.boot_id != machine.boot_id or owner.pid_namespace != machine.pid_namespace:
        return Liveness.UNKNOWN
    started = _start_time(owner.pid)
    if started is None:
        return Liveness.UNKNOWN
    if started != owner.started:
        return Liveness.GONE
    if owner.pid == os.getpid():
        return Liveness.HERE
    if owner.token == NO_TOKEN or owner.net_namespace != machine.net_namespace:
        return Liveness.UNKNOWN
    return Liveness.LIVING if _has_marker(owner.token) else Liveness.GONE


def this_machine() -> Machine | None:
    """None where the system does not say."""
    if sys.platform != "linux":
        return None
    try:
        boot_id = bytes.fromhex(_BOOT_ID.read_text().strip().replace("-", ""))
        spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("pid", "net")]
    except (OSError, ValueError):
        return None
    return Machine(boot_id, *spaces) if len(boot_id) == len(UNKNOWN_BOOT) else None


def _this_process(token: bytes) -> Owner:
    pid, machine = os.getpid(), this_machine()
    started = _start_time(pid) if machine is not None else None
    if machine is None or started is None:
        machine, started = Machine(UNKNOWN_BOOT, 0, 0), 0
    return Owner(*machine, pid, started, token, socket.gethostname(), _program())


def _program() -> str:
    """What somebody who looks at a list of processes would call this one. The file's name and no argument: those may hold
    what is nobody's business."""
    path = Path(sys.argv[0] if sys.argv else "")
    return path.parent.name if path.name == "__main__.py" else path.name


def _start_time(pid: int) -> int | None:
    """In clock ticks since the boot; `_NOBODY` if surely no process of that pid lives, None if we may not see whether one
    does. One that has ended and that its parent has not waited for does not live."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return _NOBODY if _is_free(pid) else None
    fields = data[data.rindex(b")") + 1 :].split()  # a command's name may hold spaces and brackets
    return _NOBODY if fields[0] in _DEAD_STATES else int(fields[_STARTED])


def _is_free(pid: int) -> bool:
    """`/proc` may hide the processes of others; the kernel does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _name(token: bytes) -> bytes:
    return b"\0logstore-" + token.hex().encode()


def _place_marker(token: bytes) -> socket.socket | None:
    """None if there can be none, which is no reason not to write."""
    if sys.platform != "linux":
        return None
    try:
        marker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return None
    try:
        marker.bind(_name(token))
    except OSError:
        marker.close()
        return None
    return marker


def _has_marker(token: bytes) -> bool:
    """Whether a marker of that name is there. No answer for want of descriptors counts as yes: the owner's process lives."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.connect(_name(token))
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True
