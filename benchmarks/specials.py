"""What is no work of all engines: the limits of the machine, the time of an import, a loop that computes."""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.bars import Result, Results
from benchmarks.engines import CLIENTS, Environments, NotInstalledError
from benchmarks.runner import environment_for
from benchmarks.servers import Servers
from benchmarks.tables import cell
from benchmarks.works import KIB, LARGE, MEDIUM, MIB, SMALL

Special = Callable[[Servers, Environments, bool], tuple[list[str], Results]]
MODULES = {
    **{engine: engine for engine in ("s3dlio", "obstore", "s3torchconnector", "s3fs", "boto3")},
    "original-0.9.100": "s3dlio",
    "original-0.10.0": "s3dlio",
}
# Every thread of wrk goes through all the objects, so that the server's files are those that the clients ask for.
SCRIPT = """
local number = 0
request = function()
  number = (number + 1) % {count}
  return wrk.format("GET", string.format("/{bucket}/%06d", number))
end
done = function(summary)
  io.write(string.format("rate %f %d\\n", summary.requests / summary.duration * 1e6, summary.requests))
end
"""


def limits(servers: Servers, _: Environments, quick: bool) -> tuple[list[str], Results]:
    """What the server gives to wrk, and what the memory gives to a copy."""
    if shutil.which("wrk") is None:
        raise RuntimeError("the limits need wrk: apt-get install wrk")
    lines = ["| limit | rate | CPU |", "|---|---|---|"]
    for size, count, title in ((SMALL, 10_000, "4 KiB"), (MEDIUM, 4000, "128 KiB"), (LARGE, 8, "148 MiB")):
        num_objects, seconds, repeats = (max(2, count // 20), 1, 1) if quick else (count, 5, 3)
        runs = [_wrk(servers, size, num_objects, seconds) for _ in range(repeats)]
        rates, costs = [rate for rate, _ in runs], [cost for _, cost in runs]
        if size < MIB:
            lines.append(f"| wrk, {title}, 16 connections | {cell(rates)} objects/s | {cell(costs, 1)} µs/object |")
        else:
            mib = size / MIB
            rates, costs = [rate * mib for rate in rates], [cost / mib * 1.024 for cost in costs]
            lines.append(f"| wrk, {title}, 4 connections | {cell(rates)} MiB/s | {cell(costs, 1)} ms/GiB |")
    copies = [_copy_rate() for _ in range(9)]
    lines.append(f"| memcpy of 148 MiB into memory that is used again | {cell(copies)} MiB/s | |")
    return [*lines, ""], {}


def _wrk(servers: Servers, size: int, count: int, seconds: int) -> tuple[float, float]:
    """Requests per second, and microseconds of CPU per request."""
    objects = servers.objects(size, count)
    script = servers.folder / "wrk.lua"
    script.write_text(SCRIPT.format(bucket=objects.folder.name, count=count))
    url = servers.environment("plain")["AWS_ENDPOINT_URL"]
    connections = 16 if size < MIB else 4
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}", "-s", str(script), url]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (rate, number) = next(line for line in done.stdout.splitlines() if line.startswith("rate ")).split()[1:]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(rate), cpu / int(number) * 1e6


def _copy_rate() -> float:
    source, target = bytearray(b"x") * LARGE, memoryview(bytearray(b"y") * LARGE)
    start = time.perf_counter()
    target[:] = source
    return LARGE / MIB / (time.perf_counter() - start)


def import_times(_: Servers, environments: Environments, quick: bool) -> tuple[list[str], Results]:
    """Milliseconds that importing an engine takes in a fresh interpreter; with torch where the package itself loads it."""
    lines = ["| import | ms |", "|---|---|"]
    results = {}
    for engine, module in MODULES.items():
        code = f"import time; start = time.perf_counter(); import {module}; print((time.perf_counter() - start) * 1e3)"
        try:
            command = [environments.python(engine), "-c", code]
            times = [_output_of(command, environment_for(engine, {})) for _ in range(2 if quick else 9)]
        except (NotInstalledError, subprocess.CalledProcessError) as error:
            lines.append(f"| {engine} | {error} |")
            continue
        lines.append(f"| {engine} | {cell(times, 1)} |")
        results[engine] = Result([], [], [], times)
    return [*lines, ""], {"import": results}


def _output_of(command: list[str], environment: dict[str, str]) -> float:
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout)


def consumer(servers: Servers, _: Environments, quick: bool) -> tuple[list[str], Results]:
    """Steps per second of a loop that computes 10 ms per batch, without and with loading, 20 ms of latency."""
    objects = servers.objects(128 * KIB, 240 if quick else 1600)
    plan = json.dumps({"uris": objects.uris("s3:/", 240 if quick else 1600)})
    environment = environment_for("s3dlio", servers.environment("latency"))
    command = [sys.executable, str(CLIENTS / "consumer.py")]
    done = subprocess.run(command, input=plan, env=environment, capture_output=True, text=True, timeout=300, check=True)
    report = json.loads(done.stdout)
    title = "| 10 ms of Python per batch of 8 x 128 KiB, 20 ms of latency | steps/s | of the rate alone |"
    rows = (f"| {name} | {rate:.1f} | {rate / report['alone']:.2f} |" for name, rate in report.items())
    return [title, "|---|---|---|", *rows, ""], {}


STREAMS = {
    "get_many": "get_many, 1,024 at a time",
    "items": "items(), collect_batch(64)",
    "for": "for view in loader",
}


def stream(servers: Servers, _: Environments, quick: bool) -> tuple[list[str], Results]:
    """The object loader beside get_many, 64 in flight; a process of its own for some runs of each, turn by turn."""
    lines = []
    for size, count, title in ((SMALL, 10_000, "4 KiB"), (MEDIUM, 4000, "128 KiB")):
        count = count // 20 if quick else count
        plan = {"uris": servers.objects(size, count).uris("s3:/", count), "runs": 1 if quick else 3, "window": 64}
        report: dict[str, list[list[float]]] = {work: [] for work in STREAMS}
        for _ in range(1 if quick else 5):
            for work, runs in report.items():
                runs += _stream(servers, {**plan, "work": work})
        least = statistics.median(rate for rate, _ in report["get_many"])
        lines += [
            f"| {count:,} x {title}, 64 in flight | objects/s | µs of CPU/object | of get_many's rate |",
            "|---|---|---|---|",
        ]
        for work, runs in report.items():
            rates, costs = [rate for rate, _ in runs], [cost for _, cost in runs]
            lines.append(f"| {STREAMS[work]} | {cell(rates)} | {cell(costs, 1)} | {statistics.median(rates) / least:.2f} |")
        lines.append("")
    return lines, {}


def _stream(servers: Servers, plan: dict[str, Any]) -> list[list[float]]:
    command = [sys.executable, str(CLIENTS / "stream_client.py")]
    environment = environment_for("s3dlio", servers.environment("plain"))
    done = subprocess.run(
        command, input=json.dumps(plan), env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    found: list[list[float]] = json.loads(done.stdout)
    return found


SPECIALS: dict[str, Special] = {"limits": limits, "import": import_times, "consumer": consumer, "stream": stream}
