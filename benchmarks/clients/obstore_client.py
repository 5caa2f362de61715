from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import obstore
from harness import Run, main
from obstore.store import S3Store

PART_BYTES = 8 * 1024 * 1024


@cache
def store(bucket: str) -> S3Store:
    options: dict[str, Any] = {"allow_http": True}
    if "AWS_CA_BUNDLE" in os.environ:
        with open(os.environ["AWS_CA_BUNDLE"], "rb") as file:
            options["root_certificate"] = file.read()
    return S3Store(bucket, endpoint=os.environ["AWS_ENDPOINT_URL"], region="us-east-1", client_options=options)


@cache
def threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


def place(uri: str) -> tuple[S3Store, str]:
    parts = urlsplit(uri)
    return store(parts.netloc), parts.path[1:]


def fetch(uri: str) -> Any:
    return obstore.get(*place(uri)).bytes()


def fetch_ranges(uri: str, in_flight: int) -> bytearray:
    size = obstore.head(*place(uri))["size"]
    buffer = bytearray(size)

    def part(start: int) -> None:
        end = min(start + PART_BYTES, size)
        buffer[start:end] = obstore.get_range(*place(uri), start=start, end=end)

    list(threads(in_flight).map(part, range(0, size, PART_BYTES)))
    return buffer


def fetch_batch(uris: Sequence[str]) -> list[bytes]:
    return [bytes(data) for data in threads(16).map(fetch, uris)]


def fetch_batch_here(uris: Sequence[str]) -> list[Any]:
    return list(threads(16).map(fetch, uris))


class Copies:
    """The writer keeps what it is given until it is sent, but torch.save uses its buffer again: without copies, garbage."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: Any) -> int:
        self.file.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        self.file.flush()


@contextmanager
def writer(uri: str) -> Iterator[Copies]:
    with obstore.open_writer(*place(uri)) as file:
        yield Copies(file)


def work_get_many(plan: dict[str, Any]) -> Run:
    pool = threads(plan["in_flight"])
    return lambda: list(pool.map(fetch, plan["uris"]))


def work_get(plan: dict[str, Any]) -> Run:
    return lambda: map(fetch, plan["uris"])


def work_get_threads(plan: dict[str, Any]) -> Run:
    pool = threads(plan["in_flight"])
    return lambda: pool.map(fetch, plan["uris"])


def work_get_ranges(plan: dict[str, Any]) -> Run:
    return lambda: (fetch_ranges(uri, plan["in_flight"]) for uri in plan["uris"])


def work_loader(plan: dict[str, Any]) -> Run:
    import loading

    return loading.work(plan, fetch_batch if plan["workers"] else fetch_batch_here)


def work_save(plan: dict[str, Any]) -> Run:
    from checkpoints import saving

    return saving(plan, writer)


def work_load(plan: dict[str, Any]) -> Run:
    import torch
    from checkpoints import loading

    return loading(plan, lambda uri: torch.load(obstore.open_reader(*place(uri)), weights_only=True))


def work_list(plan: dict[str, Any]) -> Run:
    found, prefix = place(plan["uris"][0])

    def run() -> Iterator[str]:
        for chunk in obstore.list(found, prefix=prefix.rstrip("/"), chunk_size=1000):
            yield from (entry["path"] for entry in chunk)

    return run


if __name__ == "__main__":
    main(globals())
