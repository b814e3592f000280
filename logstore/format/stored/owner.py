"""Who owns a chain: the document in an exclusive writer's fence (`extras`), and in a manifest behind it.

    version u8, boot id 16 bytes, pid namespace u64, network namespace u64, pid u64, start time u64, token 8 bytes,
    then host and name, each as its length (u8) and so many bytes of UTF-8

There is one way to write a document, and what is written in another is refused. Its bytes lie under the checksum of whatever
carries it. A reader that cannot read it knows nothing of the owner; nothing else depends on it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from logstore.format.errors import FormatError, UnsupportedVersion

_VERSION = 1
_FRONT = struct.Struct("<B16sQQQQ8s")
_TEXT_MAX = 255

UNKNOWN_BOOT = bytes(16)
NO_TOKEN = bytes(8)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, by what tells it from every other: no two of one boot and pid namespace have the same pid and start time
    (in clock ticks since the boot). `UNKNOWN_BOOT` where the system does not say.

    `token` is random, new for each store that is opened; the name of a marker that exists in the network namespace while the
    store is open. `NO_TOKEN` if there is none.
    """

    boot_id: bytes
    pid_namespace: int
    net_namespace: int
    pid: int
    started: int
    token: bytes
    host: str
    name: str

    def pack(self) -> bytes:
        front = _FRONT.pack(
            _VERSION,
            self.boot_id,
            self.pid_namespace,
            self.net_namespace,
            self.pid,
            self.started,
            self.token,
        )
        return front + _text(self.host) + _text(self.name)

    @classmethod
    def parse(cls, data: bytes) -> Owner:
        """`FormatError` for all that `pack` does not write."""
        if data and data[0] != _VERSION:
            raise UnsupportedVersion(f"an owner of format {data[0]}; this release reads {_VERSION}")
        if len(data) < _FRONT.size:
            raise FormatError(f"an owner has at least {_FRONT.size} bytes, here are {len(data)}")
        _, boot_id, pid_namespace, net_namespace, pid, started, token = _FRONT.unpack_from(data)
        host, at = _parse_text(data, _FRONT.size)
        name, at = _parse_text(data, at)
        if at != len(data):
            raise FormatError(f"behind the owner are {len(data) - at} bytes")
        return cls(boot_id, pid_namespace, net_namespace, pid, started, token, host, name)

    def __str__(self) -> str:
        """As an error names it."""
        what = f"process {self.pid}" + (f" ({self.name})" if self.name else "")
        return f"{what} on {self.host}" if self.host else what


def shown(owner: bytes) -> str:
    """The owner that a document names; nothing if there is none that can be read."""
    try:
        return str(Owner.parse(owner)) if owner else ""
    except FormatError:
        return ""


def _text(text: str) -> bytes:
    """As much of it as fits, in whole characters."""
    data = text.encode(errors="replace")[:_TEXT_MAX].decode(errors="ignore").encode()
    return bytes((len(data),)) + data


def _parse_text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at] if at < len(data) else at + 1
    if end > len(data):
        raise FormatError("the owner is cut short", at)
    try:
        return data[at + 1 : end].decode(), end
    except UnicodeDecodeError as error:
        raise FormatError(f"the owner's text is no UTF-8: {error}", at) from error
