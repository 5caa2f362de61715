"""What Python's sockets give at best: unparsed answers received into one buffer per thread that is used again."""

from __future__ import annotations

import mmap
import os
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from harness import Run, main

ENDPOINT = urlsplit(os.environ["AWS_ENDPOINT_URL"])
HEAD_BYTES = 4096
MAX_PAGE_BYTES = 4 * 1024 * 1024


def connect() -> socket.socket:
    sock = socket.create_connection((ENDPOINT.hostname, ENDPOINT.port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if ENDPOINT.scheme == "http":
        return sock
    context = ssl.create_default_context(cafile=os.environ["AWS_CA_BUNDLE"])
    return context.wrap_socket(sock, server_hostname=ENDPOINT.hostname)


def memory(size: int) -> memoryview:
    """Private memory in huge pages, with room for a head."""
    area = mmap.mmap(-1, size + HEAD_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(area)


def request(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: {ENDPOINT.netloc}\r\n{more}\r\n".encode()


def received(count: int) -> int:
    if count == 0:
        raise ConnectionError("the server ended the connection")
    return count


def receive(buffer: memoryview, requests: Sequence[bytes], size: int) -> None:
    """One connection; of each answer the body's bytes, however long its head is, come into the same buffer."""
    flags = 0 if ENDPOINT.scheme == "https" else socket.MSG_WAITALL
    with connect() as sock:
        for wanted in requests:
            sock.sendall(wanted)
            count = sock.recv_into(buffer)
            missing = bytes(buffer[:HEAD_BYTES]).find(b"\r\n\r\n") + 4 + size - count
            while missing > 0:
                missing -= received(sock.recv_into(buffer[size + HEAD_BYTES - missing :], missing, flags))


def work_get_many(plan: dict[str, Any]) -> Run:
    """As many threads as requests in flight, each with a connection and a share of the objects."""
    step, size = plan["in_flight"], plan["size"]
    threads = ThreadPoolExecutor(step)
    buffers = [memory(size) for _ in range(step)]
    requests = [request(uri.removeprefix("s3:/")) for uri in plan["uris"]]
    shares = [requests[number::step] for number in range(step)]

    def run() -> tuple[()]:
        list(threads.map(partial(receive, size=size), buffers, shares))
        return ()  # nothing is kept that could be verified

    return run


work_get = work_get_threads = work_get_many


def work_get_ranges(plan: dict[str, Any]) -> Run:
    """As many threads as ranges in flight, each with a connection and room for its part of the object."""
    step, size = plan["in_flight"], plan["size"] // plan["in_flight"]
    threads = ThreadPoolExecutor(step)
    buffers = [memory(size) for _ in range(step)]
    shares = [
        [request(uri.removeprefix("s3:/"), f"range: bytes={n * size}-{n * size + size - 1}\r\n") for uri in plan["uris"]]
        for n in range(step)
    ]

    def run() -> tuple[()]:
        list(threads.map(partial(receive, size=size), buffers, shares))
        return ()

    return run


def work_loader(plan: dict[str, Any]) -> Run:
    """Threads of this process: no loader can be faster."""
    return work_get_many({**plan, "in_flight": 16})


def work_list(plan: dict[str, Any]) -> Run:
    """One page after the other, keys found by a regular expression."""
    parts = urlsplit(plan["uris"][0])
    base = f"/{parts.netloc}?list-type=2&prefix={parts.path[1:]}"
    buffer = memoryview(bytearray(MAX_PAGE_BYTES))

    def run() -> Iterator[str]:
        with connect() as sock:
            path: str | None = base
            while path is not None:
                sock.sendall(request(path))
                count = 0
                while not bytes(buffer[max(0, count - 20) : count]).endswith(b"</ListBucketResult>"):
                    count += received(sock.recv_into(buffer[count:]))
                yield from (key.decode() for key in re.findall(rb"<Key>([^<]*)</Key>", buffer[:count]))
                token = re.search(rb"<NextContinuationToken>([^<]*)<", buffer[:count])
                path = None if token is None else f"{base}&continuation-token={token[1].decode()}"

    return run


if __name__ == "__main__":
    main(globals())
