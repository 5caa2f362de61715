"""Saves checkpoints until it is killed: a process that imports torch once and forks for every trial.

Commands are JSON lines on stdin. Of each rank a child saves the checkpoints `numbers`, one after the other. When rank 0 has
saved `wait_for` of them, the ranks are killed, each after its own part (`moments`) of the time that a save takes. The answer
is a JSON line: the number of the last checkpoint that rank 0 had saved, 0 for none.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
import traceback
from typing import Any

import torch

import s3dlio
from s3dlio.transfer.write import ObjectWriter

__all__ = ["state"]

MESSAGE = struct.Struct("<Id")  # the number of a checkpoint, and the seconds that it took
seconds_of_a_save = 0.5


def state(number: int, num_floats: int) -> dict[str, Any]:
    """A checkpoint that no other number has."""
    generator = torch.Generator().manual_seed(number)
    half = num_floats // 2
    return {
        "number": number,
        "first": torch.randn(half, generator=generator),
        "second": torch.randn(half, generator=generator),
    }


def save(root: str, number: int, num_floats: int, rank: int, world_size: int, attempt: str) -> None:
    """One checkpoint: under a name of its own, and over the one before."""
    if world_size == 1:
        for name in (f"step_{number}.pt", "current.pt"):
            s3dlio.save_checkpoint(root + name, state(number, num_floats))
        return
    data = {"rank": rank, **state(number * 10 + rank, num_floats)}
    for base in (f"{root}step_{number}/", f"{root}current/"):
        save_id = f"{number}-{attempt}"
        s3dlio.save_distributed_shard(f"{base}shard_{rank}.bin", data, rank, world_size, save_id=save_id)
        if rank == 0:
            s3dlio.finalize_distributed_checkpoint(base, world_size, save_id=save_id, timeout=30)


def child(command: dict[str, Any], rank: int, done: int) -> None:
    torch.set_num_threads(1)
    ObjectWriter.__init__.__kwdefaults__["part_bytes"] = command["part_bytes"]
    for number in command["numbers"]:
        started = time.monotonic()
        save(command["root"], number, command["num_floats"], rank, len(command["moments"]), command["attempt"])
        os.write(done, MESSAGE.pack(number, time.monotonic() - started))


def start(command: dict[str, Any], rank: int) -> tuple[int, int]:
    """Fork the child of a rank; returns its id and where it tells what it has saved."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        child(command, rank, writing)
    except BaseException:
        traceback.print_exc()
    os._exit(0)


def trial(command: dict[str, Any]) -> int:
    global seconds_of_a_save
    children = [start(command, rank) for rank in range(len(command["moments"]))]
    with open(children[0][1], "rb") as messages:
        told = [MESSAGE.unpack(messages.read(MESSAGE.size)) for _ in range(command["wait_for"])]
        waited = 0.0
        for moment, (pid, _) in sorted(zip(command["moments"], children, strict=True)):
            time.sleep((moment - waited) * seconds_of_a_save)
            waited = moment
            os.kill(pid, signal.SIGKILL)
        told += MESSAGE.iter_unpack(messages.read())
    for pid, _ in children:
        os.waitpid(pid, 0)
    for _, reading in children[1:]:
        os.close(reading)
    if told:
        seconds_of_a_save = told[-1][1]
    return told[-1][0] if told else 0


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(trial(json.loads(line))) + "\n")
        sys.stdout.flush()
