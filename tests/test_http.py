"""The state machine of one HTTP exchange: any split of the bytes, any garbage, never a byte outside its destination."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3dlio.storage.cloud.http import (
    ClosedError,
    Head,
    IncompleteBodyError,
    Into,
    ProtocolError,
    Request,
    Response,
    encode,
    header_lines,
    receive,
)

SCRATCH = 2048
OWN_ERRORS = (ProtocolError, ClosedError, IncompleteBodyError)
BODY = b"0123456789abcdef" * 4
PLAIN = b'HTTP/1.1 200 OK\r\nContent-Length: 64\r\nETag: "e"\r\n\r\n' + BODY
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"10;name=value\r\n"
    + BODY[:16]
    + b"\r\n2C\r\n"
    + BODY[16:60]
    + b"\r\n4\r\n"
    + BODY[60:]
    + b"\r\n0\r\nTrailer: x\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + PLAIN
TO_THE_END = b"HTTP/1.1 400 Bad\r\nConnection: close\r\n\r\n" + BODY


class Memory:
    """A destination with guards on both sides that nobody may touch."""

    def __init__(self) -> None:
        self.block = bytearray()
        self.asked: list[tuple[int, int]] = []

    def into(self, head: Head, length: int) -> memoryview:
        self.asked.append((head.status, length))
        self.block = bytearray(b"\xaa" * (length + 128))
        return memoryview(self.block)[64 : 64 + length]

    @property
    def is_intact(self) -> bool:
        return not self.block or (self.block[:64] == b"\xaa" * 64 and self.block[-64:] == b"\xaa" * 64)


def exchange(
    pieces: Sequence[bytes], *, method: str = "GET", into: Into | None = None, end: Exception | None = None
) -> tuple[Response, int]:
    """Feed the pieces as a driver does; returns the answer and the number of bytes that were left unread.

    After the last piece the connection ends, or fails with `end`.
    """
    machine = receive(Request(method, "/", into=into), memoryview(bytearray(SCRATCH)))
    stream = list(pieces)
    try:
        want, _ = next(machine)
        while True:
            assert want.nbytes > 0, "asking for nothing would look like the end of the connection"
            if stream:
                piece = stream.pop(0)
                taken, rest = piece[: want.nbytes], piece[want.nbytes :]
                want[: len(taken)] = taken
                if rest:
                    stream.insert(0, rest)
                want, _ = machine.send(len(taken))
            elif end is not None:
                want, _ = machine.throw(end)
            else:
                want, _ = machine.send(0)
    except StopIteration as stop:
        return stop.value, sum(map(len, stream))


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED, INTERIM], ids=["plain", "chunked", "interim"])
def test_an_answer_split_at_any_byte_is_the_same(answer: bytes) -> None:
    for position in range(1, len(answer)):
        memory = Memory()
        response, unread = exchange([answer[:position], answer[position:]], into=memory.into)
        assert bytes(response.body) == BODY, position
        assert (response.head.status, response.reusable, unread) == (200, True, 0)
        assert memory.asked == [(200, 64)]
        assert memory.is_intact


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED, INTERIM, TO_THE_END], ids=["plain", "chunked", "interim", "to the end"])
def test_an_answer_byte_by_byte_is_the_same(answer: bytes) -> None:
    response, _ = exchange([bytes([byte]) for byte in answer])
    assert bytes(response.body) == BODY


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED, INTERIM], ids=["plain", "chunked", "interim"])
@pytest.mark.parametrize("end", [None, ConnectionResetError("reset")], ids=["closed", "reset"])
def test_an_answer_that_breaks_off_at_any_byte_is_an_error(answer: bytes, end: Exception | None) -> None:
    for length in range(len(answer)):
        with pytest.raises((*OWN_ERRORS, OSError)):
            exchange([answer[:length]], end=end)


def test_a_broken_body_tells_how_much_of_it_has_landed() -> None:
    memory = Memory()
    with pytest.raises(IncompleteBodyError) as caught:
        exchange([PLAIN[:-20]], into=memory.into)
    assert caught.value.num_received == 44
    assert memory.block[64 : 64 + 44] == BODY[:44]
    with pytest.raises(IncompleteBodyError) as caught:
        exchange([PLAIN[:-20]], end=ConnectionResetError("reset"))
    assert caught.value.num_received == 44


def test_a_connection_that_ends_before_the_answer_was_given_up() -> None:
    with pytest.raises(ClosedError):
        exchange([])
    with pytest.raises(ProtocolError, match="within the answer's head"):
        exchange([b"HTTP/1.1 20"])


def test_bytes_after_the_answer_forbid_to_use_the_connection_again() -> None:
    for answer in (PLAIN, CHUNKED):
        response, _ = exchange([answer + b"HTTP/1.1 200"])
        assert bytes(response.body) == BODY
        assert not response.reusable


def test_the_machine_asks_for_no_more_than_the_body() -> None:
    """What follows the body stays in the socket."""
    head, _, body = PLAIN.partition(b"\r\n\r\n")
    response, unread = exchange([head + b"\r\n\r\n", body + b"next answer"])
    assert bytes(response.body) == BODY
    assert unread == len(b"next answer")


def test_a_large_chunk_is_taken_whole() -> None:
    data = bytes(range(256)) * 4096
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    memory = Memory()
    response, _ = exchange([answer], into=memory.into)
    assert bytes(response.body) == data
    assert memory.asked == [(200, len(data))]


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", "200 OK"), ("HEAD", "404 No"), ("GET", "204 None"), ("GET", "304 Same")]
)
def test_an_answer_without_a_body_needs_none_whatever_its_length_says(method: str, status: str) -> None:
    answer = f"HTTP/1.1 {status}\r\nContent-Length: 64\r\n\r\n".encode()
    response, _ = exchange([answer], method=method)
    assert (response.body.nbytes, response.reusable, response.head.content_length()) == (0, True, 64)


def test_an_object_without_a_length_is_refused_since_nobody_could_tell_that_it_is_whole() -> None:
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
    with pytest.raises(ProtocolError, match="does not tell its length"):
        exchange([answer], into=Memory().into)
    response, _ = exchange([answer])
    assert bytes(response.body) == BODY
    assert not response.reusable


@pytest.mark.parametrize("status", [400, 403, 404, 412, 500, 503])
def test_the_body_of_an_error_never_lands_in_the_destination(status: int) -> None:
    memory = Memory()
    answer = PLAIN.replace(b"200", str(status).encode())
    response, _ = exchange([answer], into=memory.into)
    assert (bytes(response.body), memory.asked) == (BODY, [])


@pytest.mark.parametrize(
    "answer",
    [
        b"220 smtp.example ESMTP\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5 5\r\n\r\nabcde",
        "HTTP/1.1 200 OK\r\nContent-Length: \N{SUPERSCRIPT TWO}\r\n\r\nabcde".encode(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\n",
        b"HTTP/1.1 500 Bad\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * SCRATCH + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffff\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    ],
)
def test_what_is_not_http_is_a_protocol_error(answer: bytes) -> None:
    with pytest.raises(ProtocolError):
        exchange([answer])


def test_the_same_length_twice_is_no_contradiction() -> None:
    response, _ = exchange([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nContent-Length: 5\r\n\r\nabcde"])
    assert bytes(response.body) == b"abcde"


@pytest.mark.parametrize(
    ("start", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", True),
    ],
)
def test_the_server_says_whether_the_connection_stays(start: bytes, reusable: bool) -> None:
    response, _ = exchange([start + b"Content-Length: 3\r\n\r\nabc"])
    assert response.reusable is reusable


def test_names_of_fields_are_found_in_any_case_and_only_at_the_start_of_a_line() -> None:
    head = Head(b"HTTP/1.1 200 OK\r\nX-Note: etag: wrong\r\neTaG:   right  \r\nX-Meta: \xc3\xa4\r\n")
    assert (head.get("etag"), head.get("note"), head.get("x-meta")) == (
        "right",
        None,
        "\N{LATIN SMALL LETTER A WITH DIAERESIS}",
    )
    assert list(head.fields())[:2] == [("x-note", "etag: wrong"), ("etag", "right")]


def test_a_request_is_encoded_line_by_line_and_forges_none() -> None:
    assert (
        encode(Request("GET", "/a?b", header_lines([("host", "h"), ("x", "ä")])))
        == "GET /a?b HTTP/1.1\r\nhost: h\r\nx: ä\r\n\r\n".encode()
    )
    for target, value in (("/", "a\r\nx-evil: 1"), ("/", "a\nb"), ("/", "a\rb"), ("/ HTTP/1.1\r\nx-evil: 1", "a")):
        with pytest.raises(ValueError, match="line break"):
            encode(Request("GET", target, header_lines([("x", value)])))


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Right answers, answers with some bytes replaced, removed or added, and plain garbage."""
    answer = bytearray(draw(st.sampled_from([PLAIN, CHUNKED, INTERIM, TO_THE_END])))
    for _ in range(draw(st.integers(0, 4))):
        position = draw(st.integers(0, len(answer)))
        kind = draw(st.sampled_from(["replace", "remove", "insert", "cut"]))
        if kind == "replace":
            answer[position : position + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == "remove":
            del answer[position : position + draw(st.integers(1, 8))]
        elif kind == "insert":
            answer[position:position] = draw(
                st.one_of(st.binary(max_size=8), st.sampled_from([b"\r\n", b"\r\n\r\n", b"0", b"f"]))
            )
        else:
            del answer[position:]
    return bytes(answer) if draw(st.integers(0, 9)) else draw(st.binary(max_size=300))


@settings(max_examples=400, deadline=None)
@given(answer=answers(), steps=st.lists(st.integers(1, 70), min_size=1, max_size=12), with_into=st.booleans())
def test_no_bytes_whatsoever_crash_the_machine_or_leave_the_destination(
    answer: bytes, steps: list[int], with_into: bool
) -> None:
    pieces, start = [], 0
    while start < len(answer):
        step = steps[len(pieces) % len(steps)]
        pieces.append(answer[start : start + step])
        start += step
    memory = Memory()
    try:
        response, _ = exchange(pieces, into=memory.into if with_into else None)
    except OWN_ERRORS:
        pass
    else:
        assert 200 <= response.head.status <= 999
        if memory.asked:
            assert [response.body.nbytes] == [length for _, length in memory.asked]
    assert memory.is_intact
    assert len(memory.asked) <= 1


@settings(max_examples=100, deadline=None)
@given(
    data=st.binary(max_size=5000), chunks=st.lists(st.integers(1, 900), min_size=1, max_size=8), step=st.integers(1, 3000)
)
def test_any_chunking_gives_the_same_bytes(data: bytes, chunks: list[int], step: int) -> None:
    framed, start, number = b"", 0, 0
    while start < len(data):
        piece = data[start : start + chunks[number % len(chunks)]]
        framed += b"%X\r\n%s\r\n" % (len(piece), piece)
        start, number = start + len(piece), number + 1
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
    response, _ = exchange([answer[start : start + step] for start in range(0, len(answer), step)])
    assert bytes(response.body) == data
    assert response.reusable
