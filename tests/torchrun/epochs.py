"""One rank of a job: reads epochs of a data set, notes what it was given, and saves its state after each step.

usage: epochs.py PREFIX FOLDER NUM_EPOCHS NUM_WORKERS KILL_EPOCH KILL_STEP [STATE]

Rank 1 is killed at a step between its delivery and the saving of the state; -1 is never.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch
import torch.distributed

import s3dlio
from s3dlio.torch import loader

BATCH_SIZE = 64


def main(prefix: str, folder: str, num_epochs: int, num_workers: int, kill_epoch: int, kill_step: int, state: str) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    dataset = s3dlio.ObjectStoreIterableDataset(prefix, shuffle=True, seed=5, batch_size=BATCH_SIZE)
    batches = loader(dataset, BATCH_SIZE, num_workers=num_workers, multiprocessing_context="fork", timeout=60)
    if state:
        batches.load_state_dict(json.loads(state))
    with open(f"{folder}/rank-{rank}.jsonl", "a") as notes:
        for epoch in range(batches.epoch, num_epochs):
            for step, batch in enumerate(batches):
                position = batches.state_dict()["position"]
                given = [int(bytes(view)) for view in batch]
                notes.write(json.dumps({"epoch": epoch, "position": position, "samples": given}) + "\n")
                notes.flush()
                if rank == 1 and (epoch, step) == (kill_epoch, kill_step):
                    os.kill(os.getpid(), signal.SIGKILL)
                torch.distributed.all_reduce(torch.ones(1))  # as the gradients of a training step
                if rank == 0:
                    s3dlio.put_bytes(f"file://{folder}/state.json", json.dumps(batches.state_dict()).encode())
                torch.distributed.barrier()  # nobody goes on before the state is saved
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    arguments = [*sys.argv[1:], ""][:7]
    main(arguments[0], arguments[1], *map(int, arguments[2:6]), arguments[6])
