"""The safetensors format: a JSON header that says where each tensor lies, and the raw bytes of all of them.

Eight little-endian bytes tell the length of the header; offsets in it count from its end; the tensors leave no gap. Format:
https://huggingface.co/docs/safetensors/index#format and the checks of its library, at most 100 MB of header among them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ChangedError, ConfigError, CorruptDataError
from ..storage.base import ObjectInfo, Store
from .extents import Extent
from .small import read_part

__all__ = ["Header", "TensorInfo", "arrange", "files_in", "read_header", "size_of"]

MAX_HEADER_BYTES = 100_000_000
FIRST_BYTES = 64 * 1024  # of the first request: most headers end in them
_LENGTH_BYTES = 8
_METADATA = "__metadata__"

_DTYPES_BY_BYTES = {
    1: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    2: "I16 U16 F16 BF16",
    4: "I32 U32 F32",
    8: "I64 U64 F64 C64",
}
_ITEM_BYTES = {dtype: num_bytes for num_bytes, dtypes in _DTYPES_BY_BYTES.items() for dtype in dtypes.split()}


class TensorInfo(NamedTuple):
    """A tensor in a file: its dtype as the format names it, and where its bytes [start, end) lie behind the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Header(NamedTuple):
    """What a file says of itself. `data_start` is where the bytes behind the header begin."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_start: int

    def extent(self, key: str, name: str, etag: str | None = None) -> Extent:
        """The bytes of the tensor `name` in the object `key`."""
        info = self.tensors[name]
        return Extent(key, self.data_start + info.start, info.end - info.start, None, etag)


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """The bytes of a tensor. Raises ConfigError for a dtype that the format does not have."""
    if dtype not in _ITEM_BYTES:
        raise ConfigError(f"safetensors has no dtype {dtype!r}; it has {', '.join(_ITEM_BYTES)}")
    return math.prod(shape) * _ITEM_BYTES[dtype]


def arrange(
    tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, Header]:
    """The first bytes of a file of these (dtype, shape) pairs, and where the bytes of each are to follow, in this order.

    Wide dtypes come first, so that every tensor is aligned to its own, then names in order.
    """
    if _METADATA in tensors:
        raise ConfigError(f"no tensor can be called {_METADATA}")
    order = sorted(tensors, key=lambda name: (-size_of(tensors[name][0], ()), name))
    placed: dict[str, TensorInfo] = {}
    position = 0
    for name in order:
        dtype, shape = tensors[name]
        end = position + size_of(dtype, shape)
        placed[name] = TensorInfo(dtype, tuple(shape), position, end)
        position = end
    content: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    for name, info in placed.items():
        content[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [info.start, info.end]}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    if len(text) > MAX_HEADER_BYTES:
        raise ConfigError(f"a header of {len(text)} bytes is more than safetensors allows: write several files")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, Header(placed, metadata or {}, _LENGTH_BYTES + len(text))


def read_header(store: Store, key: str) -> tuple[Header, ObjectInfo]:
    """The header of a file, in one request or two, and the facts about the object.

    Raises CorruptDataError when it is no safetensors file or was cut short.
    """
    uri = store.root + key
    info, data = read_part(store, key, 0, FIRST_BYTES)
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < _LENGTH_BYTES or length > min(MAX_HEADER_BYTES, info.size - _LENGTH_BYTES):
        raise _damaged(uri, f"{info.size} bytes do not hold a header of {length}")
    end = _LENGTH_BYTES + length
    if len(data) < end:
        again, rest = read_part(store, key, len(data), end - len(data), info.etag)
        if (again.etag, again.size, len(rest)) != (info.etag, info.size, end - len(data)):
            raise ChangedError(f"{uri} was replaced while it was read: open it again")
        data += rest
    return _parsed(data[_LENGTH_BYTES:end], info.size - end, uri), info


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name comes twice")
    return content


def _parsed(text: bytes, num_bytes: int, uri: str) -> Header:
    """Check a header against the `num_bytes` that follow it."""
    try:
        content = json.loads(text, object_pairs_hook=_unique)
        metadata = content.pop(_METADATA, None) or {}
        tensors = {name: _tensor(entry) for name, entry in content.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise _damaged(uri, f"its header cannot be read: {exc!r}") from exc
    position = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != position or info.end - info.start != size_of(info.dtype, info.shape):
            raise _damaged(uri, f"the tensor {name} has the bytes {info.start} to {info.end}")
        position = info.end
    if position != num_bytes:
        raise _damaged(uri, f"{position} bytes of tensors should follow the header, {num_bytes} do: it may be cut short")
    return Header(tensors, metadata, _LENGTH_BYTES + len(text))


def _tensor(entry: Mapping[str, Any]) -> TensorInfo:
    start, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if any(type(number) is not int or number < 0 for number in (start, end, *shape)):
        raise ValueError(f"{entry} holds no plain numbers")
    size_of(entry["dtype"], shape)
    return TensorInfo(entry["dtype"], shape, start, end)


def _damaged(uri: str, reason: str) -> CorruptDataError:
    return CorruptDataError(f"{uri} is damaged or no safetensors file ({reason}): restore it")


def files_in(index: bytes, uri: str) -> set[str]:
    """The files that the index of a model in several of them names. Raises CorruptDataError when it is none.

    Layout: https://huggingface.co/docs/safetensors, and `model.safetensors.index.json` of any sharded model there.
    """
    try:
        names = set(json.loads(index)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise CorruptDataError(f"{uri} is damaged or no index of safetensors ({exc!r}): restore it") from exc
    if not all(isinstance(name, str) and "/" not in name for name in names):
        raise CorruptDataError(f"{uri} names files that lie elsewhere: it is damaged")
    return names
