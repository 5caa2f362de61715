"""One engine saves or loads a distributed checkpoint; what is measured is printed as one line of JSON.

usage: dcp_client.py ENGINE WORK PLAN, where PLAN is JSON: `uri`, `num_tensors`, `tensor_bytes`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")


def s3dlio_storage(uri: str) -> tuple[Any, Any]:
    from s3dlio.torch import StorageReader, StorageWriter

    return StorageWriter(uri), StorageReader(uri)


def s3torchconnector_storage(uri: str) -> tuple[Any, Any]:
    from s3torchconnector.dcp import S3StorageReader, S3StorageWriter

    return S3StorageWriter("us-east-1", uri, thread_count=4), S3StorageReader("us-east-1", uri)


def s3fs_storage(uri: str) -> tuple[Any, Any]:
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

    return FsspecWriter(uri, thread_count=4, sync_files=False), FsspecReader(uri)


ENGINES: dict[str, Callable[[str], tuple[Any, Any]]] = {
    "s3dlio": s3dlio_storage,
    "s3torchconnector": s3torchconnector_storage,
    "s3fs": s3fs_storage,
}


def memory(field: str) -> float:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(engine: str, work: str, plan: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    count = plan["tensor_bytes"] // 4
    fill = 1 if work == "save" else 0
    names = [f"layer{number}" for number in range(plan["num_tensors"])]
    state = {name: torch.full((count,), fill * number, dtype=torch.int32) for number, name in enumerate(names, 1)}
    for tensor in state.values():
        some = tensor[::1024]
        some += fill * torch.arange(len(some), dtype=torch.int32)
    small = {"warm": torch.zeros(9)}
    warm_writer, warm_reader = ENGINES[engine](f"{plan['uri']}-{work}-warm")
    dcp.save(small, storage_writer=warm_writer)
    dcp.load(small, storage_reader=warm_reader)
    writer, reader = ENGINES[engine](plan["uri"])
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    idle, cpu, wall = memory("VmRSS"), cpu_seconds(), time.perf_counter()
    if work == "save":
        dcp.save(state, storage_writer=writer)
    else:
        dcp.load(state, storage_reader=reader)
    wall, cpu, peak = time.perf_counter() - wall, cpu_seconds() - cpu, memory("VmHWM") - idle
    total = sum(int(tensor.sum(dtype=torch.int64)) for tensor in state.values())
    print(json.dumps({"wall": wall, "cpu": cpu, "peak_mib": peak, "sum": total}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
