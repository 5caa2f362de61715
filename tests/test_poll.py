"""Many operations in one thread: the window, leaving early, a consumer that takes its time, deadlines, many that sleep."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import s3dlio
from s3dlio import config, errors
from s3dlio.errors import NotFoundError
from s3dlio.storage.base import ObjectInfo, Read
from s3dlio.storage.cloud import poll
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


def test_connections_that_were_closed_while_the_consumer_worked_cost_no_attempt(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3DLIO_MAX_RETRY_ATTEMPTS", "1")
    for number in range(30):
        faults.s3.put(f"k{number}", str(number).encode())
    store = S3Store("bkt", config.s3_options())
    clock = Clock(monkeypatch)
    away = threading.Event()

    def decide(request: Request) -> Fault | None:
        if not 1 <= request.number <= 5:
            return None
        away.wait(30)  # until the consumer has gone
        return Fault(unanswered=True)

    faults.decide = decide
    outcomes = store.read_many(reads(30), window=6)
    next(outcomes)
    away.set()
    clock.ahead += 60.0
    assert not any(isinstance(result, BaseException) for _, result in outcomes)


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
    monkeypatch.setattr(type(store.wire.pace), "debt", lambda self, count: debts.append(pay(self, count, 100.0)) or 0.001)
    many = (Read(f"k{number}", 0, None, _memory) for number in range(10))
    assert not any(isinstance(result, BaseException) for _, result in store.read_many(many, window=5))
    assert max(debts) == pytest.approx(10 * 100_000 / (4 * 1024 * 1024))


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
