"""An HTTP server that does to each request what the test says: answer, cut, reset, or say nothing."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Action = Callable[[socket.socket], None]


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedServer:
    """Plays one action for each request, the last one again and again, and remembers the requests."""

    endpoint_url: str
    actions: list[Action] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    was_asked: threading.Event = field(default_factory=threading.Event)

    def play(self, *actions: Action) -> None:
        self.actions[:] = actions

    def next_action(self) -> Action:
        return self.actions.pop(0) if len(self.actions) > 1 else self.actions[0]


@contextmanager
def scripted_server(tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        scheme = "https" if tls else "http"
        server = ScriptedServer(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}")
        open_sockets: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                open_sockets.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        def serve(connection: socket.socket) -> None:
            try:
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                request = _read(connection)
                if request is None:
                    return
                server.requests.append(request)
                server.was_asked.set()
                server.next_action()(connection)
            except OSError:
                return  # the client went away

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in open_sockets:
            connection.close()


def _read(connection: socket.socket) -> Request | None:
    stream = connection.makefile("rb")
    line = stream.readline().decode()
    if not line:
        return None
    headers: dict[str, str] = {}
    while (header := stream.readline().decode().strip()) != "":
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("expect") == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = stream.read(int(headers.get("content-length", "0")))
    method, path, _ = line.split(" ", 2)
    return Request(method, path, headers, body)


def self_signed(folder: Path) -> ssl.SSLContext:
    """TLS for a server that no client has a reason to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
        .sign(key, hashes.SHA256())
    )
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = folder / "server.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, *plain) + made.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def answer(status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> Action:
    """A complete answer; with `length`, one that promises more than it sends."""

    def send(connection: socket.socket) -> None:
        lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body) if length is None else length}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += ["Connection: close", "", ""]
        connection.sendall("\r\n".join(lines).encode() + body)
        connection.shutdown(socket.SHUT_RDWR)

    return send


def refusal(status: int, code: str) -> Action:
    """An error as S3 words it."""
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>because</Message></Error>"
    return answer(status, text.encode(), Content_Type="application/xml")


def reset(connection: socket.socket) -> None:
    """Take the request, then send RST instead of an answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def hang_up(connection: socket.socket) -> None:
    """Take the request, then close without an answer."""
    connection.shutdown(socket.SHUT_RDWR)


def say_nothing(connection: socket.socket) -> None:
    """Take the request and never answer; the client must lose patience."""
