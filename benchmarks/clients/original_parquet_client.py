"""A pass over row groups with the Rust package of the same name, as `benchmarks/parquet.py` measures one: JSON."""

from __future__ import annotations

import json
import os
import sys
import time

from harness import cpu_seconds, memory, reset_peaks

import s3dlio


def run(uri: str, decode: str, columns: list[int] | None) -> int:
    options = {"format": "parquet", "decode": decode, "columns": columns, "prefetch": 8}
    return sum(len(item) > 0 for item in s3dlio.create_async_loader(uri, options))


def main() -> None:
    plan = json.loads(sys.argv[1])
    run(**plan)
    s3dlio.parquet_cache_clear()
    reset_peaks()
    idle = memory("VmRSS")
    cpu, wall = cpu_seconds(), time.perf_counter()
    num_groups = run(**plan)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    peak = memory("VmHWM")
    print(json.dumps({"wall": wall, "cpu": cpu, "peak_mib": peak - idle, "rss_mib": peak, "rows": num_groups}), flush=True)
    os._exit(0)  # its threads may hang at exit


main()
