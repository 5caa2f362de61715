from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from harness import Run, main


@cache
def client() -> Any:
    return boto3.client("s3", config=Config(max_pool_connections=64, s3={"addressing_style": "path"}))


@cache
def threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


def place(uri: str) -> dict[str, str]:
    parts = urlsplit(uri)
    return {"Bucket": parts.netloc, "Key": parts.path[1:]}


def fetch(uri: str) -> bytes:
    body: bytes = client().get_object(**place(uri))["Body"].read()
    return body


def fetch_ranges(uri: str, in_flight: int) -> memoryview:
    buffer = io.BytesIO()
    client().download_fileobj(**place(uri), Fileobj=buffer, Config=TransferConfig(max_concurrency=in_flight))
    return buffer.getbuffer()


def fetch_batch(uris: Sequence[str]) -> list[bytes]:
    return list(threads(16).map(fetch, uris))


@contextmanager
def writer(uri: str) -> Iterator[io.BytesIO]:
    """What users of boto3 do: everything into memory, then one managed upload."""
    buffer = io.BytesIO()
    yield buffer
    buffer.seek(0)
    client().upload_fileobj(buffer, **place(uri))


def work_get_many(plan: dict[str, Any]) -> Run:
    pool = threads(plan["in_flight"])
    client()  # not to be made by all threads at once
    return lambda: list(pool.map(fetch, plan["uris"]))


def work_get(plan: dict[str, Any]) -> Run:
    return lambda: map(fetch, plan["uris"])


def work_get_threads(plan: dict[str, Any]) -> Run:
    pool = threads(plan["in_flight"])
    client()
    return lambda: pool.map(fetch, plan["uris"])


def work_get_ranges(plan: dict[str, Any]) -> Run:
    return lambda: (fetch_ranges(uri, plan["in_flight"]) for uri in plan["uris"])


def work_loader(plan: dict[str, Any]) -> Run:
    import loading

    return loading.work(plan, fetch_batch)


def work_save(plan: dict[str, Any]) -> Run:
    from checkpoints import saving

    return saving(plan, writer)


def work_load(plan: dict[str, Any]) -> Run:
    import torch
    from checkpoints import loading

    return loading(plan, lambda uri: torch.load(io.BytesIO(fetch_ranges(uri, 10)), weights_only=True))


def work_list(plan: dict[str, Any]) -> Run:
    where = place(plan["uris"][0])

    def run() -> Iterator[str]:
        for page in client().get_paginator("list_objects_v2").paginate(Bucket=where["Bucket"], Prefix=where["Key"]):
            yield from (entry["Key"] for entry in page["Contents"])

    return run


if __name__ == "__main__":
    main(globals())
