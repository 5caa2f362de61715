"""Who reads: the rank of the job and the worker of the DataLoader."""

from __future__ import annotations

import torch.distributed
from torch.utils.data import get_worker_info

from .. import config

__all__ = ["current_ranks", "current_worker"]


def current_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): as told, else of the process group, else of the launcher (RANK, WORLD_SIZE), else (0, 1)."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank} and world_size={world_size} go together: give both or none")
    if rank is not None and world_size is not None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} lies outside of [0, world_size={world_size})")
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return config.launched_ranks()


def current_worker() -> tuple[int, int] | None:
    """(worker, number of workers) in a DataLoader worker, None elsewhere.

    A worker also learns here that it shares the limits of its rank with the others.
    """
    info = get_worker_info()
    if info is None:
        return None
    config.share_limits(info.num_workers)
    return info.id, info.num_workers
