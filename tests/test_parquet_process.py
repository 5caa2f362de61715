"""What the Parquet loader does to a whole process: its memory, and ^C."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import s3dlio

from .fake_s3 import Reply, Request
from .faults import Fault, FaultServer, answering
from .parquet_files import file_of, table

MIB = 1024 * 1024
PREFETCH, NUM_GROUPS, GROUP_MIB = 2, 30, 8

MEMORY_CODE = """
import json, sys
import pyarrow.parquet
import s3dlio

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field + ":"))

loader = s3dlio.create_async_loader(sys.argv[1], {"format": "parquet", "decode": sys.argv[2], "prefetch": int(sys.argv[3])})
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = status("VmRSS")
num_rows = 0
for epoch in range(2):
    for item in loader:
        num_rows += 1
print(json.dumps({"items": num_rows, "added": status("VmHWM") - before}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of 30 row groups of 8 MiB: more than twice what a loader with a window of two may take."""
    path = tmp_path_factory.mktemp("large") / "a.parquet"
    rows = GROUP_MIB * MIB // 4
    column = np.random.default_rng(0).random(rows, np.float32)
    with pq.ParquetWriter(path, pa.schema([("x", pa.float32())]), compression="none", use_dictionary=False) as writer:
        for _ in range(NUM_GROUPS):
            writer.write_table(pa.table({"x": column}), row_group_size=rows)
    return f"file://{path}"


@pytest.mark.parametrize("decode", ["raw", "arrow", "batch"])
def test_memory_is_a_window_of_row_groups(
    large: str, run_python: Callable[..., subprocess.CompletedProcess[str]], decode: str
) -> None:
    done = run_python(MEMORY_CODE, large, decode, str(PREFETCH), PYTHONPATH=str(Path(s3dlio.__file__).parent.parent))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["items"] == 2 * NUM_GROUPS
    assert found["added"] < PREFETCH * GROUP_MIB + 100


WARM_UP = """
import pyarrow.parquet, s3dlio, sys
options = {"format": "parquet", "decode": sys.argv[2], "prefetch": 1}
next(iter(s3dlio.create_async_loader(sys.argv[1], options)))
"""


@pytest.mark.parametrize("decode", ["arrow", "batch"])
def test_decoding_takes_no_more_than_the_window(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]], decode: str
) -> None:
    rows = 40 * MIB // 8 // 10
    columns = {f"c{number}": np.random.default_rng(number).random(8 * rows) for number in range(10)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", rows, compression="none", use_dictionary=False)
    code = WARM_UP + MEMORY_CODE
    done = run_python(code, f"file://{tmp_path}/", decode, "4", PYTHONPATH=str(Path(s3dlio.__file__).parent.parent))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["items"] == 16
    assert found["added"] < 4 * 40 + 100


INTERRUPT_CODE = """
import os, signal, sys, threading
import s3dlio
uri, url = sys.argv[1:]
loader = s3dlio.create_async_loader(uri, {"format": "parquet"})
def interrupt():
    import urllib.request
    urllib.request.urlopen(url).close()  # answered once the server holds back row groups
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    for item in loader:
        pass
except KeyboardInterrupt:
    print("interrupted")
"""


LARGE = pa.table({"x": np.random.default_rng(0).random(2 * MIB // 8)})
"""Two row groups of 1 MiB, which threads read; small ones are read by the thread that waits."""


@pytest.mark.parametrize("content", [file_of(table()), file_of(LARGE, MIB // 8)], ids=["polling", "threads"])
def test_control_c_ends_a_loader_that_waits_and_then_the_process(
    faults: FaultServer, run_python: Callable[..., subprocess.CompletedProcess[str]], content: bytes
) -> None:
    faults.s3.put("d/a.parquet", content)

    def is_row_group(request: Request) -> bool:
        return request.verb == "GET" and request.headers.get("range", "").startswith("bytes=4-")

    def decide(request: Request) -> Fault | None:
        if request.bucket == "ready":
            while not any(map(is_row_group, list(faults.requests))):
                time.sleep(0.01)  # the pause of a poll, which a request that is there ends
            return answering(Reply(200))
        return Fault(stall=100) if is_row_group(request) else None

    faults.decide = decide
    path = str(Path(s3dlio.__file__).parent.parent)
    done = run_python(INTERRUPT_CODE, "s3://bkt/d/", f"{faults.url}/ready", timeout=30, PYTHONPATH=path)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)
