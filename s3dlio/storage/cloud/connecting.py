"""Getting connected: addresses tried one after the other, a proxy, TLS."""

from __future__ import annotations

import base64
import errno
import os
import socket
import ssl
from collections.abc import Generator
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

from ...errors import ConfigError
from .connection import READ, WRITE, Connection, Mode, Server, Wait
from .http import ProtocolError, Request, header_lines
from .names import Address, forget, look_up, require_possible

__all__ = ["connect", "tls_context"]


def connect(server: Server, proxy: str | None, mode: Mode, timeout: float) -> Generator[Wait, None, socket.socket]:
    """A connected socket, through the proxy if there is one, with TLS where the scheme says so."""
    require_possible(server.host)  # a proxy may look it up, and nobody here
    target = _proxy_of(proxy) if proxy else None
    host, port = (server.host, server.port) if target is None else (target.hostname or "", target.port or 80)
    sock = yield from _connect_tcp(host, port, mode, timeout)
    try:
        if target is not None:
            yield from _through_proxy(sock, server, target.username, target.password, mode, timeout)
        if server.scheme == "https":
            context = tls_context(server.ca_bundle)
            mode.forget(sock)  # wrapping takes the descriptor away from it, even when it fails
            sock = context.wrap_socket(sock, server_hostname=server.host, do_handshake_on_connect=False)
            yield from _handshake(sock, timeout)
    except BaseException:
        mode.forget(sock)
        sock.close()
        raise
    return sock


def _proxy_of(url: str) -> SplitResult:
    """The parts of a proxy's URL, which may hold a password: no error shows it."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        is_good = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        shown = url.rpartition("@")[2]
        raise ConfigError(f"the proxy {shown!r} (HTTP_PROXY, HTTPS_PROXY) is no URL such as 'http://host:3128'")
    return parts


class _Socket(socket.socket):
    """One that closes itself, without a warning, where ^C comes before anybody knows of it."""

    def __del__(self) -> None:
        if self.fileno() >= 0:
            os.close(self.detach())


def _connect_tcp(host: str, port: int, mode: Mode, timeout: float) -> Generator[Wait, None, socket.socket]:
    deadline = mode.now() + timeout
    failure: OSError | None = None
    addresses = yield from look_up(host, port, mode, deadline)
    for number, address in enumerate(addresses):
        share = (deadline - mode.now()) / (len(addresses) - number)  # a dead address leaves time for the next one
        try:
            return (yield from _connect_to(address, mode, max(0.001, share)))
        except OSError as exc:
            failure = failure or exc  # the best address comes first: the last one's family may not even be there
    forget(host, port)
    raise failure or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")


def _connect_to(address: Address, mode: Mode, timeout: float) -> Generator[Wait, None, socket.socket]:
    family, kind, protocol, _, place = address
    sock = _Socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(place)
        if code == errno.EINPROGRESS:
            yield sock, WRITE, timeout
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        mode.forget(sock)
        sock.close()
        raise
    return sock


def _through_proxy(
    sock: socket.socket, server: Server, user: str | None, password: str | None, mode: Mode, timeout: float
) -> Generator[Wait, None, None]:
    authority = f"[{server.host}]:{server.port}" if ":" in server.host else f"{server.host}:{server.port}"
    headers = [("host", authority)]
    if user:
        token = base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
        headers.append(("proxy-authorization", f"Basic {token}"))
    tunnel = Connection(sock, owns=False)
    polled = _Connecting(mode)
    response = yield from tunnel.converse(Request("CONNECT", authority, header_lines(headers)), polled, timeout)
    if response.head.status != 200:
        raise ProtocolError(f"the proxy refused with status {response.head.status}")


class _Connecting:
    """The mode of a socket that does not block yet, whoever drives it."""

    is_blocking = False

    def __init__(self, mode: Mode) -> None:
        self.paused = mode.paused
        self.num_running = mode.num_running
        self.now = mode.now
        self.take = mode.take
        self.give = mode.give
        self.forget = mode.forget


def _handshake(sock: ssl.SSLSocket, timeout: float) -> Generator[Wait, None, None]:
    while True:
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            yield sock, READ, timeout
        except ssl.SSLWantWriteError:
            yield sock, WRITE, timeout


@lru_cache(maxsize=16)
def tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    """Verifies the server against the system's authorities, or those of the PEM file or folder `ca_bundle`."""
    try:
        if ca_bundle is not None and os.path.isdir(ca_bundle):
            return ssl.create_default_context(capath=ca_bundle)
        return ssl.create_default_context(cafile=ca_bundle)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"the CA bundle {ca_bundle!r} (AWS_CA_BUNDLE) cannot be read: {exc}") from exc
