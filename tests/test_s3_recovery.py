"""What `s3://` puts right by itself: throttling, regions, clocks, checksums, replaced objects, failed uploads."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import socket
import subprocess
import time
import warnings
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from crc32c import crc32c

import s3dlio
from s3dlio import errors
from s3dlio.storage.cloud import s3

from .fake_s3 import Reply, Request
from .faults import Fault, FaultServer, answering, failing

pytestmark = pytest.mark.usefixtures("short_pauses")

MIB = 1024 * 1024
NUM_READS = int(os.environ.get("TEST_READS", "3000"))


def fill(faults: FaultServer, count: int) -> dict[str, bytes]:
    """Small objects, and what is in them by URI."""
    for number in range(count):
        faults.s3.put(f"o/{number:05}", f"object {number} ".encode() * (1 + number % 50))
    return {f"s3://bkt/{key}": found.data for key, found in faults.s3.buckets["bkt"].items()}


def assert_all_there(expected: dict[str, bytes], **options: int) -> None:
    assert [bytes(view) for view in s3dlio.get_many(expected, **options)] == list(expected.values())


# O09: throttling


@pytest.mark.parametrize("status", [503, 429])
def test_a_server_that_throttles_each_object_thrice_gives_all_of_them(faults: FaultServer, status: int) -> None:
    expected = fill(faults, 100)
    seen: dict[str, int] = {}

    def decide(request: Request) -> Fault | None:
        seen[request.key] = seen.get(request.key, 0) + 1
        return failing(status, "SlowDown") if seen[request.key] <= 3 else None

    faults.decide = decide
    assert_all_there(expected)
    assert len(faults.requests) == 400


def test_retry_after_is_waited_for(faults: FaultServer) -> None:
    """No request comes before the second that the server asked for is over."""
    faults.s3.put("k", b"data")
    faults.decide = lambda request: failing(429, "TooManyRequests", retry_after="1") if request.number == 0 else None
    assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
    refused, served = faults.requests
    assert served.at - refused.at >= 1.0


def test_endless_throttling_is_an_error_of_its_own_kind(faults: FaultServer, impatient: None) -> None:
    faults.decide = lambda request: failing(503, "SlowDown")
    for call in (s3dlio.get, s3dlio.stat, s3dlio.delete, s3dlio.list, lambda uri: s3dlio.put_bytes(uri, b"x")):
        with pytest.raises(errors.ThrottledError, match="s3://bkt/k"):
            call("s3://bkt/k")


@pytest.mark.parametrize("attempts", ["0", "-1", "many"])
def test_a_number_of_attempts_that_makes_no_sense_is_refused(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch, attempts: str
) -> None:
    monkeypatch.setenv("S3DLIO_MAX_RETRY_ATTEMPTS", attempts)
    with pytest.raises(ValueError, match="S3DLIO_MAX_RETRY_ATTEMPTS"):
        s3dlio.get("s3://bkt/k")


@pytest.mark.parametrize("connections", ["1", "3"])
def test_objects_that_need_more_requests_do_not_wait_for_their_own_neighbours(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch, connections: str
) -> None:
    """What runs and is not driven, since its consumer is at work, holds nothing that the consumer needs."""
    monkeypatch.setenv("S3DLIO_MAX_CONNECTIONS", connections)
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    for number in range(8):
        faults.s3.put(f"k{number}", bytes([number]) * (2 * MIB))
    views = s3dlio.get_many([f"s3://bkt/k{number}" for number in range(8)])
    assert [bytes(view) for view in views] == [bytes([number]) * (2 * MIB) for number in range(8)]


# O11, O12, O17: region, endpoint, clock


def needs_region(region: str) -> Callable[[Request], Fault | None]:
    inside = f"<Region>{region}</Region>"
    refusal = failing(400, "AuthorizationHeaderMalformed", inside)
    return lambda request: None if request.scope[1] == region else refusal


def test_a_wrong_region_is_corrected_once_for_every_verb(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    faults.decide = needs_region("eu-west-1")
    s3dlio.put_bytes("s3://bkt/p/k", b"data")
    assert bytes(s3dlio.get("s3://bkt/p/k")) == b"data"
    assert s3dlio.list("s3://bkt/p/") == ["s3://bkt/p/k"]
    assert s3dlio.stat("s3://bkt/p/k")["size"] == 4
    assert [request.scope[1] for request in faults.requests] == ["us-east-1"] + ["eu-west-1"] * 4


def test_many_requests_at_once_in_the_wrong_region_are_all_corrected(faults: FaultServer) -> None:
    expected = fill(faults, 64)
    faults.decide = needs_region("eu-west-1")
    assert_all_there(expected)
    assert s3dlio.stat("s3://bkt/o/00001")["size"] == 18


def test_a_301_tells_the_region_in_its_head(faults: FaultServer) -> None:
    faults.s3.put("k", b"data")
    moved = answering(Reply(301, {"x-amz-bucket-region": "ap-south-1"}))
    faults.decide = lambda request: None if request.scope[1] == "ap-south-1" else moved
    assert s3dlio.stat("s3://bkt/k")["size"] == 4
    s3dlio.delete("s3://bkt/k")
    assert faults.s3.get("k") is None


def test_a_region_that_stays_wrong_is_an_error_and_never_a_success(faults: FaultServer, impatient: None) -> None:
    faults.s3.put("k", b"data")
    wanted = iter(["eu-west-1", "eu-west-2"] * 50)
    faults.decide = lambda request: failing(400, "AuthorizationHeaderMalformed", f"<Region>{next(wanted)}</Region>")
    for call in (s3dlio.get, s3dlio.delete, s3dlio.stat):
        with pytest.raises(errors.S3dlioError, match=r"s3://bkt/k.*AuthorizationHeaderMalformed"):
            call("s3://bkt/k")
    faults.decide = lambda request: answering(Reply(301))
    with pytest.raises(errors.S3dlioError, match=r"s3://bkt/k.*301"):
        s3dlio.delete("s3://bkt/k")
    assert faults.s3.get("k") == b"data"


def test_a_custom_endpoint_is_asked_in_path_style_and_may_change_at_any_time(faults: FaultServer) -> None:
    with FaultServer() as second:
        second.s3.put("k", b"second")
        faults.s3.put("k", b"first")
        s3dlio.configure_s3(endpoint_url=faults.url, region="us-east-1")
        assert bytes(s3dlio.get("s3://bkt/k")) == b"first"
        s3dlio.configure_s3(endpoint_url=second.url)
        assert bytes(s3dlio.get("s3://bkt/k")) == b"second"
        s3dlio.put_bytes("s3://bkt/new", b"x")
        assert faults.s3.get("new") is None
        assert {request.target for request in second.requests} == {"/bkt/k", "/bkt/new"}
        assert second.requests[0].headers["host"] == second.url.removeprefix("http://")


def ahead(faults: FaultServer, seconds: float) -> Callable[[Request], Fault | None]:
    """A server whose clock is ahead, and which refuses signatures that are off by more than 15 minutes."""

    def decide(request: Request) -> Fault | None:
        theirs = time.time() + seconds
        signed = time.strptime(request.headers["x-amz-date"] + " +0000", "%Y%m%dT%H%M%SZ %z")
        date = formatdate(theirs, usegmt=True)
        if abs(theirs - (time.mktime(signed) - time.timezone)) > 900:
            return failing(403, "RequestTimeTooSkewed", date=date)
        return Fault(change=lambda reply: reply.with_headers(date=date))

    return decide


@pytest.mark.parametrize("minutes", [20, -20])
def test_a_clock_that_is_off_is_corrected_for_requests_in_parallel(faults: FaultServer, minutes: int) -> None:
    expected = fill(faults, 32)
    faults.decide = ahead(faults, minutes * 60)
    assert_all_there(expected, workers=32)
    assert len(faults.requests) <= 64
    assert s3dlio.stat("s3://bkt/o/00001")["size"] == 18
    assert len(faults.requests) <= 65


def test_a_clock_that_cannot_be_corrected_is_told(faults: FaultServer) -> None:
    faults.s3.put("k", b"data")
    faults.decide = lambda request: failing(403, "RequestTimeTooSkewed", date="garbage")
    with pytest.raises(errors.AccessDeniedError, match=r"s3://bkt/k: 403 RequestTimeTooSkewed.*clock"):
        s3dlio.get("s3://bkt/k")
    assert len(faults.requests) == 1


# O14: checksums


def checksum(data: bytes, crc: Callable[[bytes], int] = crc32) -> str:
    return b64encode(crc(data).to_bytes(4, "big")).decode()


@pytest.mark.parametrize(
    "headers",
    [
        {"x_amz_checksum_crc32": "AAAAAA==-3"},
        {"x_amz_checksum_crc32": "AAAAAA==", "x_amz_checksum_type": "COMPOSITE"},
        {"x_amz_checksum_sha256": "AAAA-2"},
        {"x_amz_checksum_crc32": checksum(b"data"), "x_amz_checksum_type": "FULL_OBJECT"},
        {"x_amz_checksum_crc32c": checksum(b"data", crc32c), "x_amz_checksum_type": "FULL_OBJECT"},
        {"x_amz_checksum_crc32c": "AAAAAA==-3"},
        {"x_amz_checksum_sha256": b64encode(hashlib.sha256(b"data").digest()).decode()},
        {"x_amz_checksum_crc64nvme": "AAAAAAAAAAA="},
    ],
)
def test_checksums_of_parts_or_of_kinds_that_are_not_checked_do_not_refuse_an_object(
    faults: FaultServer, headers: dict[str, str]
) -> None:
    faults.s3.put("k", b"data", **headers)
    assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
    assert len(faults.requests) == 1
    assert faults.requests[0].headers["x-amz-checksum-mode"] == "ENABLED"


@pytest.mark.parametrize("name", ["x_amz_checksum_crc32", "x_amz_checksum_crc32c", "x_amz_checksum_sha256"])
def test_a_wrong_checksum_is_read_again_and_then_an_error(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    faults.s3.put("k", b"data")
    wrong = Fault(change=lambda reply: reply.with_headers(**{name: checksum(b"dato")}))
    faults.decide = lambda request: wrong if request.number < 2 else None
    assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
    faults.decide = lambda request: wrong
    with pytest.raises(errors.S3dlioError, match=r"s3://bkt/k.*checksum"):
        s3dlio.get("s3://bkt/k")
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
    assert "x-amz-checksum-mode" in faults.requests[-1].headers
    faults.decide = lambda request: None
    assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
    assert "x-amz-checksum-mode" not in faults.requests[-1].headers


def test_a_write_carries_a_checksum_unless_told_otherwise_and_no_chunk_framing(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3dlio.put_bytes("s3://bkt/k", b"data")
    assert faults.requests[-1].headers["x-amz-checksum-crc32c"] == checksum(b"data", crc32c)
    assert "content-encoding" not in faults.requests[-1].headers
    assert faults.s3.get("k") == b"data"
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    s3dlio.put_bytes("s3://bkt/k", b"data")
    assert not any(name.startswith("x-amz-checksum") for name in faults.requests[-1].headers)


def test_without_the_package_a_write_carries_zlibs_checksum(faults: FaultServer, no_crc32c: None) -> None:
    s3dlio.put_bytes("s3://bkt/k", b"data")
    assert faults.requests[-1].headers["x-amz-checksum-crc32"] == checksum(b"data")
    faults.s3.put("j", b"data", x_amz_checksum_crc32c="AAAAAA==")  # which nobody here can check
    assert bytes(s3dlio.get("s3://bkt/j")) == b"data"


# O15, O19, O33: ranges


@pytest.mark.parametrize("ignores_match", [False, True], ids=["If-Match", "no If-Match"])
def test_an_object_replaced_between_ranges_is_all_old_or_all_new(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch, ignores_match: bool
) -> None:
    monkeypatch.setenv("S3DLIO_ENABLE_RANGE_OPTIMIZATION", "1")
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "8")
    faults.s3.put("k", b"\x01" * (64 * MIB))
    faults.s3.ignores_match = ignores_match
    new = b"\x02" * (64 * MIB)

    def decide(request: Request) -> None:
        if request.number == 3:
            faults.s3.put("k", new)

    faults.decide = decide
    view = np.frombuffer(s3dlio.get("s3://bkt/k"), np.uint8)
    assert view.size == 64 * MIB
    assert (view == 2).all()


def test_an_object_that_is_replaced_all_the_time_is_an_error(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    monkeypatch.setenv("S3DLIO_CHUNK_SIZE", str(MIB))
    faults.decide = lambda request: faults.s3.put("k", bytes([request.number % 256]) * (4 * MIB))
    faults.s3.put("k", b"\xff" * (4 * MIB))
    with pytest.raises(errors.ChangedError, match="s3://bkt/k was replaced"):
        s3dlio.get("s3://bkt/k")


def test_parallel_ranges_in_many_threads_put_every_byte_in_its_place(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    monkeypatch.setenv("S3DLIO_CHUNK_SIZE", str(MIB))
    words = np.arange(24 * MIB // 4, dtype=np.uint32)
    faults.s3.put("k", words.tobytes())
    chance = random.Random(19)
    faults.decide = lambda request: Fault(delay=chance.random() * 0.02)
    with ThreadPoolExecutor(16) as threads:
        results = list(threads.map(lambda _: np.frombuffer(s3dlio.get("s3://bkt/k"), np.uint32), range(16)))
    assert all(np.array_equal(result, words) for result in results)


def test_ranges_around_every_border_of_chunks_are_exact(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = 8 * MIB
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "8")
    monkeypatch.setenv("S3DLIO_CHUNK_SIZE", str(chunk))
    data = (np.arange(16 * MIB + 1) % 251).astype(np.uint8).tobytes()
    faults.s3.put("k", data)
    assert bytes(s3dlio.get("s3://bkt/k")) == data
    size = len(data)
    for offset, length in (
        *((border - 1, 2) for border in (chunk, 2 * chunk)),
        *((border, 1) for border in (0, chunk, 2 * chunk)),
        *((0, 1024), (size - 1, 10), (size, 10), (size + 5, 1), (5, 0), (1, chunk), (chunk - 1, chunk + 2)),
    ):
        assert bytes(s3dlio.get_range("s3://bkt/k", offset, length)) == data[offset : offset + length], (offset, length)
    assert bytes(s3dlio.get_range("s3://bkt/k", chunk + 1)) == data[chunk + 1 :]


# O28: ^C

INTERRUPT_CODE = """
import os, signal, sys, threading, s3dlio
verb, uri, url = sys.argv[1:]
def interrupt():
    import urllib.request
    urllib.request.urlopen(url).close()  # answered once the server has our request and holds it back
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    {"get": s3dlio.get, "list": s3dlio.list, "get_many": lambda uri: s3dlio.get_many([uri] * 99)}[verb](uri)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("verb", ["get", "get_many", "list"])
def test_control_c_ends_a_call_that_waits_and_then_the_process(
    faults: FaultServer, run_python: Callable[..., subprocess.CompletedProcess[str]], verb: str
) -> None:
    faults.s3.put("k", bytes(100_000))

    def decide(request: Request) -> Fault | None:
        if request.bucket == "ready":
            while not any(seen.bucket == "bkt" for seen in list(faults.requests)):
                time.sleep(0.01)  # the pause of a poll, which a request that is there ends
            return answering(Reply(200))
        return Fault(stall=100)

    faults.decide = decide
    path = str(Path(s3dlio.__file__).parent.parent)
    done = run_python(INTERRUPT_CODE, verb, "s3://bkt/k", f"{faults.url}/ready", timeout=30, PYTHONPATH=path)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


def test_a_socket_whose_making_is_interrupted_is_closed_without_a_word(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = socket.socket.__init__

    def interrupted(self: socket.socket, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        made.append(self.fileno())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(socket.socket, "__init__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            s3dlio.get("s3://bkt/k")
        gc.collect()
    assert len(made) == 1
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])


# Many faults

FAULTS = [
    *(Fault(cut=place) for place in (0, 1, 50)),
    *(Fault(cut=place, reset=True) for place in (0, 1, 50)),
    Fault(unanswered=True),
    Fault(unanswered=True, reset=True),
    Fault(close=True),
    Fault(delay=0.02),
    Fault(stall=10),
    Fault(drip=(40, 0.01)),
    Fault(raw=b"HTTP/1.1 200 O"),
    Fault(raw=b"\x16\x03\x01garbage\r\n\r\n"),
    Fault(chunked=7),
    Fault(chunked=7, cut=30),
    Fault(interim=b"HTTP/1.1 100 Continue\r\n\r\n"),
    Fault(change=lambda reply: reply.with_headers(content_length="10")),
    Fault(change=lambda reply: reply.with_headers(content_length="999"), cut=999),
    Fault(change=lambda reply: reply.with_headers(content_range="bytes 3-9/10")),
    Fault(change=lambda reply: reply.with_headers(x_amz_checksum_crc32="AAAAAA==")),
    Fault(unframed=True, cut=5),
    failing(500, "InternalError"),
    failing(502, ""),
    failing(503, "SlowDown"),
    failing(429, "TooManyRequests"),
]


def test_one_request_in_ten_broken_at_random_loses_nothing(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """TEST_READS=10000 makes it the whole number of the issue."""
    monkeypatch.setenv("S3DLIO_READ_TIMEOUT_SECS", "0.5")
    expected = fill(faults, 500)
    uris = list(expected)
    chance = random.Random(10)
    faults.decide = lambda request: chance.choice(FAULTS) if chance.random() < 0.1 else None
    num_reads, num_failed = NUM_READS, 0
    for start in range(0, num_reads, 100):
        batch = [uris[number % len(uris)] for number in range(start, start + 100)]
        views = _read_together(batch) or [_read_alone(uri) for uri in batch]
        assert [view for view, uri in zip(views, batch, strict=True) if view is not None and view != expected[uri]] == []
        num_failed += sum(view is None for view in views)
    assert num_failed <= num_reads // 1000


def _read_together(batch: list[str]) -> list[s3dlio.BytesView] | None:
    try:
        return s3dlio.get_many(batch, workers=16)
    except errors.S3dlioError as exc:
        if not any(uri in str(exc) for uri in batch):
            raise
        return None


def _read_alone(uri: str) -> s3dlio.BytesView | None:
    try:
        return s3dlio.get(uri)
    except errors.S3dlioError as exc:
        if uri not in str(exc):
            raise
        return None


def test_a_region_of_another_host_moves_the_operation_there(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Amazon, where each region has its own host: one request to the wrong one, and all others to the right one."""
    with FaultServer() as other:
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "0")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        urls = {"us-east-1": faults.url, "eu-west-1": other.url}
        monkeypatch.setattr(s3, "amazon_url", lambda region: urls[region])
        redirect = failing(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1")
        faults.decide = lambda _: redirect
        other.s3.put("k", b"data")
        assert [bytes(view) for view in s3dlio.get_many(["s3://bkt/k"] * 3, workers=2)] == [b"data"] * 3
        assert s3dlio.get("s3://bkt/k") == b"data"
        assert 1 <= len(faults.requests) <= 2


def test_a_listing_that_never_goes_on_is_an_error(faults: FaultServer) -> None:
    page = (
        "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>6b</NextContinuationToken>"
        "<Contents><Key>k</Key><Size>1</Size></Contents></ListBucketResult>"
    )
    faults.decide = lambda _: answering(Reply(200, {}, page.encode()))
    with pytest.raises(s3dlio.S3dlioError, match=r"s3://bkt/.*again and again"):
        s3dlio.list("s3://bkt/")


# One place only: as S3DLIO_MAX_CONNECTIONS gives when many share it, or throttling


@pytest.fixture
def one_connection(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> FaultServer:
    monkeypatch.setenv("S3DLIO_MAX_CONNECTIONS", "1")
    return faults


def test_a_size_that_must_be_asked_for_needs_no_second_connection(one_connection: FaultServer) -> None:
    def without_range(reply: Reply) -> Reply:
        return Reply(reply.status, {k: v for k, v in reply.headers.items() if k.lower() != "content-range"}, reply.body)

    one_connection.s3.put("k", b"x" * 10)
    one_connection.decide = lambda request: Fault(change=without_range) if request.headers.get("range") else None
    assert s3dlio.get_range("s3://bkt/k", 100, 5) == b""
    one_connection.decide = lambda _: None
    assert s3dlio.get_range("s3://bkt/k", 3, 0) == b""


def test_a_head_before_each_read_needs_no_second_connection(
    one_connection: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3DLIO_SKIP_HEAD", "0")
    assert_all_there(fill(one_connection, 20))
    assert {request.method for request in one_connection.requests} == {"HEAD", "GET"}


def test_a_conditional_write_whose_answer_was_lost_is_known_again(one_connection: FaultServer) -> None:
    answers = iter([Fault(unanswered=True, undone=False)])
    one_connection.decide = lambda request: next(answers, None) if request.method == "PUT" else None
    s3dlio.put_bytes("s3://bkt/lock", b"me", if_absent=True)
    with pytest.raises(s3dlio.PreconditionFailedError, match="s3://bkt/lock"):
        s3dlio.put_bytes("s3://bkt/lock", b"you", if_absent=True)
    assert one_connection.s3.get("lock") == b"me"


def test_many_large_objects_are_written_however_few_the_threads(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = (
        "import s3dlio\n"
        "data = bytes(65 << 20)\n"
        "s3dlio.put_many([(f's3://bkt/large/{n}', data) for n in range(2)] + [('s3://bkt/small', b'x')])\n"
    )
    done = run_python(code, S3DLIO_WORKER_THREADS="1", PYTHONPATH=str(Path(s3dlio.__file__).parent.parent))
    assert done.returncode == 0, done.stderr
    assert [len(faults.s3.get(key) or b"") for key in ("large/0", "large/1", "small")] == [65 << 20, 65 << 20, 1]


def test_without_an_etag_a_broken_body_is_read_anew(faults: FaultServer) -> None:
    """Of the same size and the same second: nothing tells the versions apart, so no part of the old one may stay."""

    def cut_and_replace(request: Request) -> Fault | None:
        def without_etag(reply: Reply) -> Reply:
            return Reply(reply.status, {k: v for k, v in reply.headers.items() if k.lower() != "etag"}, reply.body)

        is_first = len(faults.asked("GET")) == 1
        if not is_first:
            faults.s3.put("k", b"b" * 3_000_000)
        return Fault(change=without_etag, cut=1_000_000 if is_first else None)

    faults.s3.put("k", b"a" * 3_000_000)
    faults.decide = cut_and_replace
    assert set(bytes(s3dlio.get("s3://bkt/k"))) == {ord("b")}


def test_a_weak_etag_is_compared_and_is_no_condition(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    faults.s3.put("k", bytes(range(250)) * 20_000)
    faults.decide = lambda _: Fault(change=lambda reply: reply.with_headers(etag='W/"x"'))
    assert s3dlio.get("s3://bkt/k") == bytes(range(250)) * 20_000
    assert not [request for request in faults.requests if "if-match" in request.headers]


def test_what_a_listing_names_elsewhere_is_neither_listed_nor_deleted(faults: FaultServer) -> None:
    page = (
        "<ListBucketResult><IsTruncated>false</IsTruncated>"
        "<Contents><Key>keep/me</Key><Size>1</Size></Contents></ListBucketResult>"
    )
    faults.s3.put("keep/me", b"x")
    faults.decide = lambda request: answering(Reply(200, {}, page.encode())) if "list-type" in request.query else None
    for verb in (s3dlio.list, s3dlio.delete):
        with pytest.raises(s3dlio.S3dlioError, match=r"s3://bkt/junk/.*keep/me"):
            verb("s3://bkt/junk/", recursive=True)
    assert faults.s3.get("keep/me") == b"x"


def test_the_404_of_a_web_server_is_no_missing_object(faults: FaultServer) -> None:
    faults.decide = lambda _: answering(Reply(404, {}, b"<html>Not Found</html>"))
    for verb in (s3dlio.exists, s3dlio.get, s3dlio.stat):
        with pytest.raises(s3dlio.S3dlioError, match=r"s3://bkt/k.*is the endpoint an S3 server") as caught:
            verb("s3://bkt/k")
        assert not isinstance(caught.value, s3dlio.NotFoundError)


def test_new_credentials_need_no_new_connections(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    faults.s3.put("k", b"x")
    for number in range(20):
        monkeypatch.setenv("AWS_SESSION_TOKEN", f"token{number}")
        assert s3dlio.get("s3://bkt/k") == b"x"
    assert faults.num_connections == 1


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise KeyError"])
def test_a_child_forked_within_a_writer_leaves_the_parents_upload_alone(
    faults: FaultServer, run_python: Callable[..., subprocess.CompletedProcess[str]], end: str
) -> None:
    faults.decide = lambda request: Fault(delay=0.5) if request.verb == "PART" else None
    code = (
        "import os, sys, s3dlio\n"
        "with s3dlio.open_writer('s3://bkt/k') as file:\n"
        "    for _ in range(20): file.write(bytes(1 << 20))\n"
        "    pid = os.fork()\n"
        f"    if pid == 0:\n        sys.stderr = open(os.devnull, 'w'); {end}\n"
        "    os.waitpid(pid, 0)\n"
    )
    done = run_python(code, timeout=30, PYTHONPATH=str(Path(s3dlio.__file__).parent.parent))
    assert done.returncode == 0, done.stderr
    assert len(faults.s3.get("k") or b"") == 20 << 20


def without_etag(reply: Reply) -> Reply:
    return Reply(reply.status, {name: value for name, value in reply.headers.items() if name.lower() != "etag"}, reply.body)


def test_without_an_etag_a_long_range_is_one_request(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is another one at each request, of the same size and time: a range made of several would mix them."""

    def another_one(request: Request) -> Fault:
        faults.s3.put("k", bytes([len(faults.requests)]) * 5_000_000)
        return Fault(change=without_etag)

    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    faults.s3.put("k", bytes(5_000_000))
    faults.decide = another_one
    for view in (s3dlio.get_range("s3://bkt/k", 100, 3_000_000), s3dlio.get("s3://bkt/k"), *s3dlio.get_many(["s3://bkt/k"])):
        assert len(set(bytes(view))) == 1


def test_stat_tells_no_etag_where_there_is_none(faults: FaultServer) -> None:
    faults.s3.put("k", b"x")
    faults.decide = lambda _: Fault(change=without_etag)
    assert s3dlio.stat("s3://bkt/k")["etag"] is None


def test_a_head_before_each_read_goes_over_the_same_connection(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3DLIO_SKIP_HEAD", "0")
    faults.s3.put("k", b"data")
    for _ in range(10):
        assert s3dlio.get("s3://bkt/k") == b"data"
        assert s3dlio.get_range("s3://bkt/k", 1, 0) == b""
    assert faults.num_connections == 1
