"""The object loader beside `get_many`, turn by turn: objects per second and µs of CPU per object of each, as JSON."""

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
    uris, repeats, window = plan["uris"], plan["repeats"], plan["window"]
    loader = s3dlio.PyBytesAsyncDataLoader(s3dlio.PyDataset.from_uris(uris), {"prefetch": window})
    batches = [uris[start : start + 1024] for start in range(0, len(uris), 1024)]
    works: dict[str, Callable[[], object]] = {
        "get_many, 1,024 at a time": lambda: [len(s3dlio.get_many(batch, workers=window)) for batch in batches],
        "items(), collect_batch(64)": lambda: drain(loader),
        "for view in loader": lambda: sum(1 for _ in loader),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, run in works.items():
            result = measured(run, len(uris))
            if repeat:  # the first one warms up
                found[name].append(result)
    print(json.dumps(found))


main()
