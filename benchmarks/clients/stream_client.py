"""One way of reading many objects: objects per second and µs of CPU per object of some runs after a first one, as JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

import s3dlio


def drain(loader: s3dlio.PyBytesAsyncDataLoader) -> None:
    items = loader.items()
    while items.collect_batch(64):
        pass


def measured(run: Callable[[], object], count: int) -> tuple[float, float]:
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return count / seconds, cpu / count * 1e6


def main() -> None:
    plan = json.load(sys.stdin)
    uris, window = plan["uris"], plan["window"]
    batches = [uris[start : start + 1024] for start in range(0, len(uris), 1024)]
    loader = s3dlio.PyBytesAsyncDataLoader(s3dlio.PyDataset.from_uris(uris), {"prefetch": window})
    works: dict[str, Callable[[], object]] = {
        "get_many": lambda: [len(s3dlio.get_many(batch, workers=window)) for batch in batches],
        "items": lambda: drain(loader),
        "for": lambda: sum(1 for _ in loader),
    }
    run = works[plan["work"]]
    run()
    print(json.dumps([measured(run, len(uris)) for _ in range(plan["runs"])]))


main()
