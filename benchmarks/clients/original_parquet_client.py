"""A pass over row groups with the Rust package of the same name, as `benchmarks/parquet.py` measures one: JSON."""

from __future__ import annotations

import json
import os
import sys

from harness import one_pass

import s3dlio


def run(uri: str, decode: str, columns: list[int] | None) -> int:
    options = {"format": "parquet", "decode": decode, "columns": columns, "prefetch": 8}
    return sum(len(item) > 0 for item in s3dlio.create_async_loader(uri, options))


def main() -> None:
    plan = json.loads(sys.argv[1])
    run(**plan)
    s3dlio.parquet_cache_clear()
    print(json.dumps(one_pass(lambda: run(**plan))), flush=True)
    os._exit(0)  # its threads may hang at exit


main()
