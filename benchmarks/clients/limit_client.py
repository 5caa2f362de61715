"""What Python's sockets give at best: unparsed answers received into one buffer that is used again."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

from harness import main

ENDPOINT = urlsplit(os.environ["AWS_ENDPOINT_URL"])
HEAD_BYTES = 4096


def receive(uris: list[str], size: int) -> None:
    buffer = memoryview(bytearray(size + HEAD_BYTES))
    with socket.create_connection((ENDPOINT.hostname, ENDPOINT.port)) as sock:
        for uri in uris:
            path = uri.removeprefix("s3:/")
            sock.sendall(f"GET {path} HTTP/1.1\r\nhost: {ENDPOINT.netloc}\r\n\r\n".encode())
            count = sock.recv_into(buffer)
            head = bytes(buffer[:HEAD_BYTES]).find(b"\r\n\r\n") + 4
            while count < head + size:
                count += sock.recv_into(buffer[count:])


def work_get_many(plan: dict[str, Any]) -> int:
    step = plan["in_flight"]
    threads = [threading.Thread(target=receive, args=(plan["uris"][n::step], plan["size"])) for n in range(step)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(plan["uris"])


def work_get(plan: dict[str, Any]) -> int:
    receive(plan["uris"], plan["size"])
    return len(plan["uris"])


def work_large(plan: dict[str, Any]) -> int:
    receive(plan["uris"], plan["size"])
    return len(plan["uris"]) * plan["size"]


main(globals())
