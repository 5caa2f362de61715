"""Distributed checkpoints (torch.distributed.checkpoint) on every scheme: `save`, `load`, `async_save`.

Thin: torch plans who saves what; `StorageWriter` and `StorageReader`, which can be given to torch's own functions as well,
move the bytes.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch.distributed
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem, SavePlanner
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from ...checkpoint.retention import note_saved
from ...errors import ConfigError, PreconditionFailedError, S3dlioError
from ..archive import load_from
from .reader import StorageReader
from .safetensors import SafetensorsReader, SafetensorsWriter
from .writer import NOT_COMMITTED, StorageWriter

__all__ = ["StorageReader", "StorageWriter", "async_save", "load", "save"]

# How a checkpoint is stored, by the name of its format.
_FORMATS: dict[str, tuple[type[StorageWriter], type[StorageReader]]] = {
    "torch": (StorageWriter, StorageReader),
    "safetensors": (SafetensorsWriter, SafetensorsReader),
}
_KINDS = {"thread": AsyncCheckpointerType.THREAD, "process": AsyncCheckpointerType.PROCESS}


def save(
    state_dict: dict[str, Any],
    checkpoint_id: str | os.PathLike[str],
    *,
    planner: SavePlanner | None = None,
    process_group: torch.distributed.ProcessGroup | None = None,
    format: str = "torch",
    files_per_rank: int = 4,
    overwrite: bool | None = None,
) -> Metadata:
    """Save a state dict of any number of ranks to the directory `checkpoint_id`; all ranks call it.

    Tensors are written straight from their memory, of a sharded one each rank's own part. The checkpoint exists when this
    returns, on all ranks, and one that stood there before is gone then and not earlier (`StorageWriter`). Without an
    initialised process group it is saved by this process alone. Raises on every rank when it fails on one: S3dlioError,
    or the kind of it that all failures are of, which names rank and cause. `format="safetensors"` is what
    `SafetensorsWriter` describes; `overwrite=None` is the writer's own default.

    >>> s3dlio.torch.dcp.save({"model": model, "optimizer": optimizer}, "s3://bucket/run/step_100")
    """
    writer = _writer(checkpoint_id, format, files_per_rank, overwrite)
    try:
        with _quiet():
            metadata: Metadata = state_dict_saver.save(
                state_dict, storage_writer=writer, planner=planner, process_group=process_group, no_dist=_is_alone()
            )
            note_saved(writer.checkpoint_id)
            return metadata
    except CheckpointException as exc:
        if _is_surely_uncommitted(exc):
            writer.discard()
        _require_no_interrupt(exc, process_group)
        raise _told(exc, f"cannot save {checkpoint_id}") from _first_failure(exc)


def _is_surely_uncommitted(exc: CheckpointException) -> bool:
    """Only a failure of the commit itself leaves doubt: its answer may have been lost."""
    failures = [failure for failure, _ in exc.failures.values()]
    return any(
        NOT_COMMITTED in getattr(failure, "__notes__", ()) or isinstance(failure, PreconditionFailedError)
        for failure in failures
    )


def load(
    state_dict: dict[str, Any],
    checkpoint_id: str | os.PathLike[str],
    *,
    planner: LoadPlanner | None = None,
    process_group: torch.distributed.ProcessGroup | None = None,
    format: str = "torch",
    weights_only: bool = True,
) -> None:
    """Load into `state_dict`, in place, what it names from the directory `checkpoint_id`; all ranks call it.

    Only what is named is read, each byte once per rank, straight into the tensors; other numbers of ranks and other
    shardings than those of the save are fine. Checksums are verified. What is no tensor is unpickled with `weights_only`,
    unless a `planner` of your own does that. Raises NotFoundError when there is no checkpoint, and on every rank when it
    fails on one, as `save` does.

    >>> state = {"model": model.state_dict()}
    >>> s3dlio.torch.dcp.load(state, "s3://bucket/run/step_100")
    """
    reader = _classes(format)[1](checkpoint_id, weights_only=weights_only)
    if planner is None and weights_only:
        planner = _WeightsOnlyPlanner()
    reader.require_checkpoint()  # torch would look for other kinds of it, and log what it finds
    try:
        with _quiet():
            state_dict_loader.load(
                state_dict, storage_reader=reader, planner=planner, process_group=process_group, no_dist=_is_alone()
            )
    except CheckpointException as exc:
        _require_no_interrupt(exc, process_group)
        raise _told(exc, f"cannot load {checkpoint_id}") from _first_failure(exc)


def _require_no_interrupt(exc: CheckpointException, process_group: torch.distributed.ProcessGroup | None) -> None:
    """Raise the ^C, or the exit, of this rank, which torch has caught as it does errors."""
    rank = 0 if _is_alone() else torch.distributed.get_rank(process_group)
    failure, _ = exc.failures.get(rank, (None, None))
    if failure is not None and not isinstance(failure, Exception):
        raise failure


def _first_failure(exc: CheckpointException) -> BaseException:
    return next(iter(exc.failures.values()))[0]


def _told(exc: CheckpointException, action: str) -> S3dlioError:
    """torch's exception, which is none of Python's Exceptions, as one of the family."""
    failures = {rank: failure for rank, (failure, _) in exc.failures.items()}
    kinds = {type(failure) for failure in failures.values()}
    kind = kinds.pop() if len(kinds) == 1 else S3dlioError
    told = {rank: str(failure) or type(failure).__name__ for rank, failure in failures.items()}
    causes = (failure if _is_alone() else f"rank {rank}: {failure}" for rank, failure in told.items())
    return (kind if issubclass(kind, S3dlioError) else S3dlioError)(f"{action}: {'; '.join(causes)}")


def async_save(
    state_dict: dict[str, Any],
    checkpoint_id: str | os.PathLike[str],
    *,
    kind: str = "thread",
    planner: SavePlanner | None = None,
    process_group: torch.distributed.ProcessGroup | None = None,
    format: str = "torch",
    files_per_rank: int = 4,
    overwrite: bool | None = None,
) -> Future[Metadata]:
    """Copy the state dict to main memory and return; a thread, or with `kind="process"` another process, saves the copy.

    The future's result is what `save` returns; ask for it, because a failure is told there alone. Needs a process group
    with a CPU backend when one is initialised, and for `kind="process"` in any case; that one starts Python anew, so the
    main program must be guarded by `if __name__ == "__main__"`.
    """
    if kind not in _KINDS:
        raise ConfigError(f"kind={kind!r} is none of {', '.join(_KINDS)}")
    writer = _writer(checkpoint_id, format, files_per_rank, overwrite)
    future: Any = state_dict_saver.async_save(
        state_dict,
        storage_writer=writer,
        planner=planner,
        process_group=process_group,
        async_checkpointer_type=_KINDS[kind],
        no_dist=_is_alone(),
    )
    result: Future[Metadata] = future
    return result


def _classes(format: str) -> tuple[type[StorageWriter], type[StorageReader]]:
    if format not in _FORMATS:
        raise ConfigError(f"format={format!r} is none of {', '.join(_FORMATS)}")
    return _FORMATS[format]


def _writer(
    checkpoint_id: str | os.PathLike[str], format: str, files_per_rank: int, overwrite: bool | None
) -> StorageWriter:
    options = {} if overwrite is None else {"overwrite": overwrite}
    return _classes(format)[0](checkpoint_id, files_per_rank=files_per_rank, **options)


def _is_alone() -> bool:
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


@contextmanager
def _quiet() -> Iterator[None]:
    """Saving in one process is no mistake that torch has to warn about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        warnings.filterwarnings("ignore", "torch.distributed is unavailable", UserWarning)
        yield


class _WeightsOnlyPlanner(DefaultLoadPlanner):
    """torch's own planner unpickles whatever a checkpoint names; this one has it looked at first."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        load_from(value, f"{read_item.dest_index.fqn} of the checkpoint", {"weights_only": True})
        value.seek(0)
        super().load_bytes(read_item, value)
