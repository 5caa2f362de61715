"""A job of several ranks under torchrun reads every object once per epoch, also when it is killed and resumed by others."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.objects import fill, flat

NUM_OBJECTS = 10_007
SCRIPT = Path(__file__).parent / "torchrun" / "epochs.py"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fill(f"file://{tmp_path_factory.mktemp('objects')}/", NUM_OBJECTS)


def torchrun(num_ranks: int, *arguments: object, script: Path = SCRIPT) -> int:
    """Run the script's ranks on this machine's own address only; returns the exit code."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    ranks = ["--nnodes", "1", "--nproc-per-node", str(num_ranks), "--max-restarts", "0"]
    job = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *ranks, *address, str(script), *map(str, arguments)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        errors = job.communicate(timeout=100)[1]
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGTERM)  # torchrun ends its ranks then
        errors = job.communicate(timeout=30)[1]
        pytest.fail(f"the job did not end: {errors}")
    if job.returncode:
        sys.stderr.write(errors)
    return job.returncode


def notes(folder: Path) -> list[dict[str, Any]]:
    """What the ranks were given, in the order of the epochs and of the positions."""
    lines = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return sorted(lines, key=lambda line: (line["epoch"], line["position"]))


def samples_of(epoch: int, lines: list[dict[str, Any]]) -> list[int]:
    return flat(line["samples"] for line in lines if line["epoch"] == epoch)


def test_a_job_reads_each_object_once_per_epoch_though_it_is_killed_and_resumed(prefix: str, tmp_path: Path) -> None:
    """2 ranks x 2 workers are killed within the second epoch; 1 rank x 3 workers end it and read a third."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    kill_step = random.randint(1, 76)
    assert torchrun(2, prefix, first, 3, 2, 1, kill_step) != 0
    state = json.loads((first / "state.json").read_text())
    assert (state["epoch"], state["position"]) == (1, kill_step * 2 * 64), f"killed at step {kill_step}"

    assert torchrun(1, prefix, second, 3, 3, -1, -1, json.dumps(state)) == 0
    # A job that is killed within a step has not learned from it: it counts when its state was saved.
    counted = [line for line in notes(first) if (line["epoch"], line["position"]) <= (1, state["position"])]
    epochs = [samples_of(epoch, counted + notes(second)) for epoch in range(3)]
    assert [sorted(samples) == list(range(NUM_OBJECTS)) for samples in epochs] == [True] * 3, f"killed at {kill_step}"
    assert len({tuple(samples) for samples in epochs}) == 3
    assert all(samples != sorted(samples) for samples in epochs)
    assert len(samples_of(1, notes(second))) == NUM_OBJECTS - state["position"]
