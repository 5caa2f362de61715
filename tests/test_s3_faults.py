"""`s3://` against a server that misbehaves: what no real server does on demand."""

from __future__ import annotations

import hashlib
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import s3dlio
from s3dlio import errors

from .fake_s3 import Reply, Request
from .faults import Fault, FaultServer, answering, failing

pytestmark = pytest.mark.usefixtures("short_pauses")

MIB = 1024 * 1024
RANGES = pytest.mark.parametrize("ranges", ["1", "0"], ids=["in ranges", "whole"])


def first(count: int, verb: str, fault: Fault) -> Callable[[Request], Fault | None]:
    """The first `count` requests of this kind go wrong."""
    left = iter(range(count))

    def decide(request: Request) -> Fault | None:
        return fault if request.verb == verb and next(left, None) is not None else None

    return decide


def always(verb: str, fault: Fault) -> Callable[[Request], Fault | None]:
    return lambda request: fault if request.verb == verb else None


def payload(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


# O08: bodies that break off

BROKEN_BODIES = {
    "cut": Fault(cut=5000),
    "reset": Fault(cut=5000, reset=True),
    "at once": Fault(cut=0),
    "in a chunk": Fault(chunked=1000, cut=5050),
    "length too long": Fault(change=lambda reply: reply.with_headers(content_length="20000"), cut=10_000),
    "no framing": Fault(unframed=True, cut=5000),
    "stalled": Fault(stall=5000),
    "wrong range": Fault(change=lambda reply: reply.with_headers(content_range="bytes 7-10006/20000")),
    "unreadable range": Fault(change=lambda reply: reply.with_headers(content_range="bytes much")),
    "garbage": Fault(raw=b"\x00\x01garbage"),
    "half a head": Fault(raw=b"HTTP/1.1 200 OK\r\nContent-Le"),
    "endless head": Fault(raw=b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000),
    "nothing": Fault(unanswered=True),
    "reset at once": Fault(unanswered=True, reset=True),
    "500": failing(500, "InternalError"),
    "503": failing(503, "SlowDown"),
}


# With ranges switched off there is no range to be wrong.
_PAIRS = [(name, ranges) for name in BROKEN_BODIES for ranges in ("1", "0") if ranges == "1" or not name.endswith(" range")]
BREAKS = pytest.mark.parametrize(
    ("fault", "ranges"),
    [(BROKEN_BODIES[name], ranges) for name, ranges in _PAIRS],
    ids=[f"{name}-{'ranges' if ranges == '1' else 'whole'}" for name, ranges in _PAIRS],
)


@BREAKS
def test_a_body_that_breaks_off_once_is_completed(
    faults: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch, fault: Fault, ranges: str
) -> None:
    monkeypatch.setenv("S3DLIO_ENABLE_RANGE_OPTIMIZATION", ranges)
    monkeypatch.setenv("S3DLIO_OPERATION_TIMEOUT_SECS", "30")
    data = payload(10_000)
    faults.s3.put("k", data)
    faults.decide = first(1, "GET", fault)
    assert bytes(s3dlio.get("s3://bkt/k")) == data
    faults.decide = first(1, "GET", fault)
    assert [bytes(view) for view in s3dlio.get_many(["s3://bkt/k"] * 3)] == [data] * 3


@BREAKS
def test_a_body_that_always_breaks_off_is_an_error_that_names_the_uri(
    faults: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch, fault: Fault, ranges: str
) -> None:
    monkeypatch.setenv("S3DLIO_ENABLE_RANGE_OPTIMIZATION", ranges)
    # Each attempt goes on where the last one stopped, so that half an object at a time arrives in the end: not here.
    faults.s3.put("k", payload(1_000_000))
    faults.decide = always("GET", fault)
    with pytest.raises(errors.S3dlioError, match="s3://bkt/k"):
        s3dlio.get("s3://bkt/k")
    with pytest.raises(errors.S3dlioError, match="s3://bkt/k"):
        s3dlio.get_many(["s3://bkt/k"] * 2)
    assert len(faults.requests) < 60


def test_a_broken_body_goes_on_from_the_bytes_that_came(faults: FaultServer) -> None:
    data = payload(1_000_000)
    faults.s3.put("k", data)
    faults.decide = first(3, "GET", Fault(cut=300_000))
    assert bytes(s3dlio.get("s3://bkt/k")) == data
    asked = faults.asked("GET")
    starts = [int(request.headers["range"].removeprefix("bytes=").split("-")[0]) for request in asked]
    assert starts == [0, 300_000, 600_000, 900_000]
    etag = hashlib.md5(data).hexdigest()
    assert [request.headers.get("if-match") for request in asked] == [None, *[f'"{etag}"'] * 3]


def test_a_broken_body_is_never_joined_with_another_version(faults: FaultServer) -> None:
    """The rest of a replaced object is refused (412), or told by its etag where the server ignores If-Match."""
    for ignores_match in (False, True):
        old, new = payload(100_000, 1), payload(100_000, 2)
        faults.s3.put("k", old)
        faults.s3.ignores_match = ignores_match

        def decide(request: Request, new: bytes = new) -> Fault | None:
            if request.headers.get("if-match") is None and faults.s3.get("k") != new:
                return Fault(cut=50_000)
            faults.s3.put("k", new)
            return None

        faults.decide = decide
        assert bytes(s3dlio.get("s3://bkt/k")) == new


def test_a_dripping_server_is_waited_for(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte for too long is a failure; few bytes at a time are none."""
    monkeypatch.setenv("S3DLIO_READ_TIMEOUT_SECS", "0.5")
    data = payload(3000)
    faults.s3.put("k", data)
    faults.decide = always("GET", Fault(drip=(1000, 0.3)))
    assert bytes(s3dlio.get("s3://bkt/k")) == data
    assert [bytes(view) for view in s3dlio.get_many(["s3://bkt/k"])] == [data]
    assert len(faults.requests) == 2


def test_an_error_tells_uri_attempts_code_and_request(faults: FaultServer) -> None:
    faults.s3.put("k", b"x")
    faults.decide = always("GET", failing(500, "InternalError"))
    with pytest.raises(
        errors.S3dlioError, match=r"s3://bkt/k: 500 InternalError: told to \[request REQ123\]; 6 attempts in"
    ):
        s3dlio.get("s3://bkt/k")
    assert len(faults.requests) == 6


# Odd but right answers

ODD_ANSWERS = {
    "200 for a range": Fault(change=lambda reply: Reply(200, {"etag": reply.headers["etag"]}, reply.body)),
    "size not told": Fault(
        change=lambda reply: reply.with_headers(content_range=reply.headers["content-range"].split("/")[0] + "/*")
    ),
    "chunked": Fault(chunked=777),
    "interim": Fault(interim=b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"),
    "closes unsaid": Fault(close=True),
    "closes": Fault(change=lambda reply: reply.with_headers(connection="close"), close=True),
    "odd dates": Fault(change=lambda reply: reply.with_headers(last_modified="yesterday")),
    "no etag": Fault(
        change=lambda reply: Reply(reply.status, {"content-range": reply.headers["content-range"]}, reply.body)
    ),
}


@pytest.mark.parametrize("fault", ODD_ANSWERS.values(), ids=ODD_ANSWERS)
def test_odd_but_right_answers_give_the_right_bytes(faults: FaultServer, fault: Fault) -> None:
    data = payload(20_000)
    faults.s3.put("k", data)
    faults.decide = lambda request: fault if request.method == "GET" else None
    for _ in range(3):
        assert bytes(s3dlio.get("s3://bkt/k")) == data
        assert bytes(s3dlio.get_range("s3://bkt/k", 0, 100)) == data[:100]
    assert [bytes(view) for view in s3dlio.get_many(["s3://bkt/k"] * 9)] == [data] * 9


def test_a_server_without_ranges_serves_ranges_and_large_objects_all_the_same(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    data = payload(3 * MIB)
    faults.s3.put("k", data)
    faults.s3.ignores_range = True
    assert bytes(s3dlio.get("s3://bkt/k")) == data
    assert bytes(s3dlio.get_range("s3://bkt/k", 1_000_000, 500)) == data[1_000_000:1_000_500]


def test_an_empty_object_is_empty_whether_the_server_says_416_or_200(faults: FaultServer) -> None:
    faults.s3.put("k", b"")
    for ignores_range in (False, True):
        faults.s3.ignores_range = ignores_range
        assert bytes(s3dlio.get("s3://bkt/k")) == b""
        assert bytes(s3dlio.get_range("s3://bkt/k", 5, 10)) == b""
        assert [bytes(view) for view in s3dlio.get_many(["s3://bkt/k"] * 2)] == [b""] * 2


def test_a_kept_connection_that_the_server_gave_up_costs_no_attempt(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3DLIO_MAX_RETRY_ATTEMPTS", "1")
    faults.s3.put("k", b"data")
    s3dlio.get("s3://bkt/k")
    on_reuse = {1: Fault(unanswered=True), 3: Fault(unanswered=True, reset=True)}
    faults.decide = lambda request: on_reuse.get(request.number)
    assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
    assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
    assert len(faults.requests) == 5


def test_connections_are_used_again(faults: FaultServer) -> None:
    faults.s3.put("k", b"data")
    for _ in range(20):
        s3dlio.get("s3://bkt/k")
    s3dlio.get_many(["s3://bkt/k"] * 50, workers=4)
    s3dlio.get_many(["s3://bkt/k"] * 50, workers=4)
    assert faults.num_connections <= 4


# O01, O02: names

AWKWARD_KEYS = [
    "year=2024/DC#1_CAM3.tif",
    "p/q;v=1",
    ":@",
    "a?b=c&d",
    "100%",
    "a%2Fb",
    "%41",
    "a+b c",
    " lead and trail ",
    "a//b",
    "dir/",
    "/abs",
    "..",
    "../up",
    "a/./b/../c",
    "ümläut/日本/😀",
    "e\N{COMBINING ACUTE ACCENT}",
    "tab\tnewline\nbell\x07del\x7f",
    "quote'\"<&>`{}|\\^[]~!$*(),",
    "x" * 1000,
    "s3://bkt/key",
    "C:\\dir",
    "a=b&X-Amz-Signature=1",
]


def test_every_awkward_key_is_itself_in_every_verb(faults: FaultServer) -> None:
    uris = {f"s3://bkt/{key}": key for key in AWKWARD_KEYS}
    for uri, key in uris.items():
        s3dlio.put_bytes(uri, key.encode())
    assert sorted(faults.s3.buckets["bkt"]) == sorted(AWKWARD_KEYS)
    assert s3dlio.list("s3://bkt/", recursive=True) == sorted(uris, key=str.encode)
    assert [bytes(view) for view in s3dlio.get_many(uris)] == [key.encode() for key in AWKWARD_KEYS]
    for uri, key in uris.items():
        assert bytes(s3dlio.get(uri)) == key.encode()
        assert s3dlio.stat(uri)["size"] == len(key.encode())
        assert s3dlio.exists(uri)
        assert uri in s3dlio.list(uri, recursive=True) or key.endswith("/")
    for uri, key in uris.items():
        before = set(faults.s3.buckets["bkt"])
        s3dlio.delete(uri)
        assert before - set(faults.s3.buckets["bkt"]) == {key}
        assert not s3dlio.exists(uri)


def test_a_key_with_a_hash_is_not_the_key_before_it(faults: FaultServer) -> None:
    faults.s3.put("year=2024/DC#1_CAM3.tif", b"A")
    faults.s3.put("year=2024/DC", b"B")
    assert bytes(s3dlio.get("s3://bkt/year=2024/DC#1_CAM3.tif")) == b"A"
    s3dlio.delete("s3://bkt/year=2024/DC#1_CAM3.tif")
    assert faults.s3.get("year=2024/DC") == b"B"


def test_double_slashes_and_trailing_slashes_belong_to_the_key(faults: FaultServer) -> None:
    for key, data in (("a//b", b"2"), ("a/b", b"1"), ("dir/", b"not empty")):
        faults.s3.put(key, data)
    assert bytes(s3dlio.get("s3://bkt/a//b")) == b"2"
    assert bytes(s3dlio.get("s3://bkt/dir/")) == b"not empty"
    found = s3dlio.list("s3://bkt/a/", recursive=True)
    assert found == ["s3://bkt/a//b", "s3://bkt/a/b"]
    assert [bytes(s3dlio.get(uri)) for uri in found] == [b"2", b"1"]


def test_keys_that_no_xml_can_hold_are_listed(faults: FaultServer) -> None:
    faults.s3.put("p/\x01\x02", b"")
    faults.s3.put("p/\ufffe", b"")
    assert s3dlio.list("s3://bkt/p/") == ["s3://bkt/p/\x01\x02", "s3://bkt/p/\ufffe"]


# O05, O06, O07, O47: listings


def test_a_prefix_does_not_list_its_neighbours(faults: FaultServer) -> None:
    for key in ("data/1", "data/2", "data2/3", "data.bak/4", "data"):
        faults.s3.put(key, b"")
    assert s3dlio.list("s3://bkt/data/", recursive=True) == ["s3://bkt/data/1", "s3://bkt/data/2"]
    assert list(s3dlio.ObjectStoreMapDataset("s3://bkt/data/").uris) == ["s3://bkt/data/1", "s3://bkt/data/2"]
    assert s3dlio.list("s3://bkt/data", recursive=True) == ["s3://bkt/data", "s3://bkt/data/1", "s3://bkt/data/2"]


def test_every_page_is_listed(faults: FaultServer) -> None:
    names = [f"s3://bkt/p/{number:05}" for number in range(2503)]
    for name in names:
        faults.s3.put(name.removeprefix("s3://bkt/"), b"")
    assert s3dlio.list("s3://bkt/p/") == names
    assert s3dlio.list_keys("s3://bkt/p/", recursive=True) == [name.rpartition("/")[2] for name in names]
    assert list(s3dlio.ObjectStoreMapDataset("s3://bkt/p/").uris) == names
    assert len(faults.asked("LIST")) == 9


def test_sub_prefixes_over_several_pages_come_once(faults: FaultServer) -> None:
    faults.s3.page = 3
    for number in range(10):
        faults.s3.put(f"p/d{number}/x", b"")
        faults.s3.put(f"p/d{number}/y", b"")
        faults.s3.put(f"p/f{number}", b"")
    assert s3dlio.list("s3://bkt/p/") == [f"s3://bkt/p/d{n}/" for n in range(10)] + [f"s3://bkt/p/f{n}" for n in range(10)]


BROKEN_LISTINGS = {
    "503": failing(503, "SlowDown"),
    "500": failing(500, "InternalError"),
    "403": failing(403, "AccessDenied"),
    "404": failing(404, "NoSuchBucket"),
    "broken off": Fault(change=lambda reply: Reply(200, {}, reply.body[: len(reply.body) // 2])),
    "empty": answering(Reply(200, {}, b"")),
    "no XML": answering(Reply(200, {}, b"<html>Welcome to the hotel</html>")),
    "not told whether it is complete": Fault(
        change=lambda reply: Reply(200, {}, reply.body.replace(b"<IsTruncated>false</IsTruncated>", b""))
    ),
    "more without a token": Fault(change=lambda reply: Reply(200, {}, reply.body.replace(b">false<", b">true<"))),
    "cut": Fault(cut=20),
    "chunk cut": Fault(chunked=50, cut=70),
    "unframed and cut": Fault(unframed=True, cut=100),
    "size no number": Fault(change=lambda reply: Reply(200, {}, reply.body.replace(b"<Size>0", b"<Size>many"))),
    "no key": Fault(change=lambda reply: Reply(200, {}, reply.body.replace(b"Key>", b"Kex>"))),
}


@pytest.mark.parametrize("fault", BROKEN_LISTINGS.values(), ids=BROKEN_LISTINGS)
def test_a_failed_listing_is_an_error_and_no_empty_listing(faults: FaultServer, impatient: None, fault: Fault) -> None:
    faults.s3.put("p/1", b"")
    faults.decide = always("LIST", fault)
    with pytest.raises(errors.S3dlioError, match="s3://bkt/p/"):
        s3dlio.list("s3://bkt/p/")
    with pytest.raises(errors.S3dlioError, match="s3://bkt/p/"):
        s3dlio.ObjectStoreMapDataset("s3://bkt/p/")


@pytest.mark.parametrize("name", ["503", "500", "broken off", "cut", "chunk cut", "more without a token"])
def test_a_page_that_fails_once_is_asked_again(faults: FaultServer, name: str) -> None:
    faults.s3.page = 2
    for number in range(5):
        faults.s3.put(f"p/{number}", b"")
    faults.decide = first(1, "LIST", BROKEN_LISTINGS[name])
    assert len(s3dlio.list("s3://bkt/p/")) == 5


def test_an_empty_prefix_is_empty_and_a_missing_bucket_is_an_error(faults: FaultServer) -> None:
    assert s3dlio.list("s3://bkt/none/") == []
    for uri in ("s3://missing/none/", "s3://missing/none", "s3://missing/"):
        with pytest.raises(errors.NotFoundError, match=rf"{uri}.*NoSuchBucket"):
            s3dlio.list(uri)


LIST_CODE = """
import resource, sys, s3dlio
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = s3dlio.list("s3://bkt/p/", recursive=True)
assert len(found) == len(set(found)) == int(sys.argv[1]), len(found)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_many_keys_are_listed_in_few_requests_and_little_memory(
    faults: FaultServer, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    faults.s3.put("p/seed", b"")
    seed = faults.s3.buckets["bkt"].pop("p/seed")
    count = 300_000
    faults.s3.buckets["bkt"] = {f"p/dir{number % 50:02}/{number:07}.npz": seed for number in range(count)}
    done = run_python(LIST_CODE, str(count), timeout=120, PYTHONPATH=str(Path(s3dlio.__file__).parent.parent))
    assert done.returncode == 0, done.stderr
    assert len(faults.requests) <= count // 1000 + 60
    assert int(done.stdout) < 400
