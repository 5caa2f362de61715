"""Many operations in one thread: the window, leaving early, a consumer that takes its time, deadlines, many that sleep."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import s3dlio
from s3dlio import config, errors
from s3dlio.errors import NotFoundError
from s3dlio.storage.base import ObjectInfo, Read
from s3dlio.storage.cloud import poll, wire
from s3dlio.storage.cloud.connection import Connection
from s3dlio.storage.cloud.s3 import S3Store
from s3dlio.storage.cloud.s3_read import ReadCall

from .fake_s3 import Request
from .faults import Fault, FaultServer, failing


class Clock:
    """The machine's clock, set forward on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real = poll.time.monotonic
        monkeypatch.setattr(poll.time, "monotonic", lambda: real() + self.ahead)


@pytest.fixture
def store(faults: FaultServer) -> S3Store:
    for number in range(300):
        faults.s3.put(f"k{number}", str(number).encode())
    return S3Store("bkt", config.s3_options())


def reads(count: int, begun: list[int] | None = None) -> Iterator[Read]:
    for number in range(count):
        if begun is not None:
            begun.append(number)
        yield Read(f"k{number}", 0, 100, _memory, None, number)


def _memory(_: ObjectInfo, length: int) -> memoryview:
    return memoryview(bytearray(length))


def results(store: S3Store, count: int, window: int) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for read, result in store.read_many(reads(count), window=window):
        assert read.tag not in found
        found[read.tag] = result if isinstance(result, BaseException) else bytes(result.data)
    return found


def right(count: int) -> dict[int, bytes]:
    return {number: str(number).encode() for number in range(count)}


@pytest.mark.parametrize("window", [2, 7, 64])
def test_every_read_ends_once_and_its_window_is_never_exceeded(faults: FaultServer, store: S3Store, window: int) -> None:
    begun: list[int] = []
    num_ended = 0
    for read, result in store.read_many(reads(300, begun), window=window):
        assert not isinstance(result, BaseException)
        assert bytes(result.data) == str(read.tag).encode()
        num_ended += 1
        # One more than the window: the one that is in the consumer's hands now has left it.
        assert len(begun) - num_ended <= window
    assert num_ended == 300
    assert faults.num_connections <= window


def test_the_server_sees_no_more_at_once_than_the_window(faults: FaultServer, store: S3Store) -> None:
    lock, running, most = threading.Lock(), 0, 0
    full = threading.Event()

    def decide(request: Request) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 8:
                full.set()
        full.wait(30)  # until the window is full
        with lock:
            running -= 1

    faults.decide = decide
    assert results(store, 100, 8) == right(100)
    assert most == 8


def test_no_more_run_than_the_process_may_ask_of_one_server(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3DLIO_MAX_CONNECTIONS", "3")
    for number in range(50):
        faults.s3.put(f"k{number}", str(number).encode())
    assert results(S3Store("bkt", config.s3_options()), 50, 16) == right(50)
    assert faults.num_connections <= 3


@pytest.mark.timeout(30)
def test_what_is_to_be_read_may_be_found_by_reading(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lazy listing, say. What its consumer has begun keeps it out of no place, or both would wait for ever."""
    monkeypatch.setenv("S3DLIO_MAX_CONNECTIONS", "1")
    for number in range(10):
        faults.s3.put(f"k{number}", str(number).encode())
    store = S3Store("bkt", config.s3_options())

    def found() -> Iterator[Read]:
        for read in reads(10):
            store.read(Read("k0", 0, 10, _memory))
            yield read

    store.read(next(reads(1)))  # there is a connection at rest
    outcomes = store.read_many(found(), window=4)
    assert sorted(bytes(result.data) for _, result in outcomes if not isinstance(result, BaseException)) == [
        str(number).encode() for number in range(10)
    ]
    assert store.wire.pace.num_running == 0


def test_errors_come_as_results_and_stop_nothing(faults: FaultServer, store: S3Store) -> None:
    del faults.s3.buckets["bkt"]["k7"]
    found = results(store, 20, 4)
    error = found.pop(7)
    assert isinstance(error, NotFoundError)
    assert "s3://bkt/k7" in str(error)
    assert found == {number: data for number, data in right(20).items() if number != 7}


def test_leaving_early_begins_nothing_more_and_closes_what_runs(faults: FaultServer, store: S3Store) -> None:
    faults.decide = lambda request: Fault(stall=0) if request.key not in ("k0", "k1") else None
    begun: list[int] = []
    outcomes = store.read_many(reads(300, begun), window=10)
    next(outcomes)
    num_begun = len(begun)
    outcomes.close()  # type: ignore[attr-defined]
    assert len(begun) == num_begun <= 10
    assert store.wire.pace.num_running == 0
    open_connections = [connection for connection in store.wire._all if connection.sock.fileno() >= 0]
    assert len(open_connections) <= 2  # those at rest
    faults.decide = lambda _: None
    assert results(store, 50, 10) == right(50)


def test_a_window_that_the_garbage_collector_ends_gives_open_connections_back(store: S3Store) -> None:
    """In a cycle of garbage all is finalized, in any order: connections must not be a part of it."""
    for _ in range(10):
        outcomes: Any = store.read_many(reads(100), window=16)
        for _ in range(90):
            next(outcomes)
        cycle = [outcomes]
        cycle.append(cycle)
        del outcomes, cycle
        gc.collect()
        assert all(connection.sock.fileno() >= 0 for connection in store.wire._idle)
        assert results(store, 40, 8) == right(40)
    assert len(store.wire._all) <= 16 + 8, "closed ones are forgotten"


def test_the_consumers_own_time_counts_against_no_timeout(
    faults: FaultServer, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    num_ended = 0
    for _, result in store.read_many(reads(30), window=5):
        assert not isinstance(result, BaseException)
        num_ended += 1
        clock.ahead += 3600.0
    assert num_ended == 30
    assert len(faults.requests) == 30


def outcomes_of_30_where_the_consumer_is_away(
    faults: FaultServer, store: S3Store, clock: Clock, numbers: range, fault: Fault
) -> Iterator[tuple[Read, Any]]:
    """All outcomes but the first; requests of these `numbers` meet the fault while the consumer works for a minute."""
    away = threading.Event()

    def decide(request: Request) -> Fault | None:
        if request.number not in numbers or away.is_set():  # some may not have been sent before
            return None
        away.wait(30)  # until the consumer has gone
        return fault

    faults.decide = decide
    outcomes = store.read_many(reads(30), window=6)
    next(outcomes)
    away.set()
    clock.ahead += 60.0
    return outcomes


def test_connections_that_were_closed_while_the_consumer_worked_cost_no_attempt(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3DLIO_MAX_RETRY_ATTEMPTS", "1")
    for number in range(30):
        faults.s3.put(f"k{number}", str(number).encode())
    store = S3Store("bkt", config.s3_options())
    clock = Clock(monkeypatch)
    outcomes = outcomes_of_30_where_the_consumer_is_away(faults, store, clock, range(1, 6), Fault(unanswered=True))
    assert not any(isinstance(result, BaseException) for _, result in outcomes)


def test_answers_that_were_cut_while_the_consumer_worked_cost_no_attempt(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3DLIO_MAX_RETRY_ATTEMPTS", "1")
    for number in range(30):
        faults.s3.put(f"k{number}", b"%d" % number * 50)
    store = S3Store("bkt", config.s3_options())
    assert len(list(store.read_many(reads(10), window=6))) == 10  # there are connections at rest
    clock = Clock(monkeypatch)
    outcomes = outcomes_of_30_where_the_consumer_is_away(faults, store, clock, range(11, 16), Fault(cut=20))
    assert not any(isinstance(result, BaseException) for _, result in outcomes)


@pytest.mark.parametrize("window", [1, 4])
def test_what_has_landed_of_a_stalled_answer_is_not_asked_again(
    faults: FaultServer, short_pauses: None, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setenv("S3DLIO_READ_TIMEOUT_SECS", "0.3")
    faults.s3.put("k0", bytes(range(100)))
    store = S3Store("bkt", config.s3_options())
    assert results(store, 1, window) == {0: bytes(range(100))}  # there is a connection at rest
    faults.decide = lambda request: Fault(stall=30) if request.number == 1 else None
    assert results(store, 1, window) == {0: bytes(range(100))}
    assert [request.headers["range"] for request in faults.requests] == ["bytes=0-99", "bytes=0-99", "bytes=30-99"]


def test_no_retry_begins_too_late_after_the_first_attempt_has_begun(
    faults: FaultServer, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3DLIO_READ_TIMEOUT_SECS", "0.3")
    monkeypatch.setenv("S3DLIO_OPERATION_TIMEOUT_SECS", "0.2")
    faults.s3.put("k0", b"data")
    store = S3Store("bkt", config.s3_options())
    for window in (1, 4):
        faults.decide = lambda _: None
        results(store, 1, window)  # there is a connection at rest
        faults.requests.clear()
        faults.decide = lambda _: Fault(stall=2)
        assert isinstance(results_or_errors(store, window)[0], errors.S3dlioError)
        assert len(faults.requests) == 1


def results_or_errors(store: S3Store, window: int) -> list[Any]:
    return [result for _, result in store.read_many(reads(1), window=window)]


def close_all(faults: FaultServer) -> None:
    """As a server does that is started anew."""
    with faults._lock:
        for sock in faults._open:
            sock.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: not faults._open)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("window", [1, 2, 64])
def test_all_connections_at_rest_may_have_been_closed(
    faults: FaultServer, store: S3Store, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """One that is found closed says that the others must be looked at, however shortly they have rested."""
    faults.decide = lambda _: Fault(delay=0.05)  # so that each has a connection
    results(store, 64, 64)
    assert len(store.wire._idle) > 20
    faults.decide = lambda _: None
    monkeypatch.setattr(wire, "FRESH_SECONDS", 1e9)
    close_all(faults)
    assert results(store, 64, window) == right(64)


def test_connections_of_a_window_that_rested_for_long_are_looked_at(
    faults: FaultServer, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    faults.decide = lambda _: Fault(delay=0.05)
    outcomes = store.read_many(reads(16), window=16)
    for _ in range(16):
        next(outcomes)
    faults.decide = lambda _: None
    clock.ahead += 60.0
    outcomes.close()  # type: ignore[attr-defined]
    assert len(store.wire._idle) == 16
    close_all(faults)
    assert store.wire.take() is None


def test_an_interrupt_costs_no_place(faults: FaultServer, store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes: at the entry of any function that has to do with an attempt."""
    results(store, 4, 4)
    for owner, name in [
        (poll._Driver, "_advance"),
        (poll._Driver, "_settle"),
        (poll._Driver, "_step"),
        (poll._Driver, "_wait"),
        (poll._Driver, "give"),
        (poll._Driver, "take"),
        (wire.Wire, "settle"),
        (wire.Wire, "operation"),
        (wire.Wire, "_attempt"),
        (wire.Wire, "_resumed"),
        (wire.Wire, "give"),
        (wire.Wire, "take"),
        (wire, "_run"),
        (Connection, "advance"),
        (Connection, "receive"),
    ]:
        for window in (1, 3):
            for first in (None, failing(500, "InternalError"), Fault(cut=0)):
                faults.decide = partial(only_k1, first)
                with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt, errors.S3dlioError):
                    patched.setattr(owner, name, interrupted)
                    results(store, 3, window)
                faults.decide = lambda _: None
                assert store.wire.pace.num_running == 0, (name, window, first)
                assert results(store, 3, window) == right(3)


def only_k1(fault: Fault | None, request: Request) -> Fault | None:
    return fault if request.key == "k1" else None


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_a_forked_child_goes_on_without_the_connections_of_an_iteration(store: S3Store) -> None:
    outcomes = store.read_many(reads(40), window=8)
    for _ in range(36):
        next(outcomes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are threads
        child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            outcomes.close()  # type: ignore[attr-defined]
            assert store.wire.pace.num_running == 0
            assert bytes(store.read(next(reads(1))).data) == b"0"
            code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(outcomes)) == 4


def test_a_stalled_answer_is_given_up_and_asked_again(
    faults: FaultServer, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3DLIO_READ_TIMEOUT_SECS", "0.3")
    for number in range(20):
        faults.s3.put(f"k{number}", str(number).encode())
    faults.decide = lambda request: Fault(stall=0) if request.number in (0, 5, 9) else None
    assert results(S3Store("bkt", config.s3_options()), 20, 4) == right(20)
    assert len(faults.requests) == 23


def test_many_that_sleep_all_wake(faults: FaultServer, store: S3Store, short_pauses: None) -> None:
    refused: set[str] = set()

    def decide(request: Request) -> Fault | None:
        is_new = request.key not in refused
        refused.add(request.key)
        return failing(500, "InternalError") if is_new else None

    faults.decide = decide
    assert results(store, 200, 200) == right(200)
    assert len(faults.requests) == 400


def test_a_limit_in_bytes_per_second_is_kept_without_blocking(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read pays for its bytes by waiting, as long as they take at the limit: none is lost."""
    monkeypatch.setenv("S3DLIO_MAX_MB_PER_SECOND", "4")
    debts: list[float] = []
    for number in range(10):
        faults.s3.put(f"k{number}", bytes(100_000))
    store = S3Store("bkt", config.s3_options())
    pay = type(store.wire.pace).debt
    owed = pay(store.wire.pace, 0, 100.0)  # by whoever had a server on this port before
    monkeypatch.setattr(type(store.wire.pace), "debt", lambda self, count: debts.append(pay(self, count, 100.0)) or 0.001)
    many = (Read(f"k{number}", 0, None, _memory) for number in range(10))
    assert not any(isinstance(result, BaseException) for _, result in store.read_many(many, window=5))
    assert max(debts) - owed == pytest.approx(10 * 100_000 / (4 * 1024 * 1024))


def test_what_the_destination_raises_is_the_result(faults: FaultServer, store: S3Store) -> None:
    def full(_: ObjectInfo, __: int) -> memoryview:
        raise MemoryError("no room")

    many = [Read("k1", 0, 100, full, None, 1), Read("k2", 0, 100, _memory, None, 2)]
    found = {read.tag: result for read, result in store.read_many(many, window=2)}
    assert isinstance(found[1], MemoryError)
    assert not isinstance(found[2], BaseException)
    assert store.wire.pace.num_running == 0


def test_an_operation_may_be_driven_by_either_driver(faults: FaultServer, store: S3Store) -> None:
    call = ReadCall(store, next(reads(1)))
    assert bytes(store.wire.perform(call).data) == b"0"
    with pytest.raises(errors.NotFoundError):
        store.wire.perform(ReadCall(store, Read("none", 0, 1, _memory)))
    outcomes = poll.perform_many(store.wire, [ReadCall(store, read) for read in reads(3)], window=3)
    assert sorted(bytes(result.data) for _, result in outcomes if not isinstance(result, BaseException)) == [
        b"0",
        b"1",
        b"2",
    ]


@pytest.mark.parametrize("read", [s3dlio.get, lambda uri: s3dlio.get_many([uri] * 2)[0]], ids=["get", "get_many"])
def test_a_body_that_stalls_goes_on_where_it_was(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], s3dlio.BytesView]
) -> None:
    monkeypatch.setenv("S3DLIO_READ_TIMEOUT_SECS", "0.3")
    data = bytes(range(256)) * 1000
    faults.s3.put("k", data)
    s3dlio.get("s3://bkt/k")  # a connection is open: what follows takes the short way
    first = len(faults.requests)
    faults.decide = lambda request: Fault(stall=100_000) if request.number == first else None
    assert read("s3://bkt/k") == data
    ranges = [request.headers["range"] for request in faults.requests[first:]]
    assert "bytes=100000-33554431" in ranges
