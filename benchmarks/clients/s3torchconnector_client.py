from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from harness import Run, main
from s3torchconnector import S3Checkpoint, S3ClientConfig
from s3torchconnector._s3client import S3Client

REGION = "us-east-1"
CONFIG = S3ClientConfig(force_path_style=True)


@cache
def client() -> S3Client:
    return S3Client(REGION, s3client_config=CONFIG)


@cache
def threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


def fetch(uri: str) -> bytes:
    parts = urlsplit(uri)
    data: bytes = client().get_object(parts.netloc, parts.path[1:]).read()
    return data


def fetch_batch(uris: Sequence[str]) -> list[bytes]:
    return list(threads(16).map(fetch, uris))


def work_get_many(plan: dict[str, Any]) -> Run:
    pool = threads(plan["in_flight"])
    return lambda: list(pool.map(fetch, plan["uris"]))


def work_get(plan: dict[str, Any]) -> Run:
    return lambda: map(fetch, plan["uris"])


work_get_ranges = work_get  # always asks for ranges


def work_get_threads(plan: dict[str, Any]) -> Run:
    pool = threads(plan["in_flight"])
    return lambda: pool.map(fetch, plan["uris"])


def work_loader(plan: dict[str, Any]) -> Run:
    import loading

    return loading.work(plan, fetch_batch)


def work_save(plan: dict[str, Any]) -> Run:
    from checkpoints import saving

    return saving(plan, S3Checkpoint(REGION, s3client_config=CONFIG).writer)


def work_load(plan: dict[str, Any]) -> Run:
    import torch
    from checkpoints import loading

    checkpoint = S3Checkpoint(REGION, s3client_config=CONFIG)
    return loading(plan, lambda uri: torch.load(checkpoint.reader(uri), weights_only=True))


def work_list(plan: dict[str, Any]) -> Run:
    parts = urlsplit(plan["uris"][0])

    def run() -> Iterator[str]:
        for page in client().list_objects(parts.netloc, parts.path[1:]):
            yield from (entry.key for entry in page.object_info)

    return run


if __name__ == "__main__":
    main(globals())
