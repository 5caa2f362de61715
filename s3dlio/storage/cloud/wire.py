"""The connections of this process to one server, and the operation that runs over them.

An operation (attempts, pauses, connecting, the exchange itself) is one coroutine. It yields what it waits for: a number
of seconds, or a socket with the event and the longest wait. `Wire.perform` runs one operation on blocking sockets in the
caller's thread; `poll.perform_many` runs many at once by readiness polling.

Nothing of it crosses a fork: a child forgets all connections (closes its descriptors without a word to the server).
"""

from __future__ import annotations

import atexit
import select
import ssl
import time
import weakref
from collections import deque
from collections.abc import Generator
from functools import lru_cache
from socket import socket
from typing import Any, Protocol, TypeVar

from ... import config
from ...errors import NotFoundError, S3dlioError
from ...runtime import after_fork
from .connecting import connect, tls_context
from .connection import READ, Connection, Mode, Server, Wait
from .http import ClosedError, IncompleteBodyError, ProtocolError, Request, Response, encode
from .opening import Opening
from .retry import Attempts, Failure, Pace, Policy, Question, Verdict

__all__ = ["Call", "MovedError", "Wire", "close_idle", "wire_to"]

MAX_IDLE = 256
DEFAULT_CONNECTIONS = 256
LONG_PAUSE = 1.0  # seconds of the consumer's own work that may cost a connection its server's patience
BUSY_PAUSE = 0.005
FRESH_SECONDS = 1.0  # a connection that rested no longer is used without a look, unless another was found closed meanwhile

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class MovedError(Exception):
    """The verb has to go on over another wire."""


class Call(Protocol[T_co]):
    """A verb in progress: what to send next, and what to make of the answer."""

    is_read: bool  # it has no body to send, and gives the memory for that of its answer

    @property
    def action(self) -> str: ...

    @property
    def uri(self) -> str: ...

    def request(self) -> Request:
        """The request of the next attempt, signed now."""

    def answer(self, response: Response) -> T_co:
        """The result. Raises Failure for an answer that is none, or an error of the family."""

    def interrupted(self, num_received: int) -> None:
        """The body broke off after so many bytes, which have landed."""

    def is_at(self, wire: Wire) -> bool:
        """Is this still the wire to go over? A correction may have moved the verb to another server."""


class Wire:
    """The connections of this process to one server, and how much is asked of it."""

    is_blocking = True
    paused = 0.0
    num_running = 0

    def __init__(self, server: Server, options: config.TransportOptions) -> None:
        self.server = server
        self.policy = Policy(
            max_attempts=options.max_attempts,
            operation_timeout=options.operation_timeout,
            connect_timeout=options.connect_timeout,
            stall_timeout=options.stall_timeout,
        )
        self.pace = Pace(options.max_connections or DEFAULT_CONNECTIONS, options.max_bytes_per_second)
        self._proxy = config.proxy_of(server.scheme, server.host)
        self._idle: deque[Connection] = deque()
        self._found_closed_at = 0.0  # what closed one connection may have closed all that rested then
        # Strong references, so that none is garbage together with the window that uses it: the collector would finalize the
        # socket, maybe before that window has given it back.
        self._all: set[Connection] = set()

    def perform(self, call: Call[T]) -> T:
        """Run one operation in this thread, on blocking sockets."""
        opening = self.open(call, self)
        if opening is None:
            return _run(self.operation(call, self))
        try:
            if not self.launch(opening, self):
                return _run(self.operation(call, self))
            try:
                assert opening.connection is not None
                if opening.connection.advance(opening):
                    if opening.is_whole:
                        return self.settle(call, opening, self)
                    opening.give_up(TimeoutError(f"no byte for {self.policy.stall_timeout:g} s"))
            except Exception as exc:
                opening.error = exc
            return _run(self.operation(call, self, opening))
        finally:
            self.drop(opening, self)  # nothing is left to drop, but after an interrupt

    # The short way: a request without a body that goes out in one piece, and its plain answer

    def open(self, call: Call[T], mode: Mode) -> Opening | None:
        """Have the request of a read ready to be sent, if nothing is in the way. Most reads need nothing else."""
        if not call.is_read or self.pace.max_bytes_per_second or not call.is_at(self):
            return None
        try:
            opening = Opening(None, call.request(), [], mode.now(), mode.paused)
        except Exception:  # the operation meets it again, and knows what it means
            return None
        is_ready = False
        try:
            if self.pace.enter(opening.place):
                mode.num_running += 1
                connection = opening.connection = mode.take()
                if connection is not None:
                    connection.prepare(mode.is_blocking, self.policy.stall_timeout)
                    opening.unsent = encode(opening.request)
                    is_ready = True
        except Exception:  # as above
            return None
        finally:
            if not is_ready:
                self.drop(opening, mode)
        return opening if is_ready else None

    def launch(self, opening: Opening, mode: Mode) -> bool:
        """Send the request of an opening. Where that does not go at once it is dropped, and the operation begins anew."""
        assert opening.connection is not None
        is_sent = False
        try:
            is_sent = opening.connection.launch(opening)
        finally:
            if not is_sent:
                self.drop(opening, mode)
        return is_sent

    def settle(self, call: Call[T], opening: Opening, mode: Mode) -> T:
        """The result of an opening whose answer is whole. Raises what the call makes of it."""
        response = opening.response
        assert response is not None
        if response.reusable:
            connection, opening.connection = opening.connection, None  # first: none that rests may be dropped
            assert connection is not None
            mode.give(connection)
        self.drop(opening, mode)
        result = call.answer(response)
        if self.pace.is_slowed:
            self.pace.succeeded()
        return result

    def drop(self, opening: Opening, mode: Mode) -> None:
        """Close the connection of an opening and leave its place, as far as it has them."""
        if opening.connection is not None:
            mode.forget(opening.connection.sock)
            opening.connection.close()
            opening.connection = None
        if opening.place:
            self.pace.leave(opening.place)
            mode.num_running -= 1

    def now(self) -> float:
        return time.monotonic()

    def take(self) -> Connection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            given_at = connection.given_at
            is_fresh = given_at > self._found_closed_at and time.monotonic() - given_at < FRESH_SECONDS
            if is_fresh or not _is_readable(connection.sock):  # else the server has closed it, or sent what nobody wants
                return connection
            connection.close()

    def give(self, connection: Connection) -> None:
        self.keep(connection, time.monotonic())

    def keep(self, connection: Connection, seen_at: float) -> None:
        """Put a connection to rest that was open at `seen_at`."""
        connection.given_at = seen_at
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def forget(self, sock: socket) -> None:
        """Blocking sockets are registered nowhere."""

    def close(self) -> None:
        """Close every connection; in a forked child that only closes its own descriptors."""
        for connection in list(self._all):
            connection.close()
        self._all.clear()
        self._idle.clear()

    def operation(self, call: Call[T], mode: Mode, opening: Opening | None = None) -> Generator[Wait, None, T]:
        """The whole of one verb: attempts, the pauses between them, and the questions that an answer raises.

        The first attempt may have begun, as `opening`.
        """
        attempts = Attempts(self.policy, call)
        if opening is not None:
            attempts.begin(opening.started)
        while True:
            paused = mode.paused if opening is None else opening.paused
            try:
                try:
                    begun, opening = opening, None
                    result = call.answer((yield from self._attempt(call, attempts, mode, begun)))
                except Question as question:
                    result = question.judge((yield from self._told(question, mode)))
                if self.pace.is_slowed:
                    self.pace.succeeded()
                return result
            except Failure as failure:
                if failure.verdict is Verdict.THROTTLED:
                    self.pace.throttled(time.monotonic())
                elif failure.verdict is Verdict.RETRY and mode.paused - paused > LONG_PAUSE:
                    failure.verdict = Verdict.CORRECTED
                pause = attempts.pause_after(failure, mode.now())
            if pause:
                yield pause

    def _told(self, question: Question, mode: Mode) -> Generator[Wait, None, Any]:
        try:
            return (yield from self.operation(question.call, mode))
        except NotFoundError:
            return None

    def _attempt(
        self, call: Call[T], attempts: Attempts, mode: Mode, begun: Opening | None
    ) -> Generator[Wait, None, Response]:
        """One exchange, in one of the places of the pace. It never asks for a second place while it has one."""
        # The place is filled in by the pace itself, so that no interrupt comes between the taking and the knowing.
        connection, place = (None, []) if begun is None else (begun.connection, begun.place)
        is_reusable = False
        try:
            if not place:
                while not self.pace.enter(place):
                    yield BUSY_PAUSE
                mode.num_running += 1
            attempts.begin(mode.now())
            if begun is None:
                if not call.is_at(self):
                    raise MovedError(f"{call.uri} is elsewhere now")
                request = call.request()  # before a connection is taken: the call may have another question first
                connection = mode.take() or (yield from self._connected(mode))
                connection.prepare(mode.is_blocking, self.policy.stall_timeout)
                response = yield from connection.converse(request, mode, self.policy.stall_timeout)
            else:
                response = yield from self._resumed(begun, mode)
            is_reusable = response.reusable
            if begun is None and self.pace.max_bytes_per_second:
                yield self.pace.debt(sum(part.nbytes for part in request.body) + response.body.nbytes)
            return response
        except (OSError, S3dlioError, ClosedError, ProtocolError, IncompleteBodyError) as exc:
            raise self._failure_of(exc, call, connection) from exc
        finally:
            try:
                if begun is not None:
                    begun.connection = begun.error = None  # the error's traceback refers to it
                if connection is not None:
                    self._put_away(connection, mode, is_reusable)
            finally:  # an interrupt may cost a descriptor, but no place
                if place:
                    self.pace.leave(place)
                    mode.num_running -= 1

    def _put_away(self, connection: Connection, mode: Mode, is_reusable: bool) -> None:
        if is_reusable:
            mode.give(connection)
        else:
            mode.forget(connection.sock)
            connection.close()

    def _resumed(self, begun: Opening, mode: Mode) -> Generator[Wait, None, Response]:
        if begun.error is not None:
            raise begun.error
        assert begun.connection is not None
        return (yield from begun.connection.receive(begun.request, mode, self.policy.stall_timeout, begun))

    def _connected(self, mode: Mode) -> Generator[Wait, None, Connection]:
        try:
            sock = yield from connect(self.server, self._proxy, mode, self.policy.connect_timeout)
        except ssl.SSLCertVerificationError as exc:
            remedy = "set AWS_CA_BUNDLE, or configure_s3(ca_bundle=...), to the PEM file of the authority to trust"
            reason = f"the certificate of {self.server.url} is not trusted: {exc.verify_message}"
            raise Failure(Verdict.FINAL, reason, remedy=remedy) from exc
        except (OSError, ProtocolError, ClosedError) as exc:
            remedy = "check the endpoint, the network and the proxy settings"
            raise Failure(Verdict.UNREACHED, f"no connection to {self.server.url}: {exc}", remedy=remedy) from exc
        connection = Connection(sock)
        self._all.difference_update([known for known in list(self._all) if known.sock.fileno() < 0])
        self._all.add(connection)
        return connection

    def _failure_of(self, exc: Exception, call: Call[Any], connection: Connection | None) -> Exception:
        """What ended an attempt, as the operation judges it."""
        if isinstance(exc, IncompleteBodyError):
            call.interrupted(exc.num_received)
            return Failure(Verdict.RETRY, str(exc))
        if isinstance(exc, S3dlioError):  # some are OSErrors too, and none is a matter of the connection
            return exc if call.uri in str(exc) else Failure(Verdict.FINAL, str(exc), kind=type(exc))
        was_used = connection is not None and connection.num_served > 0
        is_stale = was_used and isinstance(exc, (ClosedError, ConnectionError))
        if is_stale:
            self._found_closed_at = time.monotonic()
        return Failure(Verdict.CORRECTED if is_stale else Verdict.RETRY, f"{type(exc).__name__}: {exc}")


def _run(operation: Generator[Wait, None, T]) -> T:
    """Drive a coroutine whose sockets block; it yields pauses, and sockets only while it connects."""
    try:
        wait = next(operation)
        while True:
            if isinstance(wait, float):
                time.sleep(wait)
                wait = next(operation)
            elif _is_ready(*wait):
                wait = next(operation)
            else:
                wait = operation.throw(TimeoutError(f"no answer for {wait[2]:.1f} s"))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        operation.close()


def _is_ready(sock: socket, event: int, timeout: float) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN if event == READ else select.POLLOUT)
    return bool(poller.poll(timeout * 1000))


def _is_readable(sock: socket) -> bool:
    return _is_ready(sock, READ, 0.0)


@lru_cache(maxsize=32)
def wire_to(server: Server, options: config.TransportOptions) -> Wire:
    """The wire to `server`, one per process and options."""
    wire = Wire(server, options)
    _wires.add(wire)
    return wire


_wires: weakref.WeakSet[Wire] = weakref.WeakSet()


@atexit.register
def close_idle() -> None:
    """Close the connections that nobody uses now, so that none is left for the garbage collector."""
    for wire in list(_wires):
        while (connection := wire.take()) is not None:
            connection.close()


@after_fork
def _forget_connections() -> None:
    """A store that is held over the fork goes on with its wire, whose connections and locks are new from here on."""
    wire_to.cache_clear()
    for wire in list(_wires):
        wire.close()
        wire.pace.renew()
    tls_context.cache_clear()
