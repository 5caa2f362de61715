from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness import Run, main

import s3dlio


def work_get_many(plan: dict[str, Any]) -> Run:
    return lambda: s3dlio.get_many(plan["uris"], workers=plan["in_flight"])


def work_get(plan: dict[str, Any]) -> Run:
    return lambda: map(s3dlio.get, plan["uris"])


def work_get_threads(plan: dict[str, Any]) -> Run:
    threads = ThreadPoolExecutor(plan["in_flight"])
    return lambda: threads.map(s3dlio.get, plan["uris"])


work_get_ranges = work_get  # cuts by itself


def work_loader(plan: dict[str, Any]) -> Run:
    import loading

    from s3dlio.torch import ObjectStoreIterableDataset, loader

    dataset = ObjectStoreIterableDataset(plan["uris"][0].rpartition("/")[0] + "/", batch_size=loading.BATCH)
    return loading.objects_of(loader(dataset, loading.BATCH, **loading.options(plan)))


def work_loader_map(plan: dict[str, Any]) -> Run:
    import loading

    from s3dlio.torch import ObjectStoreMapDataset, loader

    dataset = ObjectStoreMapDataset.from_uris(plan["uris"])
    return loading.objects_of(loader(dataset, loading.BATCH, **loading.options(plan)))


def work_save(plan: dict[str, Any]) -> Run:
    from checkpoints import saving

    return saving(plan, s3dlio.open_writer)


def work_load(plan: dict[str, Any]) -> Run:
    import torch
    from checkpoints import loading

    def load(uri: str) -> Any:
        with s3dlio.open_reader(uri) as file:
            return torch.load(file, weights_only=True)

    return loading(plan, load)


def work_list(plan: dict[str, Any]) -> Run:
    def run() -> Iterator[str]:
        yield from s3dlio.list(plan["uris"][0], recursive=True)

    return run


if __name__ == "__main__":
    main(globals())
