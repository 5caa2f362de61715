"""Measure generate_npz_bytes: python -m benchmarks.npz [--repeats N].

Engines take turns in processes that live on, call by call, so that a busy machine disturbs all of them; a cell is the median
and in brackets the least and the most. Each result is dropped before the next is made; the first call, which finds no memory
to use again, is shown apart. Each engine's last archive is read by numpy, CRCs included.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
from typing import IO, NamedTuple

from benchmarks.engines import ROOT, Environments

MIB = 1024 * 1024
SHAPE = [6053, 6053, 1]  # 140 MiB, the guide's example

ORIGINAL = "s3dlio 0.9.100"
SETUP = {
    "s3dlio": "from s3dlio import generate_npz_bytes as make",
    ORIGINAL: "from s3dlio import generate_npz_bytes as make",
    "numpy.savez": """
import io
import numpy

def make(shape):
    file = io.BytesIO()
    numpy.savez(file, x=numpy.random.default_rng().random(shape, numpy.float32), y=numpy.zeros(1, numpy.int64))
    return file.getbuffer()
""",
}
LOOP = f"""
import json
import sys
import time

for command in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    archive = make(shape={SHAPE})
    report = {{"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "size": len(archive)}}
    if command == "show\\n":
        sys.stdout.buffer.write(bytes(archive))
        break
    del archive
    print(json.dumps(report), flush=True)
"""


class Sample(NamedTuple):
    """One call: seconds, and bytes."""

    wall: float
    cpu: float
    size: int


class Engine:
    """A process that makes an archive at each command."""

    def __init__(self, name: str) -> None:
        # -I: the original must not find this package in its stead.
        python = (
            [Environments(ROOT / ".cache" / "benchmarks").python("original-0.9.100"), "-I"]
            if name == ORIGINAL
            else [sys.executable]
        )
        command = [*python, "-c", SETUP[name] + LOOP]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.samples: list[Sample] = []

    def pipe(self, end: IO[bytes] | None) -> IO[bytes]:
        assert end is not None
        return end

    def call(self) -> None:
        self.pipe(self.process.stdin).write(b"go\n")
        self.pipe(self.process.stdin).flush()
        self.samples.append(Sample(**json.loads(self.pipe(self.process.stdout).readline())))

    def check(self) -> None:
        """numpy reads its archive."""
        import numpy

        archive, _ = self.process.communicate(b"show\n", timeout=60)
        with numpy.load(io.BytesIO(archive)) as arrays:
            assert arrays["x"].shape == tuple(SHAPE)
            assert not arrays["y"].any()


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"  # noqa: RUF001 - a range


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, metavar="N")
    repeats = parser.parse_args().repeats
    engines = {name: Engine(name) for name in SETUP}
    for _ in range(repeats + 1):
        for engine in engines.values():
            engine.call()
    print("| 140 MiB | MiB/s | ms of CPU | first call, ms of CPU |\n|---|---|---|---|")
    for name, engine in engines.items():
        engine.check()
        first, *rest = engine.samples
        rates = [sample.size / MIB / sample.wall for sample in rest]
        print(f"| {name} | {cell(rates)} | {cell([sample.cpu * 1e3 for sample in rest])} | {first.cpu * 1e3:,.0f} |")


if __name__ == "__main__":
    main()
