"""Distributed checkpoints as safetensors, in the layout of Hugging Face: what other tools read without conversion.

`model-0000i-of-0000n.safetensors` hold the tensors, `model.safetensors.index.json` says which holds which, and commits the
checkpoint. Layout: https://huggingface.co/docs/safetensors and torch.distributed.checkpoint.hf_storage.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from ... import objects, runtime
from ...checkpoint import safetensors as layout
from ...checkpoint.blocks import crc32c
from ...errors import ChangedError, ConfigError, NotFoundError, S3dlioError
from ...storage.base import ObjectInfo
from ...transfer.write import ObjectWriter
from ..safetensors import dtype_of, name_of, sharding_of, write_tensor
from .plan import Facts, info_of, split_items
from .reader import StorageReader
from .writer import Resolve, StorageWriter

__all__ = ["INDEX", "SafetensorsReader", "SafetensorsWriter"]

INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
HEADERS_IN_FLIGHT = 16


class SafetensorsWriter(StorageWriter):
    """Save whole tensors to the directory `checkpoint_id` as safetensors; otherwise as `StorageWriter`.

    Ranks share the tensors and write at most `files_per_rank` files each. The format has neither pieces of tensors nor
    other objects: gather a sharded model first, as with `StateDictOptions(full_state_dict=True)`. It has no checksums
    either, and its file names are fixed, so a checkpoint that stands there is refused; with `overwrite` it is gone as soon
    as the new one begins.
    """

    def __init__(self, checkpoint_id: str | os.PathLike[str], *, files_per_rank: int = 1, overwrite: bool = False) -> None:
        self._old_names: set[str] = set()
        super().__init__(checkpoint_id, files_per_rank=files_per_rank, overwrite=overwrite)

    @property
    def _metadata_uri(self) -> str:
        return self._uri + INDEX

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse what the format does not hold."""
        if not self._use_collectives:
            raise ConfigError("safetensors need one plan of all ranks: leave use_collectives=False out")
        for item in plan.items:
            data = item.tensor_data
            if data is None:
                raise ConfigError(f"{item.index.fqn} is no tensor, and safetensors holds no others: leave it out")
            if tuple(data.chunk.sizes) != tuple(data.size):
                raise ConfigError(f"{item.index.fqn} is a piece of a sharded tensor: gather it first (full_state_dict=True)")
            name_of(data.properties.dtype)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Number the files of all ranks; and remove the index of what is to be overwritten."""
        dealt = [split_items(plan.items, self.files_per_rank) for plan in plans]
        num_files = sum(map(len, dealt))
        numbers = iter(range(1, num_files + 1))
        self._old_names = set()
        if self._old is not None:
            self._old_names = self._names_in(self._old)
            objects.delete(self._metadata_uri)
            self._old, self._old_etag = None, None
        names = [[f"model-{next(numbers):05d}-of-{num_files:05d}{SUFFIX}" for _ in files] for files in dealt]
        return [dataclasses.replace(plan, storage_data=mine) for plan, mine in zip(plans, names, strict=True)]

    def discard(self) -> None:
        """As for `StorageWriter`; but an index that stands there now may name the files, whoever has written it."""
        with suppress(S3dlioError):
            if not objects.exists(self._metadata_uri):
                super().discard()

    def _files_of(self, plan: SavePlan) -> list[tuple[str, list[WriteItem]]]:
        dealt = split_items(plan.items, self.files_per_rank)
        return list(zip(plan.storage_data, dealt, strict=True))

    def _write_items(self, file: ObjectWriter, name: str, items: Sequence[WriteItem], resolve: Resolve) -> list[WriteResult]:
        facts = {}
        for item in items:
            assert item.tensor_data is not None
            facts[item.index.fqn] = name_of(item.tensor_data.properties.dtype), tuple(item.tensor_data.chunk.sizes)
        head, header = layout.arrange(facts, {"format": "pt"})
        file.write(head)
        by_name = {item.index.fqn: item for item in items}
        results = []
        for fqn, info in header.tensors.items():
            data = resolve(by_name[fqn])
            assert isinstance(data, torch.Tensor)
            if (name_of(data.dtype), tuple(data.size())) != (info.dtype, info.shape):
                raise S3dlioError(f"{fqn} has changed while it was saved: {tuple(data.size())}, not {info.shape}")
            write_tensor(file, data)
            start, length = header.data_start + info.start, info.end - info.start
            stored = info_of(name, start, length, Facts(start, length, None, is_raw=True))
            results.append(WriteResult(by_name[fqn].index, length, stored))
        return results

    def _rendered(self, metadata: Metadata) -> bytes:
        infos = {index.fqn: info for index, info in metadata.storage_data.items()}
        size = sum(info.length for info in infos.values())
        content = {
            "metadata": {"total_size": size, "save_id": self.save_id},  # tells it from that of another save of these names
            "weight_map": {name: infos[name].relative_path for name in sorted(infos)},
        }
        return (json.dumps(content, indent=2) + "\n").encode()

    def _names_in(self, rendered: bytes) -> set[str]:
        return layout.files_in(rendered, self._metadata_uri)

    def _remove_old(self, kept: set[str]) -> None:
        for name in sorted(self._old_names - kept):
            objects.delete(self._uri + name)


class SafetensorsReader(StorageReader):
    """Load tensors from the safetensors files in the directory `checkpoint_id`; otherwise as `StorageReader`.

    The files that the index names, or without one all of them, also pieces that torch's own writer of sharded safetensors
    left. Reading metadata costs one request per file, and the index
    before and after that.
    """

    def require_checkpoint(self) -> None:
        """Raise NotFoundError when there are no safetensors files."""
        index = self._index()
        if index is None and not self._names(index):  # an index may name none: that of an empty state
            raise NotFoundError(f"{self._uri} holds no safetensors files")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the headers of all files. There is none of a single rank, which torch asks for when that has failed."""
        if kwargs.get("rank") is not None:
            raise NotFoundError(f"{self._uri} has no metadata of single ranks, as no safetensors have")
        tensors: dict[str, TensorStorageMetadata] = {}
        storage_data = {}
        for name, header, etag in self._headers():
            places = sharding_of(header.metadata)
            for fqn, info in header.tensors.items():
                offsets = torch.Size(places.get(fqn, [0] * len(info.shape)))
                chunk = ChunkStorageMetadata(offsets, torch.Size(info.shape))
                size = torch.Size(offset + length for offset, length in zip(offsets, info.shape, strict=True))
                known = tensors.setdefault(
                    fqn, TensorStorageMetadata(TensorProperties(dtype=dtype_of(info.dtype)), size, [])
                )
                known.chunks.append(chunk)
                known.size = torch.Size(map(max, known.size, size))
                start, length = header.data_start + info.start, info.end - info.start
                facts = Facts(start, length, None, is_raw=True, etag=etag)
                storage_data[MetadataIndex(fqn, offsets)] = info_of(name, start, length, facts)
        return Metadata(dict(tensors), storage_data=storage_data, storage_meta=StorageMeta(load_id=self.load_id))

    def _headers(self) -> Iterator[tuple[str, layout.Header, str | None]]:
        """Of each file its header and its etag, all of one save: a writer deletes the index before it replaces files."""
        self.require_checkpoint()
        index = self._index()
        names = self._names(index)
        store, folder = objects.resolve(self._uri)

        def read(name: str) -> tuple[layout.Header, ObjectInfo]:
            return layout.read_header(store, folder + name)

        found = {}
        for name, result in runtime.each(read, names, window=HEADERS_IN_FLIGHT):
            if isinstance(result, BaseException):
                raise result
            found[name] = result[0], result[1].etag
        if self._index() != index:
            raise ChangedError(f"{self._uri} was replaced while it was read: load it again")
        self._seen = None if index is None else crc32c(index)
        return iter([(name, *found[name]) for name in names])

    def _index(self) -> bytes | None:
        try:
            return objects.get(self._uri + INDEX).tobytes()
        except NotFoundError:
            return None

    def _names(self, index: bytes | None) -> list[str]:
        if index is None:
            entries = objects.list(self._uri)
            return [entry[len(self._uri) :] for entry in entries if entry.endswith(SUFFIX)]
        return sorted(layout.files_in(index, self._uri + INDEX))
