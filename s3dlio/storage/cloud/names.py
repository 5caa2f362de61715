"""Addresses of servers: looked up in a thread, so that a name server which does not answer stops nobody else."""

from __future__ import annotations

import codecs
import errno
import itertools
import socket
import time
from collections.abc import Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

from ...runtime import Threads, after_fork
from .connection import Mode

__all__ = ["Address", "forget", "look_up", "require_possible"]

FRESH_SECONDS = 10.0  # for so long an answer serves further connections
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.02  # seconds between two looks at whether the answer has come
MAX_LOOKUPS = 16  # at once; others wait for their turn

Address: TypeAlias = tuple[int, int, int, str, Any]
"""Family, kind, protocol, canonical name and address, as `socket.getaddrinfo` gives them."""

_threads = Threads("name", lambda: MAX_LOOKUPS)
_known: dict[tuple[str, int], tuple[float, list[Address]]] = {}
_asked_last: dict[tuple[str, int], Future[list[Address]]] = {}
_turns = itertools.count()
# Names are encoded so, and Python imports a codec when it is first used: in a thread, while another one forks, a child would
# wait for that import without end.
codecs.lookup("idna")
after_fork(_known.clear)
after_fork(_asked_last.clear)


def look_up(host: str, port: int, mode: Mode, deadline: float) -> Generator[float, None, list[Address]]:
    """The addresses of a server, each time another one of the best kind first.

    Raises OSError when there are none, and TimeoutError when nobody has said so until `deadline` (by `mode.now()`).
    """
    require_possible(host)
    place = host, port
    addresses = _fresh(place) or _numeric(host, port) or (yield from _asked(place, mode, deadline))
    return _rotated(addresses, next(_turns))


def require_possible(host: str) -> None:
    """Raise OSError when no server can have this name: a part of it is empty, or has more than 63 characters."""
    try:
        host.encode("idna")
    except UnicodeError as exc:
        raise OSError(errno.EINVAL, f"{host!r} is no name of a server: {exc}") from exc


def forget(host: str, port: int) -> None:
    """None of the addresses was of use: the next connection asks again."""
    _known.pop((host, port), None)


def _fresh(place: tuple[str, int]) -> list[Address]:
    until, addresses = _known.get(place, (0.0, []))
    return addresses if time.monotonic() < until else []


def _numeric(host: str, port: int) -> list[Address]:
    """The address that a host without a name is; [] for a name."""
    try:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    except socket.gaierror:
        return []


def _asked(place: tuple[str, int], mode: Mode, deadline: float) -> Generator[float, None, list[Address]]:
    """Ask, or wait for the answer that another connection has asked for."""
    future, pause = _asked_last.get(place), FIRST_PAUSE
    if future is None or future.done():
        if addresses := _fresh(place):  # it has come meanwhile
            return addresses
        future = _asked_last[place] = _threads.submit(partial(_answer, place))
    while not future.done():
        if mode.now() >= deadline:
            raise TimeoutError(f"no name server has told the address of {place[0]} in time")
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)
    return future.result()


def _answer(place: tuple[str, int]) -> list[Address]:
    addresses: list[Address] = list(socket.getaddrinfo(*place, type=socket.SOCK_STREAM))
    now = time.monotonic()
    for other, (until, _) in list(_known.items()):  # as many names may come by as there are buckets
        if until < now:
            _known.pop(other, None)
            _asked_last.pop(other, None)
    _known[place] = now + FRESH_SECONDS, addresses
    return addresses


def _rotated(addresses: list[Address], turn: int) -> list[Address]:
    """Begin with another address of the first one's family, so that connections spread over a store's servers."""
    num_best = sum(1 for _ in itertools.takewhile(lambda address: address[0] == addresses[0][0], addresses))
    turn %= max(1, num_best)
    return addresses[turn:num_best] + addresses[:turn] + addresses[num_best:]
