"""Kill two ranks that save, again and again, and look at what they leave.

usage: killed_saves.py BASE NUM_KILLS FOLDER. Prints one line of JSON. The ranks are forked from this process, which has
imported everything, so that a round costs little more than its saves. OMP_NUM_THREADS has to be 1: torch's other threads do
not survive a fork.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import s3dlio
from s3dlio.torch import dcp

NUM_ELEMENTS = 9 * 2**17  # a file of 9 MiB per rank goes in two parts
WAIT = 60.0


def state_of(step: int, rank: int) -> dict[str, Any]:
    """What a rank saves at a step; both together make a checkpoint."""
    return {f"rank{rank}.{name}": torch.arange(NUM_ELEMENTS, dtype=torch.int32) + step * name for name in (1, 2)}


def checkpoint_of(step: int) -> dict[str, Any]:
    return {**state_of(step, 0), **state_of(step, 1), "step": step}


def forked(function: Callable[..., None], *arguments: Any) -> int:
    """Run `function` in a child; returns its id. The child's exit code tells whether it went well."""
    child = os.fork()
    if child:
        return child
    try:
        function(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


def save_on(rank: int, base: str, first: int, rendezvous: str, notes: int) -> None:
    dist.init_process_group("gloo", f"file://{rendezvous}", timedelta(seconds=60), rank=rank, world_size=2)
    for step in range(first, first + 10_000):
        state = {**state_of(step, rank), "step": step}
        dcp.save(state, f"{base}step_{step}")
        dcp.save(state, f"{base}last")
        os.write(notes, f"{step}\n".encode())


def kill_a_save(base: str, first: int, rendezvous: str) -> int:
    """Let two ranks save from step `first` on, kill them at some moment; returns the last step they noted."""
    reading, writing = os.pipe()
    ranks = [forked(save_on, rank, base, first, rendezvous, writing) for rank in (0, 1)]
    os.close(writing)
    if not select.select([reading], [], [], WAIT)[0]:
        raise TimeoutError("no save in a minute")
    time.sleep(random.random() * 0.4)
    random.shuffle(ranks)
    os.kill(ranks[0], signal.SIGKILL)
    time.sleep(random.choice([0, 0, random.random() * 0.05]))
    os.kill(ranks[1], signal.SIGKILL)
    for rank in ranks:
        os.waitpid(rank, 0)
    noted = b""
    while piece := os.read(reading, 1 << 16):
        noted += piece
    os.close(reading)
    return max(int(line) for line in noted.decode().splitlines())


def check(base: str, noted: int, report: str) -> None:
    """The last two steps that are complete, and `last`, are there, bit-exact, and not older than what was noted."""
    names = [uri.removeprefix(base) for uri in s3dlio.list(base, recursive=True)]
    committed = [name.partition("/")[0] for name in names if name.startswith("step_") and name.endswith("/.metadata")]
    complete = sorted(int(name.removeprefix("step_")) for name in committed)
    assert complete[-1] >= noted, (complete, noted)
    assert s3dlio.latest_checkpoint(base, "step_*") == f"{base}step_{complete[-1]}/"
    for name, least in (("last", noted), (f"step_{complete[-1]}", complete[-1]), (f"step_{complete[-2]}", complete[-2])):
        state = {key: torch.zeros_like(value) if key != "step" else 0 for key, value in checkpoint_of(0).items()}
        dcp.load(state, base + name)
        assert state["step"] >= least, (name, state["step"], least)
        for key, value in checkpoint_of(state["step"]).items():
            assert torch.equal(state[key], value) if key != "step" else state[key] == value, (name, key)
    for step in complete[:-2]:
        s3dlio.delete(f"{base}step_{step}/", recursive=True)
    Path(report).write_text(str(complete[-1]))


def main(base: str, num_kills: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    Path(folder).mkdir(parents=True)
    seed = random.randrange(1 << 30)
    random.seed(seed)
    sys.stderr.write(f"seed {seed}\n")
    first, checked = 1, 0
    dcp.save(checkpoint_of(0), f"{base}step_0")  # so that there is always one before the newest; and imports the rest
    for kill in range(int(num_kills)):
        noted = kill_a_save(base, first, f"{folder}/store{kill}")
        report = f"{folder}/report{kill}"
        if os.waitpid(forked(check, base, noted, report), 0)[1]:
            raise SystemExit(f"after kill {kill}")
        checked += 3
        first = int(Path(report).read_text()) + 1
    sys.stdout.write(json.dumps({"kills": int(num_kills), "checked": checked}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
