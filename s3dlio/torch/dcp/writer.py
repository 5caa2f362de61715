"""`StorageWriter`: torch.distributed.checkpoint writes to every scheme.

Written from the protocol of `torch.distributed.checkpoint.storage`. Its calls, in this order: `reset`; on all ranks
`set_up_storage_writer`, `prepare_local_plan`; on the coordinator `prepare_global_plan`; on all ranks `write_data`; and
when all of them have succeeded, on the coordinator `finish`, whose one atomic put makes the checkpoint exist.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future as Task
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, TypeAlias

import torch
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ... import listing, objects, runtime
from ...checkpoint.blocks import Checksums
from ...checkpoint.publish import publish
from ...checkpoint.small import read_part
from ...errors import ConfigError, NotFoundError, PreconditionFailedError, S3dlioError
from ...transfer.write import ObjectWriter
from ..archive import save_into
from ..tensors import is_plain, pieces
from .metadata import dump, load
from .place import Place
from .plan import METADATA, Facts, file_name, info_of, is_data_file, item_bytes, split_items
from .zip import RawTensor, archive_around

__all__ = ["NOT_COMMITTED", "Resolve", "StorageWriter"]

log = logging.getLogger("s3dlio")

Resolve: TypeAlias = Callable[[WriteItem], "torch.Tensor | io.BytesIO"]

NOT_COMMITTED = "Nothing was committed: what stood there before stands."  # a note that travels to the other ranks
FILE_BYTES = 32 * 1024 * 1024  # a file of its own pays from here on


class StorageWriter(Place, storage.StorageWriter):
    """Save to the directory `checkpoint_id`, a URI of any scheme or a path.

    Each rank writes at most `files_per_rank` objects at once, straight from the tensors' memory, in parts; beyond that it
    needs memory for the parts in flight, whatever the size of the model. The files carry an id of this save, so a
    checkpoint that stood in the directory stays whole until the new one is committed, and is then removed; with
    `overwrite=False` it is refused instead. Of two saves into one directory that overlap, the later commit fails; on
    stores without conditional writes it may replace the other one instead.

    Any failure, in any thread, raises from `save` on every rank. Pickles for spawned processes; one save at a time.
    """

    def __init__(self, checkpoint_id: str | os.PathLike[str], *, files_per_rank: int = 4, overwrite: bool = True) -> None:
        if files_per_rank < 1:
            raise ConfigError(f"files_per_rank={files_per_rank}: at least one file is needed")
        self.files_per_rank = files_per_rank
        self.overwrite = overwrite
        self.reset(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save, elsewhere when told."""
        if checkpoint_id is not None:
            self._move_to(checkpoint_id)
        self._rank = 0
        self._use_collectives = True
        self._is_coordinator = False
        self._names: list[str] = []
        self._old: bytes | None = None
        self._old_etag: str | None = None
        self._old_time: float | None = None
        self.save_id = uuid.uuid4().hex[:16]

    def storage_meta(self) -> StorageMeta:
        """Where the checkpoint is, and the id of the coordinator's files."""
        return StorageMeta(checkpoint_id=self._uri, save_id=self.save_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take an id for this save; the coordinator looks at what stands in the directory."""
        self.save_id = uuid.uuid4().hex[:16]
        self._is_coordinator = is_coordinator
        self._rank = kwargs.get("rank") or 0
        self._use_collectives = kwargs.get("use_collectives", True)
        if self._commits:
            self._old, self._old_etag, self._old_time = self._current()
            if self._old is not None and not self.overwrite:
                raise PreconditionFailedError(
                    f"{self._uri} holds a checkpoint already, and overwrite=False: save to another directory"
                )

    @property
    def _commits(self) -> bool:
        return self._is_coordinator or not self._use_collectives

    @property
    def _metadata_uri(self) -> str:
        rank = "" if self._use_collectives else f"__{self._rank}"
        return f"{self._uri}{rank}{METADATA}"

    def _current(self) -> tuple[bytes | None, str | None, float | None]:
        """The object that commits what stands in the directory, its etag and its time."""
        store, key = objects.resolve(self._metadata_uri)
        try:
            info, data = read_part(store, key)
        except NotFoundError:
            return None, None, None
        return data, info.etag, info.last_modified

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing to add: file names are each rank's own, also when torch uses a plan again that it has kept."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Nothing to add."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items. Raises the first failure, when all threads have ended and no file is left."""
        files = self._files_of(plan)
        self._names = [name for name, _ in files]
        stop = threading.Event()
        tasks = [runtime.calls.submit(partial(self._write_file, planner, stop, name, items)) for name, items in files]
        written: Future[list[WriteResult]] = Future()
        try:
            written.set_result([result for results in _all_of(tasks, stop) for result in results])
        except BaseException as exc:  # ^C, too
            self.discard()
            exc.add_note(NOT_COMMITTED)
            raise
        return written

    def _files_of(self, plan: SavePlan) -> list[tuple[str, list[WriteItem]]]:
        """The files that this rank writes, with their items."""
        total = sum(map(item_bytes, plan.items))
        num_files = max(1, min(self.files_per_rank, total // FILE_BYTES))
        dealt = split_items(plan.items, num_files)
        return [(file_name(self._rank, number, self.save_id), items) for number, items in enumerate(dealt)]

    def discard(self) -> None:
        """Remove the files that this rank wrote for a save of which it knows that it was not committed."""
        for name in self._names:
            with suppress(S3dlioError):  # the save has failed by something else already
                objects.delete(self._uri + name)

    def _write_file(
        self, planner: SavePlanner, stop: threading.Event, name: str, items: Sequence[WriteItem]
    ) -> list[WriteResult]:
        def resolve(item: WriteItem) -> torch.Tensor | io.BytesIO:
            if stop.is_set():
                raise _StoppedError(f"{self._uri}{name} was not written, because another file of the save failed")
            data: torch.Tensor | io.BytesIO = planner.resolve_data(item)
            return data

        with objects.open_writer(self._uri + name) as file:
            return self._write_items(file, name, items, resolve)

    def _write_items(self, file: ObjectWriter, name: str, items: Sequence[WriteItem], resolve: Resolve) -> list[WriteResult]:
        """Write the items of a file, asking for the data of each only when its turn comes."""
        return [_write_item(file, name, item, resolve(item)) for item in items]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit the checkpoint by one atomic put of `.metadata`, then remove what it replaces."""
        metadata.version = _dcp_version()
        metadata.storage_data = {result.index: result.storage_data for some in results for result in some}
        metadata.storage_meta = self.storage_meta()
        self._commit(self._rendered(metadata))
        try:
            self._remove_old({info.relative_path for info in metadata.storage_data.values()})
        except Exception as exc:  # the new checkpoint stands whether this succeeds or not
            log.warning("files of the checkpoint before stay in %s: %s", self._uri, exc)

    def _rendered(self, metadata: Metadata) -> bytes:
        """The bytes of the object that commits the checkpoint."""
        return dump(metadata)

    def _names_in(self, rendered: bytes) -> set[str]:
        """The data files that an object of that kind names."""
        return {info.relative_path for info in load(rendered, self._metadata_uri).storage_data.values()}

    def _commit(self, data: bytes) -> None:
        store, key = objects.resolve(self._metadata_uri)
        try:
            publish(store, key, data, is_first=self._old is None, etag=self._old_etag)
        except S3dlioError as exc:
            if self._standing(exc) == data:  # the answer was lost, not the request
                return
            if isinstance(exc, PreconditionFailedError):
                raise PreconditionFailedError(
                    f"{self._metadata_uri} was written by somebody else during this save: give each save its own directory"
                ) from exc
            raise

    def _standing(self, failure: S3dlioError) -> bytes | None:
        """What is committed after a put that failed. Where nobody can tell, no file may be removed as uncommitted."""
        try:
            return self._current()[0]
        except S3dlioError:
            if isinstance(failure, PreconditionFailedError):
                raise S3dlioError(f"nobody knows whether {self._metadata_uri} was written: {failure}") from failure
            raise failure from None

    def _remove_old(self, kept: set[str]) -> None:
        """Remove the files that the replaced checkpoint named, and what saves that died before its commit have left."""
        if self._old is None:
            return
        names = self._names_in(self._old)
        if self._use_collectives and self._old_time is not None:
            for entry, info in listing.walk(self._uri, recursive=False):
                name = entry[len(self._uri) :]
                if is_data_file(name) and info is not None and (info.last_modified or inf) < self._old_time:
                    names.add(name)
        for _ in runtime.each(lambda name: objects.delete(self._uri + name), sorted(names - kept), window=8):
            continue


def _dcp_version() -> str | None:
    from torch.distributed.checkpoint import filesystem

    return getattr(filesystem, "CURRENT_DCP_VERSION", None)


def _all_of(tasks: Sequence[Task[list[WriteResult]]], stop: threading.Event) -> list[list[WriteResult]]:
    """The results of all tasks. When one fails the others are stopped, and its failure raises when they have ended."""
    try:
        wait(tasks, return_when="FIRST_EXCEPTION")
    finally:
        if not all(task.done() for task in tasks):
            stop.set()
        wait(tasks)
    failures = [failure for task in tasks if (failure := task.exception()) is not None]
    if not failures:
        return [task.result() for task in tasks]
    raise _portable(next((failure for failure in failures if not isinstance(failure, _StoppedError)), failures[0]))


def _portable(failure: BaseException) -> BaseException:
    """The failure, or one that can be told to the other ranks, which would wait for it in vain."""
    try:
        pickle.loads(pickle.dumps(failure))  # noqa: S301 - what was just pickled here
    except Exception:
        told = S3dlioError(f"{type(failure).__name__}: {failure}")
        told.__cause__ = failure
        return told
    return failure


class _StoppedError(S3dlioError):
    """A file that was given up, because another one of the save failed."""


class _Sink(io.RawIOBase):
    """A file for `torch.save` that also collects checksums."""

    def __init__(self, file: ObjectWriter, checksums: Checksums) -> None:
        super().__init__()
        self._file = file
        self._checksums = checksums

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        source = memoryview(data).cast("B")
        self._checksums.update(source)
        return self._file.write(source)


def _write_item(file: ObjectWriter, name: str, item: WriteItem, data: torch.Tensor | io.BytesIO) -> WriteResult:
    offset, checksums = file.tell(), Checksums()
    if isinstance(data, io.BytesIO):
        _Sink(file, checksums).write(data.getbuffer())
        facts = Facts(offset, checksums.num_bytes, checksums.digest(), is_raw=False)
    elif not is_plain(data):
        sink: Any = _Sink(file, checksums)
        save_into(sink, data.detach())
        facts = Facts(offset, checksums.num_bytes, checksums.digest(), is_raw=False)
    else:
        head, tail = archive_around(RawTensor(data.dtype, tuple(data.size())))
        file.write(head)
        sink, start = _Sink(file, checksums), file.tell()
        for piece in pieces(data.detach()):
            sink.write(piece)
        facts = Facts(start, checksums.num_bytes, checksums.digest(), is_raw=True)
        file.write(tail)
    length = file.tell() - offset
    return WriteResult(item.index, length, info_of(name, offset, length, facts))
