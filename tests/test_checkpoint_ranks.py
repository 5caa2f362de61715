"""Ranks of a process group agree upon a save's id, so that no finalizer takes a shard of an earlier save for the new one."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import s3dlio
from s3dlio import errors

from .conftest import Place

WORLD_SIZE = 2


def run_ranks(job: Callable[[int], None], folder: Path) -> list[int]:
    """Run the job in a forked process per rank, in a gloo group; returns their exit codes."""
    children = []
    for rank in range(WORLD_SIZE):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=WORLD_SIZE)
                job(rank)
                dist.barrier()
                dist.destroy_process_group()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.fixture(params=["file", "s3"])
def place_of_ranks(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        place: Place = request.getfixturevalue("s3_place")
        return place.root
    return f"file://{tmp_path}/d/"


def test_shards_of_three_saves_never_mix(place_of_ranks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's calls, without ids, rank and world size: rank 0 finalizes as soon as its own shard is there."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    base = place_of_ranks

    def job(rank: int) -> None:
        for step in range(3):
            data = {"step": step, "rank": torch.full((10,), rank)}
            s3dlio.save_distributed_shard(uri=f"{base}shard_{rank}.bin", shard_data=data)
            if rank == 0:
                s3dlio.finalize_distributed_checkpoint(base, timeout=60)
                shards = s3dlio.load_checkpoint(base)
                assert [(shard["step"], int(shard["rank"][0])) for shard in shards] == [(step, 0), (step, 1)]
        dist.barrier()
        assert s3dlio.load_distributed_shard(base)["rank"][0] == rank
        ids = {name.rpartition(".bin.")[2] for name in s3dlio.list_keys(base, pattern="re:[^n]$")}
        assert len(ids) == 1, ids

    assert run_ranks(job, tmp_path) == [0, 0]
    assert s3dlio.latest_checkpoint(base) == base


def test_a_shard_of_a_dead_job_is_never_taken_for_that_of_a_living_rank(
    place_of_ranks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    base = place_of_ranks
    s3dlio.save_distributed_shard(f"{base}shard_1.bin", {"step": "dead"}, 1, WORLD_SIZE)

    def job(rank: int) -> None:
        data = {"step": "living"}
        if rank == 1:  # it dies: it takes part in the agreement and saves nothing
            with pytest.raises(errors.NotFoundError):
                s3dlio.save_distributed_shard("file:///proc/none/shard_1.bin", data)
            return
        s3dlio.save_distributed_shard(f"{base}shard_0.bin", data)
        with pytest.raises(errors.S3dlioError, match="of rank 1 is missing"):
            s3dlio.finalize_distributed_checkpoint(base, timeout=0.2)

    assert run_ranks(job, tmp_path) == [0, 0]
    assert s3dlio.latest_checkpoint(base) is None


def test_a_save_of_another_world_size_than_the_groups_agrees_upon_nothing(
    place_of_ranks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait for ranks that do not call."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def job(rank: int) -> None:
        if rank == 0:
            s3dlio.save_distributed_shard(f"{place_of_ranks}one", {"a": 1}, 0, 1)
            s3dlio.finalize_distributed_checkpoint(place_of_ranks, 1)

    assert run_ranks(job, tmp_path) == [0, 0]
    assert s3dlio.load_checkpoint(place_of_ranks) == [{"a": 1}]
