"""The Rust package of the same name, which is installed in this client's own environment."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness import Run, main

import s3dlio

LOADER_OPTIONS = {"prefetch": 64, "batch_size": 32}


def fetch_batch(uris: Sequence[str]) -> list[bytes]:
    return [bytes(view) for _, view in s3dlio.get_many(list(uris), max_in_flight=32)]


def work_get_many(plan: dict[str, Any]) -> Run:
    return lambda: [view for _, view in s3dlio.get_many(plan["uris"], max_in_flight=plan["in_flight"])]


def work_get(plan: dict[str, Any]) -> Run:
    return lambda: map(s3dlio.get, plan["uris"])


work_get_ranges = work_get  # cuts by itself


def work_get_threads(plan: dict[str, Any]) -> Run:
    threads = ThreadPoolExecutor(plan["in_flight"])
    return lambda: threads.map(s3dlio.get, plan["uris"])


def work_loader(plan: dict[str, Any]) -> Run:
    """Its own loader where there are no workers; with them it cannot be pickled and hangs when forked in use."""
    import loading

    if plan["workers"]:
        return loading.work(plan, fetch_batch)
    dataset = s3dlio.PyDataset.from_uris(plan["uris"])
    return lambda: iter(s3dlio.PyBytesAsyncDataLoader(dataset, LOADER_OPTIONS))


def work_save(plan: dict[str, Any]) -> Run:
    from checkpoints import saving

    return saving(plan, s3dlio.MultipartUploadWriter.from_uri)


def work_load(plan: dict[str, Any]) -> Run:
    import torch
    from checkpoints import loading

    return loading(plan, lambda uri: torch.load(io.BytesIO(s3dlio.get(uri)), weights_only=True))


def work_list(plan: dict[str, Any]) -> Run:
    def run() -> Iterator[str]:
        yield from s3dlio.list(plan["uris"][0], recursive=True)

    return run


if __name__ == "__main__":
    main(globals())
