"""Distributed checkpoints of two ranks: FSDP2 and DDP, other numbers of ranks, failures that all ranks learn of, kill -9."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from s3dlio.torch import dcp
from tests.conftest import S3Place
from tests.fake_s3 import Request
from tests.faults import Fault, FaultServer, failing
from tests.test_torch_distributed import torchrun
from tests.torchrun import checkpoints

FOLDER = Path(__file__).parent / "torchrun"


def refuse_the_storm(request: Request) -> Fault | None:
    return failing(503, "SlowDown") if request.method == "PUT" and "/__1_" in request.target else None


def test_two_ranks_save_and_load_in_every_way(s3_place: S3Place, tmp_path: Path) -> None:
    """FSDP2, DDP, 1 -> 2 and 2 -> 1 ranks, rows into columns, async, and failures of one rank, on file:// and s3://."""
    bases = [f"file://{tmp_path}/", s3_place.root]
    for base in bases:
        dcp.save({"table": checkpoints.table(), "step": 7}, base + "single")
    with FaultServer() as server:
        server.decide = refuse_the_storm
        script = FOLDER / "checkpoints.py"
        assert torchrun(2, ",".join(bases), server.environment["AWS_ENDPOINT_URL"], script=script) == 0
    model, optimizer = checkpoints.trained(lambda model: model, seed=1)
    expected = checkpoints.state_of(model, optimizer)
    other, other_optimizer = checkpoints.trained(lambda model: model, seed=3)
    for base in bases:
        for name, more in (("ddp", {}), ("fsdp", {"table": checkpoints.table()})):
            state = {**checkpoints.state_of(other, other_optimizer), **{key: torch.zeros_like(more[key]) for key in more}}
            dcp.load(state, base + name)
            checkpoints.assert_same(state, {**expected, **more})


@pytest.mark.parametrize("scheme", ["file", "s3"])
def test_a_save_that_is_killed_anywhere_leaves_what_loads(
    scheme: str, s3_place: S3Place, tmp_path: Path, num_kills: int
) -> None:
    """kill -9 of two ranks at random moments, half of the trials here and half on the other scheme: what was committed last,
    and the one before, are there and bit-exact."""
    num_kills = max(1, num_kills // 2)
    base = f"file://{tmp_path}/" if scheme == "file" else s3_place.root
    done = subprocess.run(
        [sys.executable, str(FOLDER / "killed_saves.py"), base, str(num_kills), str(tmp_path / "stores")],
        capture_output=True,
        text=True,
        timeout=60 + 12 * num_kills,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["kills"] == num_kills
    assert report["checked"] >= 2 * report["kills"]
