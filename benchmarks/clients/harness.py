"""What every client shares: run one work, measure it, print one line of JSON. Standard library only.

A client defines functions `work_NAME(plan)` that return the bytes-like results in the order of `plan["uris"]`, or a count,
and calls `main(globals())`. The results are verified outside of the measured time.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any


def cpu_seconds() -> float:
    """User and system time of this process and of its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def memory(field: str) -> float:
    """A line of /proc/self/status, in MiB."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def main(names: dict[str, Any]) -> None:
    work, plan = sys.argv[1], json.loads(sys.argv[2])
    function: Callable[[dict[str, Any]], Any] = names[f"work_{work}"]
    for _ in range(plan.get("warm_up", 1)):
        function(plan)
    reset_peak()
    idle = memory("VmRSS")
    cpu, wall = cpu_seconds(), time.perf_counter()
    result = function(plan)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    report = {"wall": wall, "cpu": cpu, "peak_mib": memory("VmHWM") - idle}
    if isinstance(result, int):
        report["count"] = result
    else:
        report["count"] = len(result)
        report["crc"] = zlib.crc32(b"".join(zlib.crc32(part).to_bytes(4, "big") for part in result))
    print(json.dumps(report))
