"""A training loop of 10 ms of Python per batch: its step rate alone, and while a stream of the same process feeds it."""

from __future__ import annotations

import json
import sys
import time

from s3dlio import ObjectStoreMapDataset
from s3dlio.bulk import stream

STEP_SECONDS = 0.010
BATCH = 8


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
    uris = json.loads(sys.argv[2])["uris"]
    num_rounds = rounds_of_a_step()
    num_steps = len(uris) // BATCH
    rates = {"alone": [], "loading": []}
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(num_steps):
            compute(num_rounds)
        rates["alone"].append(num_steps / (time.perf_counter() - start))
        views = stream(ObjectStoreMapDataset.from_uris(uris).uris, window=64)
        start = time.perf_counter()
        for _ in range(num_steps):
            batch = [next(views) for _ in range(BATCH)]
            assert len(batch) == BATCH
            compute(num_rounds)
        rates["loading"].append(num_steps / (time.perf_counter() - start))
    print(json.dumps({"alone": max(rates["alone"]), "loading": max(rates["loading"])}))


main()
