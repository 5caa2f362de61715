"""How `torch.save` lays one tensor out: a ZIP archive of stored (uncompressed) records, the raw bytes among them.

The archive of a plain tensor is written here as a head, the raw bytes and a tail, so that the bytes go from the tensor's
memory to the store and come back without a copy, and their place in the file is known. torch reads it as its own. The
ZIP checksum of the raw record is left 0, which torch never looks at: the checkpoint has its own per block.

Sources: PKWARE's APPNOTE 6.3.10 (4.3.7 local headers, 4.3.12 the directory, 4.5.3 ZIP64), and `torch.serialization._save`
for the names of the records.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
import zipfile
import zlib
from collections import OrderedDict
from typing import Any, NamedTuple

import torch

from ..tensors import strides_of

__all__ = ["Layout", "RawTensor", "archive_around", "layout_of"]

_FOLDER = "archive/"
_RAW = "data/0"
_LIMIT = 0xFFFFFFFF
_LOCAL = struct.Struct("<4sHHHHHLLLHH")
_ENTRY = struct.Struct("<4sHHHHHHLLLHHHHHLL")
_END_64 = struct.Struct("<4sQHHLLQQQQ")
_LOCATOR_64 = struct.Struct("<4sLQL")
_END = struct.Struct("<4sHHHHLLH")


class RawTensor(NamedTuple):
    """A strided tensor whose elements lie one after the other in C order."""

    dtype: torch.dtype
    size: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.size) * self.dtype.itemsize


class Layout(NamedTuple):
    """Where the raw bytes of a tensor lie in its archive, from the archive's start."""

    tensor: RawTensor
    start: int


class _Storage:
    """Stands for the storage of a tensor in its pickle."""


class _Tensor:
    """Pickles as the tensor, without having its memory."""

    def __init__(self, tensor: RawTensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        dtype, size = self.tensor
        facts: tuple[Any, ...] = (_Storage(), 0, size, strides_of(size), False, OrderedDict())
        if _legacy_storage(dtype) is None:
            return torch._utils._rebuild_tensor_v3, (*facts, dtype)
        return torch._utils._rebuild_tensor_v2, facts


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tensor: RawTensor) -> None:
        super().__init__(file, protocol=2)
        self._tensor = tensor

    def persistent_id(self, obj: object) -> Any:
        if not isinstance(obj, _Storage):
            return None
        legacy = _legacy_storage(self._tensor.dtype)
        if legacy is None:
            return "storage", torch.UntypedStorage, "0", "cpu", self._tensor.num_bytes
        return "storage", legacy, "0", "cpu", math.prod(self._tensor.size)


def _legacy_storage(dtype: torch.dtype) -> Any:
    """The storage class by which `torch.save` names a dtype; None for the newer dtypes, which it names themselves."""
    if dtype in torch.storage._new_dtypes():
        return None
    return getattr(torch, torch.storage._dtype_to_storage_type_map()[dtype])


def archive_around(tensor: RawTensor) -> tuple[bytes, bytes]:
    """The bytes before and after the raw bytes of `tensor` in its archive."""
    file = io.BytesIO()
    _Pickler(file, tensor).dump(_Tensor(tensor))
    archive = _Archive()
    archive.add("data.pkl", file.getvalue())
    archive.add("byteorder", sys.byteorder.encode())
    archive.begin(_RAW, tensor.num_bytes, 0)
    head = archive.take()
    archive.skip(tensor.num_bytes)
    archive.add("version", b"3\n")
    archive.end()
    return head, archive.take()


class _Archive:
    """The bytes of an archive, piece by piece."""

    def __init__(self) -> None:
        self._offset = 0
        self._pieces: list[bytes] = []
        self._directory: list[bytes] = []

    def _write(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._offset += len(piece)

    def take(self) -> bytes:
        """What was written since the last time."""
        taken, self._pieces = b"".join(self._pieces), []
        return taken

    def skip(self, num_bytes: int) -> None:
        """Somebody else writes so many bytes."""
        self._offset += num_bytes

    def add(self, name: str, data: bytes) -> None:
        self.begin(name, len(data), zlib.crc32(data))
        self._write(data)

    def begin(self, name: str, size: int, crc: int) -> None:
        """Write the header of a record, and note it for the directory."""
        path = (_FOLDER + name).encode()
        start = self._offset
        short, extra = (size, b"") if size < _LIMIT else (_LIMIT, struct.pack("<HHQQ", 1, 16, size, size))
        self._write(_LOCAL.pack(b"PK\3\4", 45, 0, 0, 0, 0, crc, short, short, len(path), len(extra)) + path + extra)
        large = [size, size] if size >= _LIMIT else []
        large += [start] if start >= _LIMIT else []
        extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        entry = _ENTRY.pack(
            *(b"PK\1\2", 45, 45, 0, 0, 0, 0, crc, short, short, len(path), len(extra), 0, 0, 0, 0), min(start, _LIMIT)
        )
        self._directory.append(entry + path + extra)

    def end(self) -> None:
        """Write the directory and the records that end an archive."""
        start, count = self._offset, len(self._directory)
        for entry in self._directory:
            self._write(entry)
        size, end = self._offset - start, self._offset
        self._write(_END_64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start))
        self._write(_LOCATOR_64.pack(b"PK\6\7", 0, end, 1))
        self._write(_END.pack(b"PK\5\6", 0, 0, count, count, size, min(start, _LIMIT), 0))


class _Unpickler(pickle.Unpickler):
    """Reads what a pickle says of one tensor, and calls nothing that it names."""

    def persistent_load(self, pid: Any) -> Any:
        _, storage, key, _, _ = pid
        return storage, key

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return lambda *facts: facts
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and (name.endswith("Storage") or isinstance(getattr(torch, name, None), torch.dtype)):
            return getattr(torch, name)
        if module == "torch.storage" and name == "UntypedStorage":
            return torch.UntypedStorage
        raise pickle.UnpicklingError(f"{module}.{name}")


def layout_of(head: bytes, tail: bytes, length: int) -> Layout | None:
    """Find the raw bytes in an archive of `length` bytes that torch wrote, from its first and last bytes.

    None when it is no plain tensor in C order of this machine's byte order, or when head and tail do not show enough:
    then `torch.load` has to read all of it.
    """
    file = _Ends(head, tail, length)
    try:
        with zipfile.ZipFile(file) as archive:
            names = {name.partition("/")[2]: archive.getinfo(name) for name in archive.namelist()}
            facts = _Unpickler(io.BytesIO(archive.read(names["data.pkl"]))).load()
            order = archive.read(names["byteorder"]).decode()
        raw = names[_RAW]
        file.seek(raw.header_offset)
        header = _LOCAL.unpack(file.read(_LOCAL.size))
    except (zipfile.BadZipFile, pickle.UnpicklingError, KeyError, EOFError, ValueError, struct.error):
        return None
    tensor = _raw_tensor(facts)
    if tensor is None or order != sys.byteorder or raw.compress_type or raw.file_size != tensor.num_bytes:
        return None
    return Layout(tensor, raw.header_offset + _LOCAL.size + header[-2] + header[-1])


def _raw_tensor(facts: Any) -> RawTensor | None:
    if not isinstance(facts, tuple) or len(facts) < 6:
        return None
    (storage, _), offset, size, stride = facts[:4]
    dtype = facts[6] if len(facts) > 6 else torch.storage._storage_type_to_dtype_map().get(storage.__name__)
    if not isinstance(dtype, torch.dtype) or offset or facts[4]:
        return None
    is_plain = all(step == own or count == 1 for step, own, count in zip(stride, strides_of(size), size, strict=True))
    return RawTensor(dtype, tuple(size)) if is_plain else None


class _Ends(io.RawIOBase):
    """A file of which only the first and the last bytes are here; EOFError where others are asked for."""

    def __init__(self, head: bytes, tail: bytes, length: int) -> None:
        super().__init__()
        self._head, self._tail, self._length = head, tail, length
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max(0, offset + (0, self._position, self._length)[whence])
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        start = self._position
        end = self._length if size is None or size < 0 else min(self._length, start + size)
        self._position = end
        tail_start = self._length - len(self._tail)
        if end <= len(self._head):
            return self._head[start:end]
        if start >= tail_start:
            return self._tail[start - tail_start : end - tail_start]
        raise EOFError
