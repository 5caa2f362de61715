"""What every client shares: prepare one work, run it, measure it, print one line of JSON. Standard library only.

A client defines functions `work_NAME(plan)`, which prepare the work (a client object, threads, a loader) and return a
function that does it once and gives its results one by one: bytes-like objects, or names. Measured are:

- `first_ms`: from preparing, in a fresh process whose script is loaded, to the first result of the first object (of a
  loader: batch) alone;
- `wall`, `cpu`, `peak_mib`: one run after another one, whose results are verified (with `cold`, the first run after one
  of a tiny object). CPU is that
  of this process and its children. The peak is above the memory before the first of the two runs; that of the workers of a
  loader is added, for each what it has more than this process had then. Mapped files do not count, shared memory does.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

Run = Callable[[], Iterable[Any]]
Work = Callable[[dict[str, Any]], Run]
TINY_BYTES = 4096
TICK = os.sysconf("SC_CLK_TCK")


def workers() -> list[str]:
    return [str(child.pid) for child in multiprocessing.active_children()]


def cpu_seconds() -> float:
    """User and system time of this process, of its ended children and of the running ones."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    total = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for pid in workers():
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            total += sum(map(int, file.read().rpartition(")")[2].split()[11:15])) / TICK
    return total


def memory(field: str, pid: str = "self") -> float:
    """A line of /proc/PID/status, in MiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def own_memory() -> float:
    """What is resident and not a mapped file, in MiB."""
    return memory("VmRSS") - memory("RssFile")


def reset_peaks() -> None:
    for pid in ["self", *workers()]:
        with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
            file.write("5")


def drop_cached(paths: list[str]) -> None:
    """Have the next read of these files come from the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def checksums(results: Iterable[Any]) -> dict[str, Any]:
    """What tells whether all came, and in which order."""
    crcs = [zlib.crc32(last_part(result) if isinstance(result, str) else result) for result in results]
    return {"count": len(crcs), "ordered": digest(crcs), "sorted": digest(sorted(crcs))}


def last_part(name: str) -> bytes:
    return name.rpartition("/")[2].encode()


def digest(crcs: list[int]) -> int:
    return zlib.crc32(b"".join(crc.to_bytes(4, "big") for crc in crcs))


def timed(run: Run, idle: float, own_mib: float) -> dict[str, float]:
    reset_peaks()
    cpu, wall = cpu_seconds(), time.perf_counter()
    num_results = 0
    for _ in run():
        num_results += 1
    _ = None
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    peak = sum(max(0.0, memory("VmHWM", pid) - memory("RssFile", pid) - idle) for pid in ["self", *workers()])
    return {"wall": wall, "cpu": cpu, "peak_mib": max(0.0, peak - own_mib), "results": num_results}


def one_pass(run: Callable[[], int]) -> dict[str, float]:
    """What `run`, which has run before, costs: seconds, and MiB at its peak (above what was there before, in all)."""
    reset_peaks()
    idle = memory("VmRSS")
    cpu, wall = cpu_seconds(), time.perf_counter()
    number = run()
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    peak = memory("VmHWM")
    return {"wall": wall, "cpu": cpu, "peak_mib": peak - idle, "rss_mib": peak, "rows": number}


def first_ms(work: Work, alone: dict[str, Any]) -> float:
    start = time.perf_counter()
    next(iter(work(alone)()), None)
    return (time.perf_counter() - start) * 1e3


def measure(work: Work, plan: dict[str, Any]) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for module in plan["imports"]:
        importlib.import_module(module)
    paths = [uri.partition("://")[2] for uri in plan["uris"]] if plan["drop"] else []
    drop_cached(paths)
    if plan["first"]:
        report["first_ms"] = first_ms(work, {**plan, "uris": plan["uris"][: plan["first"]]})
    run = work(plan)
    idle = own_memory()
    if plan["cold"]:
        list(work({**plan, "uris": [plan["tiny"]], "size": TINY_BYTES})())
    else:
        report |= checksums(run())
    drop_cached(paths)
    report |= timed(run, idle, plan["own_mib"])
    if plan["cold"]:
        report |= checksums(run())
    return report


def main(names: dict[str, Any]) -> None:
    plan: dict[str, Any] = json.load(sys.stdin)
    work = names.get(f"work_{plan['function']}")
    report = {"lacks": plan["function"]} if work is None else measure(work, plan)
    print(json.dumps(report), flush=True)
    os._exit(0)  # some engines hang in their own threads at exit
