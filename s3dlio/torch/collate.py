"""How views become batches and travel from DataLoader workers.

The default collate function of PyTorch learns that a batch of views is a list of them, whatever their lengths. On its way
out of a worker such a batch is one piece: a shared-memory arena (one descriptor), or one bytes blob while it is small. The
views that arrive are slices of the arena, 64-byte aligned; with the last of them it is free, and its worker uses it again.
"""

from __future__ import annotations

import logging
import multiprocessing.context
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from ..data.parquet.items import ParquetItem
from ..view import ALIGNMENT, BytesView, copy_of
from . import arenas

__all__ = ["ViewBatch"]

SMALL_BATCH_BYTES = 64 * 1024

log = logging.getLogger("s3dlio")


class ViewBatch(list[BytesView]):
    """A batch of views: a list, whose transport between processes is one piece, and which a DataLoader can pin."""

    _pinned: list[torch.Tensor] | None = None

    def tensors(self) -> list[torch.Tensor]:
        """The views as uint8 tensors, without a copy; in pinned memory when the DataLoader has `pin_memory=True`.

        Copy these to a device with `non_blocking=True`: PyTorch knows when the copy of such a tensor is over, and does not
        use its memory again before. (Of a tensor that is made of pinned memory by way of numpy it would not know.)
        """
        return [torch.from_numpy(np.asarray(view)) for view in self] if self._pinned is None else list(self._pinned)

    def pin_memory(self) -> ViewBatch:
        """Copy the views into one piece of pinned memory, for `tensors()`; a DataLoader calls this.

        The views themselves stay where they are. Without an accelerator this is the batch itself.
        """
        if not torch.accelerator.is_available():
            return self
        offsets, length = _layout([view.size for view in self])
        memory = _pinned_memory(length)
        batch = ViewBatch(self)
        batch._pinned = [memory[offset : offset + view.size] for view, offset in zip(self, offsets, strict=True)]
        for tensor, view in zip(batch._pinned, self, strict=True):
            tensor.copy_(torch.from_numpy(np.asarray(view)))
        return batch


def _pinned_memory(length: int) -> torch.Tensor:
    return torch.empty(length, dtype=torch.uint8, pin_memory=True)


def _collate_views(batch: Sequence[BytesView], **_: Any) -> Any:
    if all(view.is_bytes for view in batch):
        return ViewBatch(batch)
    return default_collate([np.asarray(view) for view in batch])


def _layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Aligned offsets for blocks of `sizes`, and the length of the whole."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, end


def _pack(batch: Sequence[BytesView], kind: type[list[BytesView]] | None) -> tuple[Any, ...]:
    facts = [(view.size, view.uri) for view in batch]
    offsets, length = _layout([size for size, _ in facts])
    arena = None if length < SMALL_BATCH_BYTES else _arena(length)
    if arena is None:
        return _unpack_blob, (b"".join(view.tobytes() for view in batch), facts, kind)
    for view, offset in zip(batch, offsets, strict=True):
        arena.memory[offset : offset + view.size] = view
    return _unpack_arena, (arena.storage, facts, kind)


def _arena(length: int) -> arenas.Arena | None:
    """None for the arguments of a new process, which begins when a descriptor may be closed; and where memory is short.

    An error would not reach the receiver, who would wait for ever.
    """
    if multiprocessing.context.get_spawning_popen() is not None:
        return None
    try:
        return arenas.take(length)
    except RuntimeError as exc:
        log.warning("a batch of %d bytes travels slowly, since there is no shared memory for it: %s", length, exc)
        return None


def _unpack_blob(blob: bytes, facts: list[tuple[int, str]], kind: type[list[BytesView]] | None) -> Any:
    views, start = [], 0
    for size, uri in facts:
        views.append(copy_of(memoryview(blob)[start : start + size], uri))
        start += size
    return views[0] if kind is None else kind(views)


def _unpack_arena(storage: torch.UntypedStorage, facts: list[tuple[int, str]], kind: type[list[BytesView]] | None) -> Any:
    memory = arenas.received(storage)
    views = []
    for (size, uri), offset in zip(facts, _layout([size for size, _ in facts])[0], strict=True):
        view = memory[offset : offset + size].view(BytesView)
        view.uri = uri
        views.append(view)
    return views[0] if kind is None else kind(views)


default_collate_fn_map[BytesView] = _collate_views
default_collate_fn_map[ParquetItem] = lambda batch, **_: list(batch)  # else PyTorch takes them for arrays to be stacked
ForkingPickler.register(ViewBatch, lambda batch: _pack(batch, ViewBatch))
ForkingPickler.register(BytesView, lambda view: _pack([view], None) if view.is_bytes else np.asarray(view).__reduce__())
