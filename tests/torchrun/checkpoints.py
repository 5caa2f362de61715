"""Two ranks save and load distributed checkpoints in every way; an assertion that fails ends the job.

usage: checkpoints.py BASES FAULTY_ENDPOINT, where BASES are URIs with commas between them. Each holds a checkpoint `single`
that one process saved; `fsdp` and `ddp` are left for one process to load.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import s3dlio
from s3dlio.errors import S3dlioError
from s3dlio.torch import StorageWriter, dcp

ROWS, COLUMNS = 1001, 700


def table() -> torch.Tensor:
    """2.8 MB whose halves do not end at blocks of checksums."""
    return torch.arange(ROWS * COLUMNS, dtype=torch.int32).reshape(ROWS, COLUMNS)


def trained(wrap: Callable[[torch.nn.Module], torch.nn.Module], seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A small model after one step with gradients of one."""
    torch.manual_seed(seed)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(64, 37), torch.nn.Linear(37, 11)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, progress = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": progress}


def whole(state: Any) -> Any:
    """The same tree with whole tensors."""
    if isinstance(state, dict):
        return {name: whole(value) for name, value in state.items()}
    return state.full_tensor() if isinstance(state, DTensor) else state


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert_same(ours[name], theirs[name])
    elif isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs)
    else:
        assert ours == theirs


def sharded_model(mesh: DeviceMesh) -> Callable[[torch.nn.Module], torch.nn.Module]:
    def wrap(model: torch.nn.Module) -> torch.nn.Module:
        fully_shard(model, mesh=mesh)
        return model

    return wrap


def ddp(base: str) -> None:
    model, optimizer = trained(DistributedDataParallel, seed=1)
    dcp.save(state_of(model, optimizer), base + "ddp")
    other, other_optimizer = trained(DistributedDataParallel, seed=2)
    state = state_of(other, other_optimizer)
    dcp.load(state, base + "ddp")
    set_state_dict(other, other_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))


def safetensors(base: str) -> None:
    """The ranks share the tensors of a replicated model."""
    model, _ = trained(DistributedDataParallel, seed=1)
    dcp.save(model.state_dict(), base + "hf", format="safetensors", files_per_rank=1)
    names = [uri.rpartition("/")[2] for uri in s3dlio.list(base + "hf/")]
    assert names == [*(f"model-0000{number}-of-00002.safetensors" for number in (1, 2)), "model.safetensors.index.json"]
    other, _ = trained(DistributedDataParallel, seed=2)
    state = other.state_dict()
    dcp.load(state, base + "hf", format="safetensors")
    assert_same(state, model.state_dict())


def fsdp(base: str, mesh: DeviceMesh) -> None:
    model, optimizer = trained(sharded_model(mesh), seed=1)
    saved = {**state_of(model, optimizer), "table": distribute_tensor(table(), mesh, [Shard(0)])}
    dcp.save(saved, base + "fsdp")
    other, other_optimizer = trained(sharded_model(mesh), seed=2)
    state = {**state_of(other, other_optimizer), "table": distribute_tensor(torch.zeros_like(table()), mesh, [Shard(1)])}
    dcp.load(state, base + "fsdp")
    assert_same(whole(state), whole(saved))
    set_state_dict(other, other_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert_same(whole(state_of(other, other_optimizer)), whole(state_of(model, optimizer)))


def from_one_rank(base: str, mesh: DeviceMesh) -> None:
    for dim in (0, 1):
        state = {"table": distribute_tensor(torch.zeros_like(table()), mesh, [Shard(dim)]), "step": 0}
        dcp.load(state, base + "single")
        assert_same(whole(state), {"table": table(), "step": 7})


def asynchronous(base: str, kind: str) -> None:
    state = {"rank": torch.full((9,), float(dist.get_rank())), "weight": torch.arange(1000.0)}
    saving = dcp.async_save(state, base + kind, kind=kind)
    state["weight"].zero_()  # training goes on
    saving.result(timeout=120)
    dist.barrier()
    loaded = {"weight": torch.zeros(1000)}
    dcp.load(loaded, base + kind)
    assert_same(loaded["weight"], torch.arange(1000.0))


def without_collectives(base: str) -> None:
    from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

    from s3dlio.torch import StorageReader

    rank = dist.get_rank()
    state_dict_saver.save(
        {"own": torch.full((5,), rank + 1)}, storage_writer=StorageWriter(base + "apart"), use_collectives=False
    )
    loaded = {"own": torch.zeros(5, dtype=torch.int64)}
    state_dict_loader.load(loaded, storage_reader=StorageReader(base + "apart"))
    assert loaded["own"].tolist() == [rank + 1] * 5


class TwoArgumentsError(Exception):
    """Cannot be rebuilt by the other ranks."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def failing_rank(base: str) -> None:
    """What one rank cannot do fails the save on both, and leaves the checkpoint that was there, and nothing else."""
    uri, rank = base + "failing", dist.get_rank()
    dcp.save({"weight": torch.ones(9), "own": torch.full((9,), rank)}, uri)
    before = s3dlio.list(uri, recursive=True)
    write = StorageWriter._write_file
    for loser in (0, 1):

        def fail(*arguments: Any, loser: int = loser) -> Any:
            result = write(*arguments)
            if rank == loser:
                raise TwoArgumentsError(1, 2)
            return result

        StorageWriter._write_file = fail  # type: ignore[method-assign]
        try:
            dcp.save({f"own{rank}": torch.zeros(9)}, uri)
        except S3dlioError as exc:
            assert "TwoArgumentsError: 1 and 2" in str(exc), exc  # noqa: PT017 - no pytest runs here
        else:
            raise AssertionError(f"rank {loser} has failed, and rank {rank} does not know it")
        finally:
            StorageWriter._write_file = write  # type: ignore[method-assign]
    dist.barrier()
    loaded = {"weight": torch.zeros(9)}
    dcp.load(loaded, uri)
    assert loaded["weight"].tolist() == [1.0] * 9
    assert s3dlio.list(uri, recursive=True) == before


def storm(endpoint: str) -> None:
    """A server that says 503 to all that rank 1 writes fails the save on both ranks, soon."""
    os.environ.update({"AWS_ENDPOINT_URL": endpoint, "S3DLIO_OPERATION_TIMEOUT_SECS": "1"})
    uri = "s3://bkt/run"
    dcp.save({"weight": torch.ones(9)}, uri)
    begin = time.monotonic()
    try:
        dcp.save({f"storm{dist.get_rank()}": torch.zeros(9)}, uri)
    except S3dlioError as exc:
        assert "503" in str(exc) or "SlowDown" in str(exc) or "slow down" in str(exc), exc  # noqa: PT017 - as above
    else:
        raise AssertionError("the save has failed on one rank, and this one does not know it")
    assert time.monotonic() - begin < 45
    loaded = {"weight": torch.zeros(9)}
    dcp.load(loaded, uri)
    assert loaded["weight"].tolist() == [1.0] * 9


def main(bases: str, endpoint: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (2,))
    for base in bases.split(","):
        ddp(base)
        fsdp(base, mesh)
        safetensors(base)
        from_one_rank(base, mesh)
        failing_rank(base)
        asynchronous(base, "thread")
    asynchronous(base, "process")
    without_collectives(base)
    storm(endpoint)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
