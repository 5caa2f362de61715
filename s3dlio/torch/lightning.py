"""Lightning: checkpoints of a Trainer on every scheme."""

from __future__ import annotations

import os
from typing import Any

from .. import objects
from ..checkpoint.catalog import delete_checkpoint
from ..errors import MissingPackageError
from ..loading import gate
from ..uri import as_uri
from . import checkpoint as checkpoints

try:
    with gate:
        from lightning.pytorch.plugins.io import CheckpointIO
except ImportError as exc:
    raise MissingPackageError("s3dlio.torch.lightning needs Lightning: pip install 's3dlio[lightning]'") from exc

__all__ = ["S3dlioCheckpointIO"]


class S3dlioCheckpointIO(CheckpointIO):
    """The plugin that lets a Trainer save to and load from URIs of every scheme; paths work as before.

    A checkpoint appears complete or not at all, and is streamed in constant memory. `compress` is that of
    `save_checkpoint`. Where Lightning itself looks into directories, which are `default_root_dir` and the `dirpath` of a
    ModelCheckpoint, it goes by fsspec, and needs its package for the scheme (`pip install s3fs` for `s3://`).

    >>> trainer = Trainer(plugins=[S3dlioCheckpointIO()])
    >>> trainer.fit(model, data, ckpt_path="s3://bucket/run/step=100.ckpt")
    >>> trainer.save_checkpoint("s3://bucket/run/step=200.ckpt")
    """

    def __init__(self, compress: bool | str = False) -> None:
        self._compress = compress

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None) -> None:
        """Save to `path`. Raises TypeError for `storage_options`, which are taken from the environment."""
        if storage_options is not None:
            raise TypeError("S3dlioCheckpointIO takes no storage_options: set the environment's, see docs/options.md")
        checkpoints.save_checkpoint(as_uri(path), checkpoint, compress=self._compress)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load from `path`. `weights_only` is True where Lightning does not tell."""
        state: dict[str, Any] = checkpoints.load_checkpoint(
            as_uri(path), map_location=map_location, weights_only=weights_only is not False
        )
        return state

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Delete what is at `path`, a sharded checkpoint with all that it holds."""
        delete_checkpoint(as_uri(path))  # its commit first, so that no half of it is ever taken for a checkpoint
        objects.delete(as_uri(path), recursive=True)
