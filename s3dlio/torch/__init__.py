"""PyTorch: datasets, sampler, resumable loader, and checkpoints through `torch.save` and `torch.load`."""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401 - the room is of no use without it
except ImportError as exc:
    from ..errors import MissingPackageError

    raise MissingPackageError("s3dlio.torch needs PyTorch: pip install 's3dlio[torch]'") from exc

from .dataset import ObjectStoreIterableDataset, ObjectStoreMapDataset
from .loader import Loader, loader
from .parquet import ParquetDataset, split_rows, to_tensors
from .pipe_dataset import PipeDataset
from .sampler import ResumableSampler
from .stateful import position_from

__all__ = [
    "Loader",
    "ObjectStoreIterableDataset",
    "ObjectStoreMapDataset",
    "ParquetDataset",
    "PipeDataset",
    "ResumableSampler",
    "loader",
    "position_from",
    "split_rows",
    "to_tensors",
]
