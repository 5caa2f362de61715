"""Many operations at once in the caller's own thread, by readiness polling (epoll, kqueue).

The caller waits anyway, so it drives the sockets itself, and no second thread fights for the interpreter's lock. While it
computes between two results the kernel's socket buffers go on receiving; that time counts against no timeout.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Generic, TypeVar

from ... import runtime
from .connection import READ, Connection, Wait
from .opening import Opening
from .wire import Call, Wire

__all__ = ["perform_many"]

LONGEST_POLL = 1.0  # seconds between two looks at the deadlines
LONG_THOUGHT = 0.001  # seconds that a call may take to come, before those that are ready are sent without it

T = TypeVar("T")


def perform_many(wire: Wire, calls: Iterable[Call[T]], *, window: int) -> Iterator[tuple[Call[T], T | BaseException]]:
    """Run operations, at most `window` begun and not yet consumed, and yield (call, result or error) as they end.

    `calls` is advanced only as far as the window allows. When the iterator is left early, what runs is dropped and its
    connections are closed.
    """
    driver: _Driver[T] = _Driver(wire, iter(calls), window)
    try:
        yield from driver.outcomes()
    finally:
        driver.close()


class _Flight(Generic[T]):
    """One operation on its way: as an opening while all goes well, else as a coroutine."""

    __slots__ = ("call", "deadline", "opening", "operation")

    def __init__(self, call: Call[T]) -> None:
        self.call = call
        self.deadline = 0.0
        self.opening: Opening | None = None
        self.operation: Generator[Wait, None, T] | None = None


class _Driver(Generic[T]):
    """The mode and the loop of one `perform_many`; its connections stay registered until its end."""

    is_blocking = False

    def __init__(self, wire: Wire, calls: Iterator[Call[T]], window: int) -> None:
        self.paused = 0.0
        self.num_running = 0
        self.is_parked = False
        self._wire = wire
        self._calls = calls
        self._room = window  # how many more may begin
        self._num_consumed = 0  # since more were begun: room alone does not tell, since `calls` may pause
        self._burst = max(1, window // 4)  # sent in a row, they wake the server once
        self._selector = selectors.DefaultSelector()
        self._events: dict[int, int] = {}  # what each descriptor is registered for
        self._waiting: dict[int, _Flight[T]] = {}  # by descriptor
        self._sleeping: list[tuple[float, int, _Flight[T]]] = []
        self._ended: deque[tuple[Call[T], T | BaseException]] = deque()
        self._idle: dict[int, Connection] = {}  # by descriptor
        self._flights: set[_Flight[T]] = set()  # all that have begun and not ended, whatever an interrupt has broken off
        self._polled_at = 0.0  # when no idle connection was closed, by the monotonic clock
        self._numbers = itertools.count()
        self._next_check = 0.0
        self._owner = os.getpid()
        wire.pace.crowds.append(self)

    def now(self) -> float:
        return time.monotonic() - self.paused

    def take(self) -> Connection | None:
        return self._idle.popitem()[1] if self._idle else self._wire.take()

    def give(self, connection: Connection) -> None:
        self._idle[connection.sock.fileno()] = connection

    def forget(self, sock: socket.socket) -> None:
        if self._events.pop(sock.fileno(), None) is not None:
            with contextlib.suppress(KeyError):  # ^C within the selector's own modify() leaves it unregistered
                self._selector.unregister(sock)

    def outcomes(self) -> Iterator[tuple[Call[T], T | BaseException]]:
        while True:
            runtime.check_owner(self._owner)  # a forked child shares the selector and the sockets
            if self._num_consumed >= self._burst or not self._ended:
                self._num_consumed = 0
                self._begin_more()
            if self._ended:
                outcome = self._ended.popleft()
                left, self.is_parked = time.monotonic(), True
                try:
                    yield outcome
                finally:
                    self.is_parked = False
                    self.paused += time.monotonic() - left
                self._room += 1
                self._num_consumed += 1
            elif self._waiting or self._sleeping:
                self._poll()
            else:
                return

    def _begin_more(self) -> None:
        """Begin what may begin: requests are made ready first and then sent in a row, which wakes the server once."""
        ready: list[tuple[_Flight[T], Opening]] = []
        while self._room:
            asked_at = time.monotonic()
            call = self._next_call()
            if call is None:
                break
            self._room -= 1
            flight = _Flight(call)
            self._flights.add(flight)
            opening = flight.opening = self._wire.open(call, self)
            if opening is None:
                self._step(flight, None)
                continue
            ready.append((flight, opening))
            if len(ready) == self._burst or time.monotonic() - asked_at > LONG_THOUGHT:
                self._launch(ready)
                ready = []
        self._launch(ready)

    def _next_call(self) -> Call[T] | None:
        """None when there is none now: the iterator may pause, and go on later. It may read from the same server itself."""
        self.is_parked = True
        try:
            return next(self._calls, None)
        finally:
            self.is_parked = False

    def _launch(self, ready: list[tuple[_Flight[T], Opening]]) -> None:
        """Send the requests of these openings; one that does not go out at once goes on as a coroutine."""
        for flight, opening in ready:
            connection = opening.connection
            assert connection is not None
            if self._wire.launch(opening, self):
                self._wait(flight, (connection.sock, READ, self._wire.policy.stall_timeout))
            else:
                flight.opening = None
                self._step(flight, None)

    def _advance(self, flight: _Flight[T], opening: Opening) -> bool:
        """Receive what has come for an opening. Is its answer whole?"""
        connection = opening.connection
        assert connection is not None
        if not connection.advance(opening):
            self._step(flight, None)
        elif opening.is_whole:
            return True
        else:
            self._wait(flight, (connection.sock, READ, self._wire.policy.stall_timeout))
        return False

    def _settle(self, flight: _Flight[T], opening: Opening) -> None:
        try:
            result = self._wire.settle(flight.call, opening, self)
        except Exception as exc:
            opening.error = exc
            self._step(flight, None)
        else:
            self._end(flight, result)

    def _end(self, flight: _Flight[T], result: T | BaseException) -> None:
        self._ended.append((flight.call, result))
        self._flights.discard(flight)

    def _step(self, flight: _Flight[T], error: BaseException | None) -> None:
        """Let a flight go on as a coroutine, up to what it waits for next."""
        if flight.operation is None:
            flight.operation = self._wire.operation(flight.call, self, flight.opening)
        try:
            wait = next(flight.operation) if error is None else flight.operation.throw(error)
        except StopIteration as stop:
            self._end(flight, stop.value)
        except Exception as exc:
            self._end(flight, exc)
        else:
            self._wait(flight, wait)

    def _wait(self, flight: _Flight[T], wait: Wait) -> None:
        if isinstance(wait, float):
            heapq.heappush(self._sleeping, (self.now() + wait, next(self._numbers), flight))
            return
        sock, event, timeout = wait
        descriptor = sock.fileno()
        flight.deadline = time.monotonic() - self.paused + timeout
        self._waiting[descriptor] = flight
        registered = self._events.get(descriptor)
        if registered == event:
            return
        if registered is None:
            self._selector.register(descriptor, event)
        else:
            self._selector.modify(descriptor, event)
        self._events[descriptor] = event

    def _poll(self) -> None:
        now = self.now()
        timeout = LONGEST_POLL if not self._sleeping else min(LONGEST_POLL, max(0.0, self._sleeping[0][0] - now))
        ready = [(key.fd, self._waiting.pop(key.fd, None)) for key, _ in self._selector.select(timeout)]
        for descriptor, flight in ready:
            if flight is None:
                self._drop_idle(descriptor)
            elif flight.operation is not None:
                self._step(flight, None)
        self._go_on([(flight, flight.opening) for _, flight in ready if flight and flight.opening and not flight.operation])
        now = self.now()
        self._polled_at = now + self.paused
        while self._sleeping and self._sleeping[0][0] <= now:
            self._step(heapq.heappop(self._sleeping)[2], None)
        if now >= self._next_check:
            self._next_check = now + LONGEST_POLL
            self._check_deadlines(now)

    def _go_on(self, openings: list[tuple[_Flight[T], Opening]]) -> None:
        """Take all that are ready from step to step together: each kind of work then finds its caches warm."""
        for _, opening in openings:
            assert opening.connection is not None
            opening.connection.pull(opening)
        for _, opening in openings:
            assert opening.connection is not None
            opening.connection.look(opening)
        whole = [(flight, opening) for flight, opening in openings if self._advance(flight, opening)]
        for flight, opening in whole:
            self._settle(flight, opening)

    def _drop_idle(self, descriptor: int) -> None:
        """An idle connection that turns readable was closed by the server."""
        connection = self._idle.pop(descriptor, None)
        if connection is not None:
            self.forget(connection.sock)
            connection.close()

    def _check_deadlines(self, now: float) -> None:
        late = [descriptor for descriptor, flight in self._waiting.items() if flight.deadline <= now]
        for descriptor in late:
            flight = self._waiting.pop(descriptor, None)
            if flight is None:
                continue
            error = TimeoutError("no byte for too long")
            if flight.operation is None and flight.opening is not None:
                flight.opening.give_up(error)
                self._step(flight, None)
            else:
                self._step(flight, error)

    def close(self) -> None:
        """Drop what still runs; give connections that are at rest back to the process."""
        with contextlib.suppress(ValueError):  # a forked child has forgotten all crowds
            self._wire.pace.crowds.remove(self)
        if os.getpid() != self._owner:  # a forked child must not touch what its parent has registered
            self._events.clear()
            self._idle.clear()  # they are closed here
        self._waiting.clear()
        self._sleeping.clear()
        for flight in self._flights:
            if flight.operation is not None:
                flight.operation.close()
            if flight.opening is not None:
                self._wire.drop(flight.opening, self)
        self._flights.clear()
        self._selector.close()
        for connection in self._idle.values():
            self._wire.keep(connection, self._polled_at)
        self._idle.clear()
