"""A small HTTP proxy that knows CONNECT, for the tests."""

from __future__ import annotations

import contextlib
import socket
import threading

__all__ = ["Proxy"]


class Proxy:
    """Tunnels to whatever is asked for, or to `instead`. `requests` holds the heads that it was sent."""

    def __init__(self, *, credentials: str | None = None, instead: int | None = None) -> None:
        self.requests: list[str] = []
        self._credentials = credentials
        self._instead = instead
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                threading.Thread(target=self._tunnel, args=(client,), daemon=True).start()

    def _tunnel(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(1)
            self.requests.append(head.decode())
            if self._credentials is not None and f"proxy-authorization: Basic {self._credentials}" not in head.decode():
                client.sendall(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
                return
            host, _, port = head.split(b" ")[1].decode().rpartition(":")
            upstream = socket.create_connection(
                (host.strip("[]"), int(port)) if self._instead is None else ("127.0.0.1", self._instead)
            )
            self._open.append(upstream)
            client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            threading.Thread(target=_pump, args=(upstream, client), daemon=True).start()
            _pump(client, upstream)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
