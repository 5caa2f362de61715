from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import s3fs
from harness import Run, main

PART_BYTES = 8 * 1024 * 1024


def system() -> s3fs.S3FileSystem:
    """The process's own file system object: fsspec keeps one per process and set of options."""
    return s3fs.S3FileSystem(
        endpoint_url=os.environ["AWS_ENDPOINT_URL"],
        config_kwargs={"max_pool_connections": 64, "s3": {"addressing_style": "path"}},
        use_listings_cache=False,
    )


def fetch(uri: str) -> bytes:
    data: bytes = system().cat_file(uri)
    return data


def fetch_batch(uris: Sequence[str], in_flight: int = 16) -> list[bytes]:
    """As a list even of one: fsspec gives a single object back by itself."""
    found = system().cat(list(uris), batch_size=in_flight)
    return [found[uri.removeprefix("s3://")] for uri in uris] if isinstance(found, dict) else [found]


def fetch_ranges(uri: str, in_flight: int) -> bytes:
    size = system().size(uri)
    starts = range(0, size, PART_BYTES)
    ends = [min(start + PART_BYTES, size) for start in starts]
    return b"".join(system().cat_ranges([uri] * len(starts), list(starts), ends, batch_size=in_flight))


def work_get_many(plan: dict[str, Any]) -> Run:
    return lambda: fetch_batch(plan["uris"], plan["in_flight"])


def work_get(plan: dict[str, Any]) -> Run:
    return lambda: map(fetch, plan["uris"])


def work_get_threads(plan: dict[str, Any]) -> Run:
    threads = ThreadPoolExecutor(plan["in_flight"])
    return lambda: threads.map(fetch, plan["uris"])


def work_get_ranges(plan: dict[str, Any]) -> Run:
    return lambda: (fetch_ranges(uri, plan["in_flight"]) for uri in plan["uris"])


def work_loader(plan: dict[str, Any]) -> Run:
    import loading

    return loading.work(plan, fetch_batch)


def work_save(plan: dict[str, Any]) -> Run:
    from checkpoints import saving

    return saving(plan, lambda uri: system().open(uri, "wb"))


def work_load(plan: dict[str, Any]) -> Run:
    import torch
    from checkpoints import loading

    def load(uri: str) -> Any:
        with system().open(uri, "rb") as file:
            return torch.load(file, weights_only=True)

    return loading(plan, load)


def work_list(plan: dict[str, Any]) -> Run:
    def run() -> Iterator[str]:
        yield from system().find(plan["uris"][0])

    return run


if __name__ == "__main__":
    main(globals())
