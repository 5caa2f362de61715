"""PyTorch: datasets, sampler, resumable loader, and checkpoints: by `torch.save`, distributed (`dcp`), as safetensors.

The modules `datapipes`, `dcp`, `lightning`, `nodes` and `safetensors` are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from . import datapipes, dcp, lightning, nodes, safetensors
    from .dcp.reader import StorageReader
    from .dcp.safetensors import SafetensorsReader, SafetensorsWriter
    from .dcp.writer import StorageWriter

__all__ = [
    "Loader",
    "ObjectStoreIterableDataset",
    "ObjectStoreMapDataset",
    "ParquetDataset",
    "PipeDataset",
    "ResumableSampler",
    "SafetensorsReader",
    "SafetensorsWriter",
    "StorageReader",
    "StorageWriter",
    "datapipes",
    "dcp",
    "lightning",
    "loader",
    "nodes",
    "position_from",
    "safetensors",
    "split_rows",
    "to_tensors",
]

# Loaded late, because torch.distributed.checkpoint and lightning take long to import.
_LATE = {
    "SafetensorsReader": "dcp.safetensors",
    "SafetensorsWriter": "dcp.safetensors",
    "StorageReader": "dcp.reader",
    "StorageWriter": "dcp.writer",
}
_ROOMS = ("datapipes", "dcp", "lightning", "nodes", "safetensors")


def __getattr__(name: str) -> Any:
    import importlib

    from ..loading import gate

    if name not in _LATE and name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with gate:
        module = importlib.import_module(f".{_LATE.get(name, name)}", __name__)
    return getattr(module, name) if name in _LATE else module
