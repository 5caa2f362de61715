"""`StorageReader`: torch.distributed.checkpoint loads from every scheme.

Written from the protocol of `torch.distributed.checkpoint.storage`. It reads what `StorageWriter` wrote, and what torch's
own FileSystemWriter and its subclasses did. The bytes of a tensor go straight to where the planner wants them when that is
main memory in the same order; each is read once, and only those that are asked for.
"""

from __future__ import annotations

import dataclasses
import io
import os
import uuid
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.filesystem import _StorageInfo, _StorageReaderTransforms
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from ... import config, objects
from ...checkpoint import extents
from ...checkpoint.blocks import crc32c
from ...checkpoint.extents import Extent, Want
from ...checkpoint.retention import note_loaded
from ...errors import ChangedError, CorruptDataError, NotFoundError, S3dlioError
from ...view import BytesView, empty
from ..tensors import memory_of, region
from .metadata import load
from .place import Place
from .plan import METADATA, Facts, extent_of, facts_of
from .zip import RawTensor, layout_of

__all__ = ["StorageReader"]

END_BYTES = 4096  # looked at on both ends of an archive that torch wrote, to find the raw bytes


class StorageReader(Place, storage.StorageReader):
    """Load from the directory `checkpoint_id`, a URI of any scheme or a path.

    Checksums are verified, where the writer left some (torch's own leaves none). `weights_only` refuses a `.metadata` that
    names anything but a checkpoint's own classes, since unpickling runs what it names. Pickles for spawned processes.
    """

    def __init__(self, checkpoint_id: str | os.PathLike[str], *, weights_only: bool = True) -> None:
        self.weights_only = weights_only
        self.reset(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load, from elsewhere when told."""
        if checkpoint_id is not None:
            self._move_to(checkpoint_id)
        self.load_id = uuid.uuid4().hex
        self._metadata: Metadata | None = None
        self._seen: int | None = None  # what tells the save that `read_metadata` saw from others

    def require_checkpoint(self) -> None:
        """Raise NotFoundError when nothing says that a save into the directory has ended."""
        names = (self._uri + rank + METADATA for rank in ("", "__0"))
        if not any(map(objects.exists, names)):
            raise NotFoundError(f"{self._uri} holds no complete checkpoint: there is no {self._uri}{METADATA}")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read `.metadata`, or that of `rank` where ranks saved without collectives."""
        rank = kwargs.get("rank")
        uri = f"{self._uri}{'' if rank is None else f'__{rank}'}{METADATA}"
        try:
            data = objects.get(uri).tobytes()
        except NotFoundError as exc:
            raise NotFoundError(f"{self._uri} holds no complete checkpoint: there is no {uri}") from exc
        self._seen = crc32c(data) if rank is None else None  # each rank has its own one, else
        metadata = load(data, uri, weights_only=self.weights_only)
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        assert metadata.storage_meta is not None
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Keep what `read_metadata` gave."""
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Tell the coordinator which save this rank has seen."""
        return dataclasses.replace(plan, storage_data=self._seen)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Raise ChangedError when ranks have seen different saves, since each reads the metadata for itself."""
        if len({plan.storage_data for plan in plans} - {None}) > 1:
            raise ChangedError(f"{self._uri} was replaced while ranks began to load it: load it again")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this rank's items. Raises the first failure; what is loaded by then is undefined."""
        store, folder = objects.resolve(self._uri)
        options = config.snapshot()
        items = [_Item(folder, self._chunk(item), self._info(item), item) for item in plan.items]
        foreign = [item for item in items if item.is_foreign]
        extents.fetch(store, (want for item in foreign for want in item.look()), options)
        extents.fetch(store, [item.want(planner) for item in items], options)
        note_loaded(self._uri)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _info(self, item: ReadItem) -> _StorageInfo:
        assert self._metadata is not None
        info: _StorageInfo | None = self._metadata.storage_data.get(item.storage_index)
        if info is None:
            raise CorruptDataError(f"{self._uri} names no file for {item.storage_index.fqn}: it is damaged")
        return info

    def _chunk(self, item: ReadItem) -> RawTensor | None:
        """The type and size of the saved tensor that the item is part of."""
        assert self._metadata is not None
        facts = self._metadata.state_dict_metadata.get(item.storage_index.fqn)
        if not isinstance(facts, TensorStorageMetadata):
            return None
        for chunk in facts.chunks:
            if item.storage_index.offset is None or chunk.offsets == item.storage_index.offset:
                return RawTensor(facts.properties.dtype, tuple(chunk.sizes))
        raise CorruptDataError(
            f"{self._uri} has no piece of {item.storage_index.fqn} at {item.storage_index.offset}: it is damaged"
        )


class _Item:
    """One item of a plan, from the question where its bytes are to their delivery."""

    def __init__(self, folder: str, saved: RawTensor | None, info: _StorageInfo, item: ReadItem) -> None:
        self.folder, self.saved, self.info, self.item = folder, saved, info, item
        self.facts = facts_of(info)
        self.is_foreign = (
            self.facts is None
            and item.type is LoadItemType.TENSOR
            and not info.transform_descriptors
            and info.length > extents.SMALL_BYTES
        )
        if self.facts is None:
            self.facts = Facts(info.offset, info.length, None, is_raw=False)

    def look(self) -> Iterator[Want]:
        """What has to be read to find the raw bytes in an archive that torch wrote."""
        ends = [empty(END_BYTES), empty(END_BYTES)]
        left = list(ends)

        def done() -> None:
            left.pop()
            if not left:
                self._find(*ends)

        for end, start in zip(ends, (self.info.offset, self.info.offset + self.info.length - END_BYTES), strict=True):
            extent = Extent(self.folder + self.info.relative_path, start, END_BYTES)
            yield Want(extent, 0, END_BYTES, lambda end=end: memoryview(end), done)  # type: ignore[misc]

    def _find(self, head: BytesView, tail: BytesView) -> None:
        layout = layout_of(head.tobytes(), tail.tobytes(), self.info.length)
        if layout is not None and layout.tensor == self.saved:
            self.facts = Facts(self.info.offset + layout.start, layout.tensor.num_bytes, None, is_raw=True)

    def want(self, planner: LoadPlanner) -> Want:
        assert self.facts is not None
        extent = extent_of(self.folder, self.info, self.facts)
        if self.item.type is LoadItemType.BYTE_IO:
            return _whole(extent, lambda data: planner.load_bytes(self.item, io.BytesIO(self._decoded(data))))
        if not self.facts.is_raw:
            return _whole(extent, lambda data: self._deliver_loaded(planner, data))
        return self._raw_want(planner, extent)

    def _decoded(self, data: BytesView) -> bytes | memoryview:
        """The item's bytes without what torch's extensions did to its stream."""
        if not self.info.transform_descriptors:
            return data.memoryview()
        stream = _StorageReaderTransforms().transform_load_stream(
            self.item, self.info.transform_descriptors, io.BytesIO(data.memoryview())
        )
        return stream.read()

    def _deliver_loaded(self, planner: LoadPlanner, data: BytesView) -> None:
        file = io.BytesIO(self._decoded(data))
        saved = torch.load(file, map_location="cpu", weights_only=True)
        self._copy(planner, planner.resolve_tensor(self.item).detach(), saved)

    def _copy(self, planner: LoadPlanner, target: torch.Tensor, saved: torch.Tensor) -> None:
        part = narrow_tensor_by_index(saved, self.item.storage_offsets, self.item.lengths)
        self._require_size(target, tuple(part.size()))
        target.copy_(part)
        planner.commit_tensor(self.item, target)

    def _require_size(self, target: torch.Tensor, size: tuple[int, ...]) -> None:
        if tuple(target.size()) != size:
            raise S3dlioError(
                f"{self.item.storage_index.fqn} was saved as {size}, and is to be loaded as {tuple(target.size())}: "
                "the state does not fit the checkpoint"
            )

    def _raw_want(self, planner: LoadPlanner, extent: Extent) -> Want:
        assert self.saved is not None
        dtype, size = self.saved
        offsets, lengths = tuple(self.item.storage_offsets), tuple(self.item.lengths)
        target = planner.resolve_tensor(self.item).detach()
        self._require_size(target, lengths)
        run = region(size, offsets, lengths)
        start, length = run.start * dtype.itemsize, run.length * dtype.itemsize
        if extent.length != self.saved.num_bytes:
            raise CorruptDataError(
                f"{self.item.storage_index.fqn} has {extent.length} bytes, not {self.saved.num_bytes}: damaged"
            )
        if run.is_exact and _is_plain_memory(target, dtype):
            return Want(extent, start, length, lambda: memory_of(target), lambda: planner.commit_tensor(self.item, target))
        return self._indirect(planner, target, extent, start, length, run.is_exact)

    def _indirect(
        self, planner: LoadPlanner, target: torch.Tensor, extent: Extent, start: int, length: int, is_exact: bool
    ) -> Want:
        """By way of other memory: onto a device, into another dtype or a tensor of another order."""
        assert self.saved is not None
        dtype, size = self.saved
        landed: list[BytesView] = []

        def into() -> memoryview:
            landed.append(empty(length))
            return memoryview(landed[0])

        def done() -> None:
            elements = torch.from_numpy(landed.pop()).view(dtype) if length else torch.empty(0, dtype=dtype)
            if is_exact:
                part = elements.view(tuple(self.item.lengths))
            else:
                rows = elements.view(-1, *size[1:])
                part = narrow_tensor_by_index(rows, (0, *self.item.storage_offsets[1:]), self.item.lengths)
            target.copy_(part)
            planner.commit_tensor(self.item, target)

        return Want(extent, start, length, into, done)


def _whole(extent: Extent, deliver: Any) -> Want:
    """All bytes of an extent in one buffer."""
    landed: list[BytesView] = []

    def into() -> memoryview:
        landed.append(empty(extent.length))
        return memoryview(landed[0])

    return Want(extent, 0, extent.length, into, lambda: deliver(landed.pop()))


def _is_plain_memory(target: torch.Tensor, dtype: torch.dtype) -> bool:
    return (
        target.device.type == "cpu"
        and target.dtype == dtype
        and target.is_contiguous()
        and target.layout is torch.strided
        and not target.is_conj()
        and not target.is_neg()
    )
