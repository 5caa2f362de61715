"""A server that misbehaves on demand: `FakeS3` behind real sockets, HTTP/1.1 with keep-alive, one thread per connection.

A test's `decide(request)` says per request what goes wrong: a `Fault`, or None for nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import BinaryIO

from .fake_s3 import FakeS3, Reply, Request, error

__all__ = ["Fault", "FaultServer", "answering", "failing"]

SEND_BYTES = 64 * 1024


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer. Several may be combined."""

    change: Callable[[Reply], Reply] | None = None  # another answer; Content-Length is told by its body unless it is set
    unanswered: bool = False  # close before any byte of the answer
    raw: bytes | None = None  # these bytes instead of HTTP, then close
    interim: bytes = b""  # sent before the answer
    delay: float = 0.0  # seconds before the answer
    cut: int | None = None  # close after so many bytes of the body
    stall: int | None = None  # send nothing more after so many bytes of the body, until the client leaves
    drip: tuple[int, float] | None = None  # so many bytes of the body at a time, with a pause in seconds
    reset: bool = False  # close by RST instead of FIN
    chunked: int | None = None  # Transfer-Encoding: chunked, with chunks of so many bytes
    unframed: bool = False  # neither Content-Length nor chunked: the body goes to the end of the connection
    close: bool = False  # close after the answer, without having said so
    undone: bool = True  # False: do what was asked even where the answer says something else


def answering(reply: Reply) -> Fault:
    """This answer instead of the right one; the request has no effect."""
    return Fault(change=lambda _: reply)


def failing(status: int, code: str, inside: str = "", **headers: str) -> Fault:
    """This error instead of an answer; the request has no effect."""
    return answering(error(status, code, inside, **headers))


_NO_FAULT = Fault()


class FaultServer:
    """Runs until the end of its `with` block. `requests` holds all that was asked, in order."""

    def __init__(self, *, certificate: Path | None = None, host: str = "127.0.0.1") -> None:
        self.s3 = FakeS3()
        self.requests: list[Request] = []
        self.decide: Callable[[Request], Fault | None] = lambda _: None
        self.stopped = threading.Event()
        self.num_connections = 0
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=512
        )
        port = self._listener.getsockname()[1]
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate / "server.crt", certificate / "server.key")
        scheme = "http" if certificate is None else "https"
        self.port = port
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def environment(self) -> dict[str, str]:
        """What s3dlio needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "faultkey",
            "AWS_SECRET_ACCESS_KEY": "faultsecret",
        }

    def asked(self, verb: str) -> list[Request]:
        """The requests of one kind, in order."""
        return [request for request in list(self.requests) if request.verb == verb]

    def __enter__(self) -> FaultServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.num_connections += 1
                number = self.num_connections
            threading.Thread(target=self._serve, args=(sock, number), daemon=True).start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            with self._lock:
                self._open.add(sock)
            with sock.makefile("rb") as stream:
                while not self.stopped.is_set() and self._serve_one(sock, stream, number):
                    pass
        except (OSError, ValueError):  # the client left, or sent what is not HTTP
            pass
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _serve_one(self, sock: socket.socket, stream: BinaryIO, connection: int) -> bool:
        """Answer one request. Does the connection go on?"""
        line = stream.readline()
        if not line:
            return False
        method, target, _ = line.decode("latin-1").split(" ")
        headers = {}
        while (field := stream.readline().decode("utf-8").rstrip("\r\n")) != "":
            name, _, value = field.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", 0)))
        with self._lock:
            request = Request(next(self._numbers), connection, method, target, headers, body, time.monotonic())
            self.requests.append(request)
        fault = self.decide(request) or _NO_FAULT
        reply = Reply(500) if fault.change and fault.undone and method in ("PUT", "POST", "DELETE") else None
        reply = reply or self.s3.answer(request)
        goes_on = _send(sock, request, fault.change(reply) if fault.change else reply, fault, self.stopped)
        if fault.reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return goes_on


def _send(sock: socket.socket, request: Request, reply: Reply, fault: Fault, stopped: threading.Event) -> bool:
    if fault.delay:
        stopped.wait(fault.delay)
    if fault.unanswered:
        return False
    if fault.raw is not None:
        sock.sendall(fault.raw)
        return False
    head, body = _encoded(request, reply, fault)
    if fault.drip is None and fault.cut is None and fault.stall is None and len(body) <= SEND_BYTES:
        sock.sendall(fault.interim + head + body)
    else:
        sock.sendall(fault.interim + head)
        _send_body(sock, body, fault, stopped)
    if fault.stall is not None:
        while not stopped.is_set() and not select.select([sock], [], [], 0.05)[0]:
            pass
    return not (fault.close or fault.reset or fault.unframed) and fault.cut is None and fault.stall is None


def _encoded(request: Request, reply: Reply, fault: Fault) -> tuple[bytes, bytes]:
    body = reply.body
    headers = {"date": formatdate(usegmt=True), "server": "faults", **reply.headers}
    if fault.chunked:
        headers["transfer-encoding"] = "chunked"
        pieces = [body[start : start + fault.chunked] for start in range(0, len(body), fault.chunked)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    elif not fault.unframed and reply.status not in (204, 304):
        headers.setdefault("content-length", str(len(body)))
    lines = [f"HTTP/1.1 {reply.status} Status", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode(), b"" if request.method == "HEAD" else body


def _send_body(sock: socket.socket, body: bytes, fault: Fault, stopped: threading.Event) -> None:
    end = min(end for end in (fault.cut, fault.stall, len(body)) if end is not None)
    step, pause = fault.drip or (SEND_BYTES * 16, 0.0)
    for start in range(0, end, step):
        sock.sendall(memoryview(body)[start : min(start + step, end)])
        if pause:
            stopped.wait(pause)
