"""HTTP/1.1 as a state machine without I/O (RFC 9112): request bytes out, response bytes in, body where it belongs.

A driver runs `receive`, which says where the next bytes go and is told how many came. The body of a good answer lands
straight in the memory that the request's `into` gives for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "ClosedError",
    "Head",
    "IncompleteBodyError",
    "Into",
    "ProtocolError",
    "Request",
    "Response",
    "Want",
    "broken_off",
    "encode",
    "header_lines",
    "plain_answer",
    "receive",
]

MAX_COLLECTED_BYTES = 64 * 1024 * 1024  # of a body that no `into` takes: errors, listings
MAX_CHUNK_LINE_BYTES = 4096
MAX_INTERIM_ANSWERS = 32


class ProtocolError(Exception):
    """The server sent what is not HTTP/1.1."""


class ClosedError(Exception):
    """The connection ended before any byte of the answer: a kept connection that the server had given up."""


class IncompleteBodyError(Exception):
    """The connection ended in the middle of the body, of which `num_received` bytes have landed."""

    def __init__(self, message: str, num_received: int) -> None:
        super().__init__(message)
        self.num_received = num_received


class Head:
    """Status and header fields of a response. Names are looked up in lower case."""

    __slots__ = ("_fields", "_lines", "status")

    def __init__(self, raw: bytes) -> None:
        if not raw.startswith(b"HTTP/1.") or raw[8:9] != b" " or not raw[9:12].isdigit() or raw[12:13] not in (b" ", b"\r"):
            raise ProtocolError(f"the answer begins with {raw[:40]!r}, not with an HTTP/1.1 status line")
        self.status = int(raw[9:12])
        self._lines = raw.decode("utf-8", "replace").split("\r\n")
        self._fields: dict[str, str] = {}
        for line in self._lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                self._fields.setdefault(name.lower(), value.strip())

    def get(self, name: str) -> str | None:
        """The value of the first field of this (lower-case) name."""
        return self._fields.get(name)

    def fields(self) -> Iterable[tuple[str, str]]:
        """All fields as (lower-case name, value)."""
        for line in self._lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                yield name.lower(), value.strip()

    @property
    def keeps_alive(self) -> bool:
        """Does the server leave the connection open after this answer?"""
        connection = self._fields.get("connection", "").lower()
        return "keep-alive" in connection if self._lines[0].startswith("HTTP/1.0") else "close" not in connection

    def content_length(self) -> int | None:
        """The declared length of the body. Raises ProtocolError when it is no number or given twice differently."""
        text = self._fields.get("content-length")
        if text is None:
            return None
        is_repeated = len(self._fields) < len(self._lines) - 2  # all but the status line and the end
        if is_repeated and len({value for name, value in self.fields() if name == "content-length"}) > 1:
            raise ProtocolError("the answer has two different Content-Length fields")
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise ProtocolError(f"the answer's Content-Length {text!r} is no number")
        return int(text)


Into: TypeAlias = Callable[[Head, int], memoryview]


@dataclass(slots=True)
class Request:
    """One request, complete. `into` gives the memory for the body of a 200 or 206, once its head is known.

    `headers` are complete lines, as `header_lines` makes them. `stamp` is the signer's own note, which comes back with the
    answer.
    """

    method: str
    target: str
    headers: str = ""
    body: Sequence[memoryview] = ()
    into: Into | None = None
    stamp: int = 0


@dataclass(slots=True)
class Response:
    """An answer: `body` is what `into` gave, filled, or the collected bytes."""

    head: Head
    body: memoryview
    reusable: bool  # may the connection serve another request?
    stamp: int = 0  # that of the request


def encode(request: Request) -> bytes:
    """The request's head as bytes. Raises ValueError for a line break within the target, which would forge a header."""
    if "\n" in request.target or "\r" in request.target:
        raise ValueError("the target holds a line break")
    return f"{request.method} {request.target} HTTP/1.1\r\n{request.headers}\r\n".encode()


def header_lines(headers: Sequence[tuple[str, str]]) -> str:
    """Header fields as they go out. Raises ValueError for a line break within one."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers):
        raise ValueError("a header value holds a line break")
    return text


Want: TypeAlias = tuple[memoryview, bool]
"""Where the next bytes go, and whether nothing but these bytes follows, so that a driver may wait for all at once."""


def receive(request: Request, scratch: memoryview) -> Generator[Want, int, Response]:
    """The answer to `request`, as it comes in: a coroutine that yields what it wants and is sent the number of bytes.

    0 means that the connection ended. A driver throws the OSError of a failed receive in here, which becomes an
    IncompleteBodyError when it hit the body. `scratch` is the connection's own buffer for heads and framing.
    """
    filled = yield scratch, False
    if not filled:
        raise ClosedError("no answer")
    plain = plain_answer(request, scratch, filled)
    if plain is not None:
        response, count = plain
        if count < response.body.nbytes:
            yield from _body(response.body, count)
        return response
    head, surplus = yield from _final_head(scratch, filled)
    if request.method in ("HEAD", "CONNECT") or head.status in (204, 304):
        return Response(head, memoryview(b""), head.keeps_alive and not surplus, request.stamp)
    if "chunked" in (head.get("transfer-encoding") or "").lower():
        collected, surplus = yield from _chunked_body(scratch, surplus)
        return Response(head, _delivered(request, head, collected), head.keeps_alive and not surplus, request.stamp)
    length = head.content_length()
    if length is None:
        if request.into is not None and head.status in (200, 206):
            raise ProtocolError("the answer does not tell its length, so that a broken one would look whole")
        collected = yield from _body_to_the_end(scratch, surplus)
        return Response(head, _delivered(request, head, collected), False, request.stamp)
    body = _destination(request, head, length)
    count = min(len(surplus), length)
    body[:count] = surplus[:count]
    yield from _body(body, count)
    return Response(head, body, head.keeps_alive and len(surplus) <= length, request.stamp)


def plain_answer(request: Request, scratch: memoryview, filled: int) -> tuple[Response, int] | None:
    """A good answer whose head came in one piece and tells the length of its body, and how much of the body is here.

    None for all else. `scratch` holds the first `filled` bytes of the answer.
    """
    data: bytearray = scratch.obj  # type: ignore[assignment]
    end = data.find(b"\r\n\r\n", 0, filled)
    if end < 0 or request.into is None:
        return None
    head = Head(bytes(scratch[: end + 2]))
    length = None if head.get("transfer-encoding") else head.content_length()
    if length is None or head.status not in (200, 206):
        return None
    body = request.into(head, length)
    start, surplus = end + 4, filled - end - 4
    count = min(surplus, length)
    body[:count] = scratch[start : start + count]
    return Response(head, body, head.keeps_alive and surplus <= length, request.stamp), count


def _final_head(scratch: memoryview, filled: int) -> Generator[Want, int, tuple[Head, bytes]]:
    """The head of the answer proper, after interim ones such as 100 Continue, and the bytes that came with it."""
    surplus = bytes(scratch[:filled])
    for _ in range(MAX_INTERIM_ANSWERS):
        raw, surplus = yield from _head(scratch, surplus)
        head = Head(raw)
        if head.status >= 200:
            return head, surplus
    raise ProtocolError(f"the server sent {MAX_INTERIM_ANSWERS} interim answers and no final one")


def _head(scratch: memoryview, begun: bytes) -> Generator[Want, int, tuple[bytes, bytes]]:
    data: bytearray = scratch.obj  # type: ignore[assignment]
    scratch[: len(begun)] = begun
    filled = len(begun)
    while (end := data.find(b"\r\n\r\n", 0, filled)) < 0:
        if filled == len(scratch):
            raise ProtocolError(f"the answer's head is longer than {len(scratch)} bytes")
        count = yield scratch[filled:], False
        if not count:
            raise ProtocolError("the connection ended within the answer's head")
        filled += count
    return bytes(scratch[: end + 2]), bytes(scratch[end + 4 : filled])


def _destination(request: Request, head: Head, length: int) -> memoryview:
    if request.into is not None and head.status in (200, 206):
        return request.into(head, length)
    if length > MAX_COLLECTED_BYTES:
        raise ProtocolError(f"the answer's body of {length} bytes is longer than any message should be")
    return memoryview(bytearray(length))


def _body(body: memoryview, filled: int) -> Generator[Want, int, None]:
    """The rest of a body of which `filled` bytes are here."""
    length = body.nbytes
    while filled < length:
        try:
            count = yield body[filled:], True
        except OSError as exc:
            raise broken_off(filled, length, exc) from exc
        if not count:
            raise broken_off(filled, length)
        filled += count


def broken_off(filled: int, length: int, cause: OSError | None = None) -> IncompleteBodyError:
    """The error for a body of which only `filled` of `length` bytes came."""
    reason = f": {cause}" if cause else ", where the connection ended"
    return IncompleteBodyError(f"the body broke off after {filled} of {length} bytes{reason}", filled)


def _body_to_the_end(scratch: memoryview, surplus: bytes) -> Generator[Want, int, bytearray]:
    """A body without a length: what comes until the connection ends."""
    collected = bytearray(surplus)
    while count := (yield scratch, False):
        collected += scratch[:count]
        _check_collected(collected)
    return collected


def _chunked_body(scratch: memoryview, surplus: bytes) -> Generator[Want, int, tuple[bytearray, bytes]]:
    """The body, and what came after it."""
    collected = bytearray()
    line, rest = yield from _line(scratch, surplus)
    while size := _chunk_size(line):
        if len(collected) + size > MAX_COLLECTED_BYTES:
            raise ProtocolError(f"a chunk of {size} bytes makes the body longer than any message should be")
        while len(rest) < size:
            collected += rest
            size -= len(rest)
            rest = yield from _more(scratch)
        collected += rest[:size]
        end, rest = yield from _line(scratch, rest[size:])
        if end:
            raise ProtocolError("a chunk of the answer is longer than it says")
        line, rest = yield from _line(scratch, rest)
    while line:  # trailer fields, up to an empty line
        line, rest = yield from _line(scratch, rest)
    return collected, rest


def _line(scratch: memoryview, begun: bytes) -> Generator[Want, int, tuple[bytes, bytes]]:
    while (end := begun.find(b"\r\n")) < 0:
        if len(begun) > MAX_CHUNK_LINE_BYTES:
            raise ProtocolError("a line of the answer's framing is too long")
        begun += yield from _more(scratch)
    return begun[:end], begun[end + 2 :]


def _more(scratch: memoryview) -> Generator[Want, int, bytes]:
    count = yield scratch, False
    if not count:
        raise IncompleteBodyError("the body ended within a chunk", 0)
    return bytes(scratch[:count])


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
        raise ProtocolError(f"the answer has a chunk of size {digits[:20]!r}")
    return int(digits, 16)


def _check_collected(collected: bytearray) -> None:
    if len(collected) > MAX_COLLECTED_BYTES:
        raise ProtocolError("the answer's body is longer than any message should be")


def _delivered(request: Request, head: Head, collected: bytearray) -> memoryview:
    """A body that had to be collected first, copied to where it belongs."""
    body = _destination(request, head, len(collected))
    body[:] = collected
    return body
