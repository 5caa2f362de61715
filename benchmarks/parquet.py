"""Row groups against pyarrow.dataset over its own S3: python -m benchmarks.parquet [--rows N] [--repeats N].

A SeaweedFS of its own serves 8 files of 8 row groups and 50 float32 columns. Engines take turns, each pass in a process of
its own after one that warms up; a cell is the median. Footers are read anew in each pass. CPU is that of the client; the
server shares the machine, so rates only rank. The rate counts the bytes of the wanted column chunks as they are stored.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq

import s3dlio
from benchmarks.clients.harness import one_pass
from benchmarks.engines import CLIENTS, Environments, default_folder
from tests.servers import SeaweedFS, seaweedfs

MIB = 1024 * 1024
BUCKET = "parquet"
NUM_FILES, NUM_ROW_GROUPS, NUM_COLUMNS = 8, 8, 50
CHOICES: dict[str, list[str] | None] = {
    "all 50 columns": None,
    "5 of 50 columns": [f"c{number}" for number in range(0, 50, 10)],
}


def s3dlio_pass(decode: str) -> Callable[[list[str] | None], int]:
    """A pass over all row groups, which tells the number of rows."""

    def run(columns: list[str] | None) -> int:
        s3dlio.parquet_cache_clear()
        options = {"format": "parquet", "decode": decode, "columns": columns, "prefetch": 8}
        num_rows = 0
        for item in s3dlio.create_async_loader(f"s3://{BUCKET}/train/", options):
            num_rows += item.data.num_rows if decode == "batch" else len(item) > 0
        return num_rows

    return run


def pyarrow_pass(columns: list[str] | None) -> int:
    """The same with pyarrow.dataset, as its documentation shows it."""
    filesystem = pyarrow.fs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"].removeprefix("http://"),
        scheme="http",
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region=os.environ["AWS_REGION"],
    )
    data = pyarrow.dataset.dataset(f"{BUCKET}/train/", filesystem=filesystem)
    return sum(batch.num_rows for batch in data.to_batches(columns=columns))


def construction(_: list[str] | None) -> int:
    """Loaders of a second epoch: what the first one knew counts."""
    for _number in range(10):
        s3dlio.create_async_loader(f"s3://{BUCKET}/train/", {"format": "parquet"})
    return 0


def listing(_: list[str] | None) -> int:
    """The listing alone."""
    for _number in range(10):
        s3dlio.list(f"s3://{BUCKET}/train/", recursive=True)
    return 0


ORIGINALS = {"original-0.10.0 raw": "raw"}  # its Arrow decoding was built without Snappy, in which pyarrow writes
ENGINES: Mapping[str, Callable[[list[str] | None], int]] = {
    "s3dlio raw": s3dlio_pass("raw"),
    "s3dlio arrow": s3dlio_pass("arrow"),
    "s3dlio batch": s3dlio_pass("batch"),
    "pyarrow.dataset": pyarrow_pass,
}
SECOND_EPOCH = {"10 loaders, second epoch": construction, "10 listings": listing}


def measure_here(engine: str, choice: str) -> dict[str, float]:
    run = {**ENGINES, **SECOND_EPOCH}[engine]
    run(CHOICES[choice])
    return one_pass(lambda: run(CHOICES[choice]))


def measure(server: SeaweedFS, engine: str, choice: str) -> dict[str, float]:
    """A pass in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "S3DLIO_"))}
    environment = {**kept, **server.environment, "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-m", "benchmarks.parquet", "--engine", engine, "--choice", choice]
    if engine in ORIGINALS:
        command = original(engine, choice)
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300).stdout
    report: dict[str, float] = json.loads(output)
    return report


def original(engine: str, choice: str) -> list[str]:
    """The command for a pass of the Rust package, which takes columns by number and keeps its index of footers."""
    names = CHOICES[choice]
    columns = None if names is None else [int(name.removeprefix("c")) for name in names]
    plan = {"uri": f"s3://{BUCKET}/train/", "decode": ORIGINALS[engine], "columns": columns}
    python = Environments(default_folder()).python(engine.rpartition(" ")[0])
    return [python, str(CLIENTS / "original_parquet_client.py"), json.dumps(plan)]


def write_files(server: SeaweedFS, num_rows: int) -> None:
    """Random values: nothing of them compresses, as with embeddings and decoded images."""
    os.environ.update(server.environment)
    s3dlio.create_bucket(BUCKET)
    random = np.random.default_rng(0)
    for number in range(NUM_FILES):
        shape = (NUM_COLUMNS, num_rows * NUM_ROW_GROUPS)
        values = random.random(shape, np.float32)
        table = pa.table({f"c{column}": values[column] for column in range(NUM_COLUMNS)})
        file = io.BytesIO()
        pq.write_table(table, file, row_group_size=num_rows)
        s3dlio.put_bytes(f"s3://{BUCKET}/train/{number:02}.parquet", file.getbuffer())


def wanted_bytes(choice: str) -> int:
    """The bytes of the chunks that a choice of columns takes."""
    loader = s3dlio.create_async_loader(f"s3://{BUCKET}/train/", {"format": "parquet"})
    columns = CHOICES[choice]
    total = 0
    for index in loader.groups.files:
        for number in range(index.num_row_groups):
            group = index.metadata.row_group(number)
            for column in map(group.column, range(group.num_columns)):
                total += column.total_compressed_size if columns is None or column.path_in_schema in columns else 0
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000, help="rows of a row group")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-original", action="store_true", help="which needs an environment of its own")
    parser.add_argument("--engine")
    parser.add_argument("--choice", default=next(iter(CHOICES)))
    told = parser.parse_args()
    if told.engine:
        print(json.dumps(measure_here(told.engine, told.choice)))
        return
    with tempfile.TemporaryDirectory(prefix="s3dlio-") as folder, seaweedfs(Path(folder)) as server:
        write_files(server, told.rows)
        print("| columns | engine | MiB/s | CPU ms/GiB | wall s | CPU s | peak MiB over idle | peak MiB |")
        print("|---|---|---|---|---|---|---|---|")
        for choice in CHOICES:
            engines = [*ENGINES, *([] if told.without_original else ORIGINALS)]
            report(choice, {engine: [] for engine in engines}, wanted_bytes(choice), server, told.repeats)
        report(next(iter(CHOICES)), {engine: [] for engine in SECOND_EPOCH}, 0, server, told.repeats)


def report(choice: str, runs: dict[str, list[dict[str, float]]], size: int, server: SeaweedFS, repeats: int) -> None:
    for _ in range(repeats):
        for engine, done in runs.items():
            done.append(measure(server, engine, choice))
    for engine, done in runs.items():
        median: dict[str, Any] = {name: statistics.median(run[name] for run in done) for name in done[0]}
        rate, per_gib = size / MIB / median["wall"], median["cpu"] * 1000 / (size / MIB / 1024) if size else 0.0
        print(
            f"| {choice} | {engine} | {rate:,.0f} | {per_gib:,.0f} | {median['wall']:.3f} | {median['cpu']:.3f} | "
            f"{median['peak_mib']:,.0f} | {median['rss_mib']:,.0f} |"
        )


if __name__ == "__main__":
    main()
