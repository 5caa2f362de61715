"""Measure distributed checkpoints against other clients on SeaweedFS, and print a Markdown table: python -m benchmarks.dcp.

Each engine saves and loads the same state in a process of its own, in an environment of its own; they take turns. A cell is
the median of the repeats and in brackets the least and the most. The server shares the machine, so that rates only rank.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.engines import CLIENTS, ROOT, Environments
from benchmarks.tables import cell
from tests.servers import SeaweedFS, seaweedfs

MIB = 1024 * 1024
NUM_TENSORS = 2
TENSOR_BYTES = 256 * MIB
TIMEOUT = 600

ENGINES = ("s3dlio", "s3torchconnector", "s3fs")
OURS = "s3dlio"


def environment_of(server: SeaweedFS) -> dict[str, str]:
    """What all engines are told. s3dlio comes from this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "S3DLIO_"))}
    return {**kept, **server.environment, "AWS_ENDPOINT_URL_S3": server.url, "PYTHONPATH": os.pathsep.join(sys.path)}


def measure(engine: str, python: str, work: str, uri: str, server: SeaweedFS) -> dict[str, Any]:
    plan = {"uri": uri, "num_tensors": NUM_TENSORS, "tensor_bytes": TENSOR_BYTES}
    command = [python, str(CLIENTS / "dcp_client.py"), engine, work, json.dumps(plan)]
    environment = environment_of(server)
    if engine != OURS:
        del environment["PYTHONPATH"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise RuntimeError(f"{engine} failed to {work}: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def make_bucket(server: SeaweedFS) -> None:
    code = "import s3dlio; s3dlio.create_bucket('s3://bench'); s3dlio.put_bytes('s3://bench/first', b'x')"
    subprocess.run([sys.executable, "-c", code], env=environment_of(server), check=True)


def rows(work: str, reports: dict[str, list[dict[str, Any]]]) -> list[str]:
    gib = NUM_TENSORS * TENSOR_BYTES / 1024**3
    title = f"{work} {NUM_TENSORS} x {TENSOR_BYTES // MIB} MiB"
    lines = [f"| {title} | s | ms of CPU/GiB | MiB of memory above idle |", "|---|---|---|---|"]
    for engine, some in reports.items():
        walls, cpus = [report["wall"] for report in some], [report["cpu"] / gib * 1e3 for report in some]
        lines.append(f"| {engine} | {cell(walls, 2)} | {cell(cpus)} | {cell([report['peak_mib'] for report in some])} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dcp", description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--repeats", type=int, default=3)
    default = os.environ.get("S3DLIO_BENCH_ENVIRONMENTS", ROOT / ".cache" / "benchmarks")
    parser.add_argument("--environments", type=Path, default=Path(default), help="the folder of the engines' environments")
    chosen = parser.parse_args()
    environments = Environments(chosen.environments)
    pythons = {engine: environments.python(engine) for engine in chosen.engines}
    reports: dict[str, dict[str, list[dict[str, Any]]]] = {work: {e: [] for e in pythons} for work in ("save", "load")}
    with tempfile.TemporaryDirectory() as folder, seaweedfs(Path(folder)) as server:
        make_bucket(server)
        for repeat in tqdm(range(chosen.repeats), leave=False):
            for engine, python in pythons.items():
                uri = f"s3://bench/{engine}/{repeat}"
                for work in ("save", "load"):
                    reports[work][engine].append(measure(engine, python, work, uri, server))
                saved, loaded = (reports[work][engine][-1]["sum"] for work in ("save", "load"))
                if saved != loaded:
                    raise RuntimeError(f"{engine} loaded something else than it saved")
    print(f"`python -m benchmarks.dcp {' '.join(sys.argv[1:])}`, {datetime.date.today()}, {os.cpu_count()} cores\n")
    for work, some in reports.items():
        print("\n".join(rows(work, some)))


if __name__ == "__main__":
    main()
