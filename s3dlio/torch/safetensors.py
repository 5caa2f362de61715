"""safetensors on every scheme: written as a stream, read tensor by tensor, without the file as a whole in memory or on disk.

The names are those of the `safetensors.torch` library, which is not needed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .. import config, objects
from ..checkpoint import extents
from ..checkpoint import safetensors as layout
from ..checkpoint.extents import Extent, Want
from ..checkpoint.retention import note_loaded, note_saved
from ..errors import ConfigError
from ..transfer.write import ObjectWriter
from .tensors import is_plain, memory_of, pieces, region

__all__ = ["TensorSlice", "dtype_of", "load_file", "name_of", "safe_open", "save_file", "sharding_of", "write_tensor"]

_TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
    "C64": "complex64",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
# Not every torch has the newest.
_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, theirs) for name, theirs in _TORCH_NAMES.items() if hasattr(torch, theirs)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def name_of(dtype: torch.dtype) -> str:
    """What safetensors calls a dtype. Raises ConfigError when it has none such."""
    if dtype not in _NAMES:
        raise ConfigError(f"safetensors has no {dtype}: convert the tensor first")
    return _NAMES[dtype]


def dtype_of(name: str) -> torch.dtype:
    """The dtype that safetensors calls so. Raises ConfigError when this torch has none such."""
    if name not in _DTYPES:
        raise ConfigError(f"torch {torch.__version__} has no dtype for the {name} of safetensors")
    return _DTYPES[name]


def save_file(tensors: Mapping[str, torch.Tensor], uri: str, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file: the header first, since all sizes are known, then the tensors straight from their memory.

    It appears complete or not at all. Tensors may lie on any device and in any order of memory; those that share memory
    are written as often as they are named. `metadata` maps strings to strings. Raises ConfigError for dtypes that the
    format does not have, TypeError for what is no strided tensor.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or not is_plain(tensor):
            raise TypeError(f"{name!r} is no plain, strided tensor but {type(tensor).__name__}: safetensors holds no others")
    facts = {name: (name_of(tensor.dtype), tuple(tensor.size())) for name, tensor in tensors.items()}
    head, header = layout.arrange(facts, metadata)
    with objects.open_writer(uri) as file:
        file.write(head)
        for name in header.tensors:
            write_tensor(file, tensors[name])
    note_saved(uri)


def write_tensor(file: ObjectWriter, tensor: torch.Tensor) -> None:
    """Write the elements in C order."""
    for piece in pieces(tensor.detach()):
        file.write(piece)


def load_file(uri: str, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """Read all tensors of a safetensors file, in parallel ranges straight into their memory.

    Raises CorruptDataError when the file is damaged, ChangedError when it is replaced meanwhile.
    """
    with safe_open(uri, device=device) as file:
        return file.get_tensors(file.keys())


class safe_open:  # noqa: N801 - the name that the library has made known
    """Open a safetensors file to read single tensors of it; use it in a `with` block.

    Opening reads the header, and each tensor only its own bytes, all of one version of the object. `framework` is accepted
    as by the library, and has to be "pt".

    >>> with s3dlio.torch.safetensors.safe_open("s3://bucket/model.safetensors") as file:
    ...     weight = file.get_tensor("weight")
    """

    def __init__(self, uri: str, framework: str = "pt", device: str | torch.device = "cpu") -> None:
        if framework not in ("pt", "torch", "pytorch"):
            raise ConfigError(f"framework={framework!r}: this module makes tensors of torch ('pt')")
        self.uri = uri
        self._device = torch.device(device)
        self._store, self._key = objects.resolve(uri)
        self._header, self._info = layout.read_header(self._store, self._key)
        note_loaded(uri)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is held open."""

    def keys(self) -> list[str]:
        """The names of the tensors, in order."""
        return sorted(self._header.tensors)

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their bytes."""
        return sorted(self._header.tensors, key=lambda name: self._header.tensors[name].start)

    def metadata(self) -> dict[str, str] | None:
        """The strings that were saved beside the tensors; None when there are none."""
        return dict(self._header.metadata) or None

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._header.tensors

    def get_tensor(self, name: str) -> torch.Tensor:
        """Read one tensor. Raises KeyError when there is none of that name."""
        return self.get_tensors([name])[name]

    def get_tensors(self, names: list[str]) -> dict[str, torch.Tensor]:
        """Read several tensors at once."""
        tensors = {name: self._blank(name) for name in names}
        wants = [self._want(self._extent(name), 0, tensor) for name, tensor in tensors.items()]
        extents.fetch(self._store, wants, config.snapshot())
        return {name: tensor.to(self._device) for name, tensor in tensors.items()}

    def get_slice(self, name: str) -> TensorSlice:
        """A tensor of which an index reads only the rows that it needs: `file.get_slice("weight")[10:20]`."""
        self._require(name)
        return TensorSlice(self, name)

    def _require(self, name: str) -> layout.TensorInfo:
        if name not in self._header.tensors:
            raise KeyError(f"{self.uri} holds no tensor {name!r}")
        return self._header.tensors[name]

    def _blank(self, name: str) -> torch.Tensor:
        info = self._require(name)
        return torch.empty(info.shape, dtype=dtype_of(info.dtype))

    def _extent(self, name: str) -> Extent:
        return self._header.extent(self._key, name, self._info.etag)

    def _want(self, extent: Extent, start: int, tensor: torch.Tensor) -> Want:
        return Want(extent, start, tensor.nbytes, lambda: memory_of(tensor), lambda: None)

    def read_box(self, name: str, offsets: list[int], lengths: list[int]) -> torch.Tensor:
        """The part of a tensor that begins at `offsets` and has the shape `lengths`."""
        info = self._require(name)
        dtype = dtype_of(info.dtype)
        run = region(info.shape, offsets, lengths)
        elements = torch.empty(run.length, dtype=dtype)
        want = self._want(self._extent(name), run.start * dtype.itemsize, elements)
        extents.fetch(self._store, [want], config.snapshot())
        if run.is_exact:
            return elements.view(lengths).to(self._device)
        part = elements.view(-1, *info.shape[1:])
        for dim, (offset, length) in enumerate(zip(offsets[1:], lengths[1:], strict=True), 1):
            part = part.narrow(dim, offset, length)
        return part.contiguous().to(self._device)


class TensorSlice:
    """A tensor in a file that is read by indexing. Slices without steps and plain numbers are known."""

    def __init__(self, file: safe_open, name: str) -> None:
        self._file = file
        self._name = name
        self._facts = file._require(name)

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._facts.shape)

    def get_dtype(self) -> str:
        """The dtype as safetensors calls it."""
        return self._facts.dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        parts = index if isinstance(index, tuple) else (index,)
        shape = self._facts.shape
        if len(parts) > len(shape):
            raise IndexError(f"{len(parts)} indices for the {len(shape)} dimensions of {self._name}")
        offsets, lengths = [0] * len(shape), list(shape)
        dropped = []
        for dim, part in enumerate(parts):
            if isinstance(part, slice):
                start, stop, step = part.indices(shape[dim])
                if step != 1:
                    raise ValueError(
                        f"{self._name}: a slice with the step {step} cannot be read; read it whole and index that"
                    )
                offsets[dim], lengths[dim] = start, max(0, stop - start)
            else:
                offsets[dim], lengths[dim] = range(shape[dim])[part], 1
                dropped.append(dim)
        box = self._file.read_box(self._name, offsets, lengths)
        return box.view([length for dim, length in enumerate(lengths) if dim not in dropped])


def sharding_of(metadata: Mapping[str, str]) -> dict[str, list[int]]:
    """Where the pieces of a file lie in their tensors, as torch's own writer of sharded safetensors notes it."""
    text = metadata.get("DCP_SHARDING_INFO")
    return {name: facts["saved_offsets"] for name, facts in json.loads(text).items()} if text else {}
