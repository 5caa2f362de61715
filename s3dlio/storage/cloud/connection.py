"""Sockets: one connection to one server, through a proxy and with TLS where asked for.

Everything that may wait is a coroutine that yields a socket, the event that it waits for and the longest wait in seconds,
so that one code serves blocking sockets and readiness polling.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ... import config
from .http import ProtocolError, Request, Response, broken_off, encode, plain_answer, receive
from .opening import Opening

__all__ = ["Connection", "Mode", "READ", "Server", "WRITE", "Wait"]

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
SCRATCH_BYTES = 16 * 1024
SMALL_BODY_BYTES = 64 * 1024
MAX_BUFFERS = 512  # of one sendmsg; the system's limit is 1024

Wait: TypeAlias = "float | tuple[socket.socket, int, float]"


class Mode(Protocol):
    """How an operation is driven."""

    is_blocking: bool
    paused: float  # seconds in which nobody drove it
    num_running: int  # attempts that it has under way

    def now(self) -> float: ...

    def take(self) -> Connection | None:
        """A connection that was used before."""

    def give(self, connection: Connection) -> None:
        """Keep a connection for the next request."""

    def forget(self, sock: socket.socket) -> None:
        """This socket is about to be closed."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server: where it is and whom to trust."""

    scheme: str
    host: str
    port: int
    ca_bundle: str | None = None

    @classmethod
    def from_url(cls, url: str, ca_bundle: str | None) -> Server:
        """Raises ConfigError when `url` is no http(s) URL, or when it holds a password or a path."""
        parts = config.check_endpoint(url)
        assert parts.hostname is not None
        return cls(parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme], ca_bundle)

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}"


class Connection:
    """One connection, with the buffer in which its heads arrive."""

    __slots__ = ("_blocks", "_body_flags", "_owns", "given_at", "is_tls", "num_served", "scratch", "sock")

    def __init__(self, sock: socket.socket, *, owns: bool = True) -> None:
        self.sock = sock
        self._owns = owns
        self.is_tls = isinstance(sock, ssl.SSLSocket)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.num_served = 0
        self.given_at = 0.0  # since when nobody has looked at it at rest, by the monotonic clock
        self._blocks: bool | None = None
        self._body_flags = 0

    def prepare(self, is_blocking: bool, stall_timeout: float) -> None:
        """Let the socket block, for `stall_timeout` at most, or not at all."""
        if self._blocks is is_blocking:
            return
        self._blocks = is_blocking
        self._body_flags = socket.MSG_WAITALL if is_blocking and not self.is_tls else 0
        if not is_blocking:
            self.sock.setblocking(False)
        elif self.is_tls:
            self.sock.settimeout(stall_timeout)
        else:
            # The kernel's own timeout spares a poll() before every call.
            self.sock.setblocking(True)
            limit = struct.pack("@ll", int(stall_timeout), int(stall_timeout % 1 * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def converse(self, request: Request, mode: Mode, stall: float) -> Generator[Wait, None, Response]:
        """Send `request` and receive the answer. Raises OSError, ClosedError, ProtocolError or IncompleteBodyError."""
        unsent = self.begin_sending(request)
        is_sent = not unsent or (yield from self._send(unsent, mode, stall))
        if not mode.is_blocking:
            yield self.sock, READ, stall
        response = yield from self.receive(request, mode, stall)
        if not is_sent:
            if response.head.status < 300:
                raise ProtocolError(f"the server answered {response.head.status} before it had all of the request")
            response.reusable = False
        return response

    def begin_sending(self, request: Request) -> list[memoryview]:
        """Send a request without a body at once, if the socket takes it; what is left to send."""
        head = encode(request)
        if request.body:
            buffers = [memoryview(head), *request.body]
            is_small = self.is_tls and sum(buffer.nbytes for buffer in buffers) <= SMALL_BODY_BYTES
            return [memoryview(b"".join(buffers))] if is_small else buffers
        try:
            count = self.sock.send(head)
        except (OSError, ssl.SSLError):  # met again, and judged, by _send
            count = 0
        return [memoryview(head)[count:]] if count < len(head) else []

    def _send(self, buffers: list[memoryview], mode: Mode, stall: float) -> Generator[Wait, None, bool]:
        """Send what is left. False when the server closed its ear meanwhile; it may have said why."""
        while buffers:
            try:
                count = self.sock.send(buffers[0]) if self.is_tls else self.sock.sendmsg(buffers[:MAX_BUFFERS])
            except (BlockingIOError, ssl.SSLWantWriteError):
                _require_polled(mode, stall)
                yield self.sock, WRITE, stall
            except ssl.SSLWantReadError:
                yield self.sock, READ, stall
            except (BrokenPipeError, ConnectionResetError):
                return False
            else:
                buffers = _advanced(buffers, count)
        return True

    def launch(self, opening: Opening) -> bool:
        """Send the request of an opening. False when the socket did not take all of it, or failed."""
        try:
            is_sent = self.sock.send(opening.unsent) == len(opening.unsent)
        except OSError:  # those of TLS too
            return False
        opening.unsent = b""
        return is_sent

    def pull(self, opening: Opening) -> None:
        """Receive the beginning of the answer, if it is here and was not received before."""
        if opening.response is None:
            try:
                opening.filled = self.sock.recv_into(self.scratch)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except Exception as exc:
                opening.error = exc

    def look(self, opening: Opening) -> None:
        """See what begins: a plain answer has its response from now on."""
        if opening.response is None and opening.error is None:
            try:
                plain = plain_answer(opening.request, self.scratch, opening.filled)
            except Exception as exc:
                opening.error = exc
            else:
                opening.response, opening.filled = plain or (None, opening.filled)

    def advance(self, opening: Opening) -> bool:
        """Receive what has come; `pull` and `look` may have been called before, in a row for many, which costs less.

        False when that is no plain answer, or an error, which `opening` then holds.
        """
        try:
            if opening.response is None and opening.error is None:
                opening.filled = opening.filled or self.sock.recv_into(self.scratch)
                self.look(opening)
            if opening.response is None or opening.error is not None:
                return False
            body = opening.response.body
            while opening.filled < body.nbytes:
                opening.filled += self._more_of(body, opening.filled)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except Exception as exc:
            opening.error = exc
            return False
        self.num_served += 1
        return True

    def _more_of(self, body: memoryview, filled: int) -> int:
        try:
            count = self.sock.recv_into(body[filled:], 0, self._body_flags)
        except (BlockingIOError, ssl.SSLWantReadError):
            raise
        except OSError as exc:
            raise broken_off(filled, body.nbytes, exc) from exc
        if not count:
            raise broken_off(filled, body.nbytes)
        return count

    def receive(
        self, request: Request, mode: Mode, stall: float, begun: Opening | None = None
    ) -> Generator[Wait, None, Response]:
        """Receive the answer, whose first bytes may be here."""
        exchange = receive(request, self.scratch)
        recv_into = self.sock.recv_into
        try:
            want, is_body = next(exchange)
            if begun is not None:
                want, is_body = exchange.send(begun.filled)
            while True:
                try:
                    count = recv_into(want, 0, self._body_flags if is_body else 0)
                except (BlockingIOError, ssl.SSLWantReadError):
                    try:
                        _require_polled(mode, stall)
                        yield self.sock, READ, stall
                    except OSError as exc:
                        want, is_body = exchange.throw(exc)
                except ssl.SSLWantWriteError:
                    yield self.sock, WRITE, stall
                except OSError as exc:
                    want, is_body = exchange.throw(exc)
                else:
                    want, is_body = exchange.send(count)
        except StopIteration as stop:
            response: Response = stop.value
            self.num_served += 1
            return response

    def close(self) -> None:
        self.sock.close()

    def __del__(self) -> None:
        if self._owns:
            self.sock.close()  # as a socket does by itself, but without a ResourceWarning


def _require_polled(mode: Mode, stall: float) -> None:
    """A blocking socket that would block has waited for as long as it may."""
    if mode.is_blocking:
        raise TimeoutError(f"no byte for {stall:g} s")


def _advanced(buffers: list[memoryview], count: int) -> list[memoryview]:
    for index, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[index + 1 :]]
        count -= buffer.nbytes
    return []
