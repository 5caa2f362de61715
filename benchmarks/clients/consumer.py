"""A training loop of 10 ms of Python per batch: its step rate alone, fed by a stream of its own process, and by workers."""

from __future__ import annotations

import json
import sys
import time

from torch.utils.data import DataLoader

from s3dlio import ObjectStoreMapDataset
from s3dlio.bulk import stream

STEP_SECONDS = 0.010
BATCH = 8
NUM_WORKERS = 3


def compute(num_rounds: int) -> int:
    total = 0
    for number in range(num_rounds):
        total += number & 7
    return total


def rounds_of_a_step() -> int:
    """How many rounds take `STEP_SECONDS` on this machine now."""
    num_rounds = 50_000
    least = min(_timed(num_rounds) for _ in range(20))
    return int(num_rounds * STEP_SECONDS / least)


def _timed(num_rounds: int) -> float:
    start = time.perf_counter()
    compute(num_rounds)
    return time.perf_counter() - start


def main() -> None:
    uris = json.load(sys.stdin)["uris"]
    num_rounds = rounds_of_a_step()
    num_steps = len(uris) // BATCH
    rates: dict[str, list[float]] = {"alone": [], "stream": [], "workers": []}
    dataset = ObjectStoreMapDataset.from_uris(uris)
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(num_steps):
            compute(num_rounds)
        rates["alone"].append(num_steps / (time.perf_counter() - start))
        views = stream(dataset.uris, window=64)
        start = time.perf_counter()
        for _ in range(num_steps):
            batch = [next(views) for _ in range(BATCH)]
            assert len(batch) == BATCH
            compute(num_rounds)
        rates["stream"].append(num_steps / (time.perf_counter() - start))
        batches = iter(DataLoader(dataset, BATCH, num_workers=NUM_WORKERS, multiprocessing_context="fork"))
        next(batches)  # the workers have started
        start = time.perf_counter()
        for batch in batches:
            assert len(batch) == BATCH
            compute(num_rounds)
        rates["workers"].append((num_steps - 1) / (time.perf_counter() - start))
    print(json.dumps({name: max(some) for name, some in rates.items()}))


main()
