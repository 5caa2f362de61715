"""Addresses of servers: asked for once, spread over, forgotten when they lead nowhere; a dumb name server stops nobody."""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

import s3dlio
from s3dlio.storage.cloud import connecting, names

from .faults import FaultServer
from .proxy import Proxy
from .test_s3_recovery import assert_all_there, fill

Ask = Callable[..., list[names.Address]]


def address(host: str, port: int, family: int = socket.AF_INET) -> names.Address:
    return family, socket.SOCK_STREAM, 6, "", (host, port)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names that were asked for."""
    asked: list[str] = []
    ask = socket.getaddrinfo

    def noted(host: str, port: int, *args: Any, flags: int = 0, **kwargs: Any) -> Any:
        if not flags & socket.AI_NUMERICHOST:
            asked.append(host)
        return ask(host, port, *args, flags=flags, **kwargs)

    names._known.clear()
    monkeypatch.setattr(socket, "getaddrinfo", noted)
    yield asked
    names._known.clear()


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], list[names.Address]]) -> None:
    """Have a name server answer so, of any name."""
    ask = socket.getaddrinfo

    def answered(host: str, port: int, *args: Any, flags: int = 0, **kwargs: Any) -> Any:
        return ask(host, port, *args, flags=flags, **kwargs) if flags & socket.AI_NUMERICHOST else answer()

    monkeypatch.setattr(socket, "getaddrinfo", answered)


@pytest.fixture
def named(faults: FaultServer, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> FaultServer:
    """A server that is known by a name."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://localhost:{faults.port}")
    return faults


def test_a_burst_of_connections_asks_once(named: FaultServer, asked: list[str]) -> None:
    assert_all_there(fill(named, 60), workers=30)
    assert named.num_connections > 1
    assert asked == ["localhost"]


def test_an_address_is_asked_of_nobody(faults: FaultServer, asked: list[str]) -> None:
    assert_all_there(fill(faults, 3))
    assert asked == []


@pytest.mark.parametrize("read", [lambda uri: s3dlio.get(uri), lambda uri: s3dlio.get_many([uri] * 8)], ids=["get", "many"])
def test_a_name_server_that_never_answers_is_given_up(
    named: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], object]
) -> None:
    released = threading.Event()
    answer_with(monkeypatch, lambda: [address("127.0.0.1", named.port)] * released.wait(60))
    try:
        with pytest.raises(s3dlio.S3dlioError, match=r"s3://bkt/k.*no name server has told the address of localhost"):
            read("s3://bkt/k")
    finally:
        released.set()


def test_while_it_does_not_answer_others_are_served(
    named: FaultServer, faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(named, 200)
    assert_all_there(expected, workers=4)  # these connections are open now, and no more can be made
    released = threading.Event()
    names._known.clear()
    answer_with(monkeypatch, lambda: [address("127.0.0.1", named.port)] if released.wait(60) else [])
    reads = iter(s3dlio.PyBytesAsyncDataLoader(s3dlio.PyDataset.from_uris(expected), {"prefetch": 64}).items())
    assert len([next(reads) for _ in range(100)]) == 100
    released.set()
    assert len(list(reads)) == 100


def test_a_name_that_nobody_knows_is_an_error_with_a_remedy(named: FaultServer, impatient: None, asked: list[str]) -> None:
    os.environ["AWS_ENDPOINT_URL"] = "http://no-such-host.invalid:1"  # the fixture puts it back
    with pytest.raises(s3dlio.S3dlioError, match=r"s3://bkt/k.*no-such-host\.invalid.*check the endpoint"):
        s3dlio.get("s3://bkt/k")
    assert len(asked) > 1  # nobody remembers that there was no answer


class NoIPv6(connecting._Socket):
    """A socket of a machine that knows no IPv6."""

    def __init__(self, family: int, *args: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        super().__init__(family, *args)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_address_of_a_family_that_is_not_there_keeps_nobody_from_the_others(
    named: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    expected = fill(named, 3)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
    monkeypatch.setattr(connecting, "_Socket", NoIPv6)
    without = address("::1", named.port, socket.AF_INET6)
    if is_first:
        answer_with(monkeypatch, lambda: [without, address("127.0.0.1", named.port)])
        assert_all_there(expected)
    else:
        answer_with(monkeypatch, lambda: [address("127.0.0.1", dead), without])
        with pytest.raises(s3dlio.S3dlioError, match="Connection refused"):
            s3dlio.get("s3://bkt/k")


def test_who_waits_long_for_an_answer_looks_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    released, now, num_looks = threading.Event(), 0.0, 0
    answer_with(monkeypatch, lambda: [address("127.0.0.1", 80)] * released.wait(60))
    mode: Any = SimpleNamespace(now=lambda: now)
    waiting = names.look_up("silent.invalid", 80, mode, 10.0)
    while now < 10.0:
        now, num_looks = now + next(waiting), num_looks + 1
    with pytest.raises(TimeoutError, match=r"silent\.invalid"):
        next(waiting)
    released.set()
    assert num_looks < 600


READS = pytest.mark.parametrize("read", [s3dlio.get, lambda uri: s3dlio.get_many([uri] * 3)], ids=["get", "get_many"])


@READS
@pytest.mark.parametrize("name", ["a..b", "a" * 64, ".example"])
@pytest.mark.parametrize("way", ["direct", "by a proxy", "of a proxy"])
def test_a_name_that_no_server_can_have_is_an_error_like_any_other(
    faults: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], object], name: str, way: str
) -> None:
    with Proxy(instead=faults.port) as proxy:
        port = proxy.address.rpartition(":")[2]  # a server keeps its proxy: no two tests have the same one
        endpoint = f"http://host.invalid:{port}" if way == "of a proxy" else f"https://{name}:{port}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        if way != "direct":
            monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
            monkeypatch.setenv("HTTP_PROXY", f"http://{name}:1")
        with pytest.raises(s3dlio.S3dlioError, match=rf"s3://bkt/k.*'{re.escape(name)}' is no name of a server"):
            read("s3://bkt/k")


def test_an_answer_that_an_interrupt_has_left_behind_is_not_given_again(
    named: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: Future[list[names.Address]] = Future()
    left.set_exception(OSError("no such name"))
    monkeypatch.setitem(names._asked_last, ("localhost", named.port), left)
    assert_all_there(fill(named, 3))


def test_names_of_long_ago_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "FRESH_SECONDS", -1.0)
    for number in range(50):
        assert names._answer(("127.0.0.1", 1 + number))
    assert len(names._known) == 1


def test_addresses_that_lead_nowhere_are_forgotten(named: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fill(named, 3)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
    answers = [[address("127.0.0.1", dead)], [address("127.0.0.1", named.port)]]
    answer_with(monkeypatch, lambda: answers.pop(0))
    assert_all_there(expected)
    assert answers == []


def test_connections_spread_over_the_addresses_of_the_first_family() -> None:
    addresses = [*(address(f"127.0.0.{number}", 80) for number in range(3)), address("::1", 80, socket.AF_INET6)]
    turns = [[found[4][0] for found in names._rotated(addresses, turn)] for turn in range(4)]
    assert turns[0] == ["127.0.0.0", "127.0.0.1", "127.0.0.2", "::1"]
    assert turns[1] == ["127.0.0.1", "127.0.0.2", "127.0.0.0", "::1"]
    assert turns[3] == turns[0]
    assert names._rotated([], 5) == []


def test_a_child_asks_for_itself(named: FaultServer, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fill(named, 3)
    started, released = threading.Event(), threading.Event()

    def answer() -> list[names.Address]:
        started.set()
        released.wait(60)
        return [address("127.0.0.1", named.port)]

    answer_with(monkeypatch, answer)
    reader = threading.Thread(target=assert_all_there, args=(expected,))
    reader.start()
    assert started.wait(30)
    pid = os.fork()
    if pid == 0:  # the thread that waits for the answer is not here
        answer_with(monkeypatch, lambda: [address("127.0.0.1", named.port)])
        try:
            assert_all_there(expected)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    released.set()
    reader.join(30)
    assert not reader.is_alive()


def test_no_codec_is_imported_by_a_look_up(run_python: Callable[..., Any]) -> None:
    """A child that is forked while another thread imports waits for that import without end."""
    done = run_python("import sys, s3dlio.storage.cloud.names\nprint('encodings.idna' in sys.modules)", "")
    assert done.stdout == "True\n", done.stderr
