"""Run the measurements and print a Markdown table: python -m benchmarks [--only WORK …] [--repeats N].

Engines take turns, repeat by repeat, so that a busy machine disturbs all of them; a cell is the median and in brackets the
least and the most. CPU is that of the client, its children included. nginx serves the objects, and its worker shares the
machine with the client, so rates only rank; CPU per object is steadier.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks import environments, servers

ROOT = Path(__file__).parent.parent
CLIENTS = ROOT / "benchmarks" / "clients"
KIB, MIB = 1024, 1024 * 1024

# What is installed for an engine; None: the project's own environment.
ENGINES = {"s3dlio": None, "obstore": "obstore==0.12.1", "boto3": "boto3==1.44.8", "limit": None}


class Work(NamedTuple):
    """A task of all engines: how many objects of which size, and how the clients are asked for it."""

    title: str
    function: str
    num_objects: int
    size: int
    in_flight: int = 1
    latency_ms: int = 0


WORKS = {
    "small": Work("2,000 x 4 KiB, 64 in flight", "get_many", 2000, 4 * KIB, 64),
    "medium": Work("1,000 x 128 KiB, 32 in flight", "get_many", 1000, 128 * KIB, 32),
    "single": Work("1,000 x 4 KiB, one by one", "get", 1000, 4 * KIB),
    "large": Work("4 x 148 MiB, dropped in between", "large", 4, 148 * MIB),
    "latency": Work("2,000 x 4 KiB, 64 in flight, 20 ms of latency", "get_many", 2000, 4 * KIB, 64, 20),
}


def interpreter(engine: str) -> str:
    """The Python of the engine's own environment."""
    requirement = ENGINES[engine]
    return sys.executable if requirement is None else environments.python_with(requirement)


def environment_of(endpoint: str) -> dict[str, str]:
    """What all clients are told: where the server is, and keys that it does not check."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }


def measure(engine: str, work: Work, endpoint: str, uris: Sequence[str]) -> dict[str, Any]:
    plan = {"uris": uris, "in_flight": work.in_flight, "size": work.size}
    command = [interpreter(engine), str(CLIENTS / f"{engine}_client.py"), work.function, json.dumps(plan)]
    done = subprocess.run(command, env=environment_of(endpoint), capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{engine} failed: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def verified(engine: str, work: Work, report: dict[str, Any], expected: dict[str, int]) -> dict[str, Any]:
    """The report, unless the engine did not deliver the bytes that are there."""
    wanted = work.num_objects * work.size if work.function == "large" else work.num_objects
    if report["count"] != wanted or report.get("crc", expected["crc"]) != expected["crc"]:
        raise RuntimeError(f"{engine} delivered something else than what is stored: {report}")
    return report


def cell(values: Sequence[float], digits: int = 0) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({least:,.{digits}f}–{most:,.{digits}f})"  # noqa: RUF001 - a range


def rows(work: Work, reports: dict[str, list[dict[str, Any]]]) -> list[str]:
    gib = work.num_objects * work.size / 1024**3
    is_large = work.function == "large"
    unit, cpu_unit = ("MiB/s", "ms of CPU/GiB") if is_large else ("objects/s", "µs of CPU/object")
    lines = [f"| {work.title} | {unit} | {cpu_unit} | MiB of memory above idle |", "|---|---|---|---|"]
    for engine, some in reports.items():
        amount = gib * 1024 if is_large else work.num_objects
        cost = [r["cpu"] / gib * 1e3 if is_large else r["cpu"] / work.num_objects * 1e6 for r in some]
        rates = [amount / report["wall"] for report in some]
        lines.append(f"| {engine} | {cell(rates)} | {cell(cost)} | {cell([r['peak_mib'] for r in some])} |")
    return [*lines, ""]


def import_times(_: Path) -> list[str]:
    """Milliseconds that `import s3dlio` takes in a fresh interpreter."""
    code = "import time; start = time.perf_counter(); import s3dlio; print((time.perf_counter() - start) * 1e3)"
    done = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(9)]
    return ["| `import s3dlio` | ms |", "|---|---|", f"| s3dlio | {cell([float(run.stdout) for run in done], 1)} |", ""]


def consumer(folder: Path) -> list[str]:
    """Steps per second of a loop that computes 10 ms per batch, without and with loading, 20 ms of latency."""
    with servers.nginx(folder, 1600, 128 * KIB, 20) as (endpoint, uris, _):
        command = [sys.executable, str(CLIENTS / "consumer.py"), "consumer", json.dumps({"uris": uris})]
        done = subprocess.run(command, env=environment_of(endpoint), capture_output=True, text=True, timeout=300, check=True)
    report = json.loads(done.stdout)
    title = "| 10 ms of Python per batch of 8 x 128 KiB, 20 ms of latency | steps/s | of the rate alone |"
    return [
        title,
        "|---|---|---|",
        *(f"| {name} | {rate:.1f} | {rate / report['alone']:.2f} |" for name, rate in report.items()),
        "",
    ]


SPECIAL = {"consumer": consumer, "import": import_times}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*WORKS, *SPECIAL], default=[*WORKS, *SPECIAL])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    lines = [f"`scripts/bench {' '.join(sys.argv[1:])}`, {datetime.date.today()}, {os.cpu_count()} cores", ""]
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.only:
            lines += SPECIAL[name](Path(folder)) if name in SPECIAL else _run(WORKS[name], chosen, Path(folder))
    print("\n".join(lines))


def _run(work: Work, chosen: argparse.Namespace, folder: Path) -> list[str]:
    reports: dict[str, list[dict[str, Any]]] = {engine: [] for engine in chosen.engines}
    with servers.nginx(folder, work.num_objects, work.size, work.latency_ms) as (endpoint, uris, crc):
        turns = [engine for _ in range(chosen.repeats) for engine in chosen.engines]
        for engine in tqdm(turns, desc=work.title, leave=False):
            reports[engine].append(verified(engine, work, measure(engine, work, endpoint, uris), {"crc": crc}))
    return rows(work, reports)


if __name__ == "__main__":
    main()
