"""NPZ archives: generated in memory, and decoded without copies.

Source: the docstrings of numpy.savez and numpy.lib.format; an archive is a zip file of NPY files.
"""

from __future__ import annotations

import io
import lzma
import math
import operator
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from typing import IO, Any, NamedTuple, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import objects
from ..errors import CorruptDataError, IncompleteReadError, S3dlioError
from ..transfer import crc
from ..view import ALIGNMENT, BytesView, as_buffer, empty
from . import noise, npy, ziplayout

__all__ = ["generate_npz_bytes", "load_npz", "read_npz"]

ENCRYPTED = 1
LARGEST = 1 << 56  # bytes: more than any address space holds

# What zipfile and the decompressors raise for damaged archives; OSError comes from bzip2, and for seeking before the start.
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError, UnicodeDecodeError, struct.error)


def generate_npz_bytes(
    shape: Sequence[int], dtype: DTypeLike = "<f4", num_samples: int = 1, *, seed: int | None = None
) -> BytesView:
    """Make an NPZ archive of random data, as `numpy.load` reads it.

    It holds `x`, an array of `shape` and `dtype` with random finite values, and `y`, `num_samples` int64 zeros. Floats are
    of either sign and from 1/128 to below 2 in magnitude. Every call gives other values, unless `seed` is told. The data of
    `x` begins at a multiple of 64 bytes. Any shape works, () included, and any dtype that NPY files hold; zip64 records
    come from 4 GiB on. The view is ready for `put_bytes` and writers, without a copy. Raises ValueError for a dtype of
    objects, and for a size that no memory holds.

    >>> s3dlio.put_bytes("s3://bucket/sample.npz", s3dlio.generate_npz_bytes([6053, 6053, 1]))
    """
    kind = np.dtype(dtype)
    lengths = tuple(_length("shape", length) for length in shape)
    if kind.subdtype is not None:  # as numpy folds an array of arrays
        lengths, kind = lengths + kind.shape, kind.base
    _check_size(lengths, kind)
    header = npy.header_bytes(kind, lengths)
    labels = npy.header_bytes(np.dtype("<i8"), (_length("num_samples", num_samples),)) + bytes(8 * num_samples)
    pattern = noise.pattern_of(kind)
    num_bytes = math.prod(lengths) * kind.itemsize
    x = ziplayout.StoredFile("x.npy", 0, len(header) + num_bytes, 0)
    start = len(ziplayout.local_header(x, ALIGNMENT))
    y = ziplayout.StoredFile("y.npy", crc.crc32(memoryview(labels)), len(labels), start + x.size)
    y_start = y.offset + len(ziplayout.local_header(y, ALIGNMENT))
    end = y_start + y.size
    view = empty(end + len(ziplayout.directory([x, y], end)))
    data = view[start + len(header) : start + x.size].view()
    x = x._replace(crc=crc.combined(crc.crc32(memoryview(header)), noise.fill(data, pattern, seed), num_bytes))
    memory = memoryview(view)
    memory[: start + len(header)] = ziplayout.local_header(x, ALIGNMENT) + header
    memory[y.offset : end] = ziplayout.local_header(y, ALIGNMENT) + labels
    memory[end:] = ziplayout.directory([x, y], end)
    return view


def _check_size(lengths: tuple[int, ...], kind: np.dtype[Any]) -> None:
    num_bytes = math.prod(length for length in lengths if length) * max(1, kind.itemsize)  # numpy counts so, too
    if num_bytes > LARGEST:
        raise ValueError(f"an array of shape {lengths} and dtype {kind} would have {num_bytes} bytes: too large for memory")


def _length(name: str, value: int) -> int:
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"{name}={value}: a length is not negative")
    return number


def load_npz(data: object, names: Iterable[str] | None = None, *, verify: bool = True) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ archive that is here as a whole, by name; only those of `names` when told.

    `data` is any buffer. Arrays that are stored without compression, as `numpy.savez` does, are over the same memory: no
    copy, and writable where `data` is; the others are unpacked. `verify` checks the CRC-32 of each, which costs a third to
    half a second of CPU per GiB, in parallel; compressed ones are checked always. See `load_npy` for alignment and errors; a
    name that is not there raises KeyError.
    """
    memory = as_buffer(data)
    return _arrays(
        _Source(io.BufferedReader(_Memory(memory)), getattr(data, "uri", "") or "the data", memory), names, verify
    )


@overload
def read_npz(uri: str, array_name: str, *, verify: bool = ...) -> NDArray[Any]: ...
@overload
def read_npz(uri: str, array_name: None = None, *, verify: bool = ...) -> dict[str, NDArray[Any]]: ...
def read_npz(uri: str, array_name: str | None = None, *, verify: bool = True) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """The arrays of an NPZ archive on any scheme, by name; or the one of `array_name`, and then only it is read.

    Arrays are writable and keep their dtype. See `load_npz`.
    """
    if array_name is None:
        return load_npz(objects.get(uri), verify=verify)
    with objects.open_reader(uri) as file:
        return _arrays(_Source(file, uri, None), [array_name], verify)[array_name]


class _Source(NamedTuple):
    """An archive: as a seekable file, by its name in errors, and as memory if it is here as a whole."""

    file: IO[bytes]
    name: str
    memory: memoryview | None


class _Memory(io.RawIOBase):
    """A file over memory, without a copy of it."""

    def __init__(self, memory: memoryview) -> None:
        super().__init__()
        self._memory = memory
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._memory.nbytes}[whence]
        if base + offset < 0:
            raise OSError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        part = self._memory[self._position : self._position + memoryview(buffer).nbytes]
        memoryview(buffer)[: part.nbytes] = part
        self._position += part.nbytes
        return part.nbytes


def _arrays(source: _Source, names: Iterable[str] | None, verify: bool) -> dict[str, NDArray[Any]]:
    arrays = {}
    try:
        with zipfile.ZipFile(source.file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for name in members if names is None else names:
                if name not in members:
                    raise KeyError(f"{source.name} has no array {name!r}: it has {', '.join(sorted(members))}")
                data = _member(source, archive, members[name], verify)
                arrays[name] = npy.load_npy(data, f"{members[name].filename} in {source.name}")
    except _BROKEN as exc:
        if isinstance(exc, S3dlioError) or getattr(exc, "errno", None) is not None:  # a file system has failed, not zipfile
            raise
        raise CorruptDataError(f"{source.name} cannot be read as an NPZ archive: {exc}") from exc
    return arrays


def _data_start(source: _Source, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored file begin. Raises CorruptDataError where its own header contradicts the directory."""
    source.file.seek(info.header_offset)
    header = ziplayout.parsed_local_header(source.file.read(ziplayout.FIXED_BYTES))
    name = source.file.read(header.name_length).decode("utf-8" if info.flag_bits & ziplayout.UTF8 else "cp437")
    if name != info.orig_filename:
        raise CorruptDataError(f"{source.name} is corrupt: its directory has {info.orig_filename!r} where {name!r} begins")
    if header.method != info.compress_type or (header.flags ^ info.flag_bits) & ENCRYPTED:
        raise CorruptDataError(f"{source.name} is corrupt: its directory and the header of {name!r} tell of other methods")
    return info.header_offset + ziplayout.FIXED_BYTES + header.name_length + header.extra_length


def _member(source: _Source, archive: zipfile.ZipFile, info: zipfile.ZipInfo, verify: bool) -> memoryview:
    """The bytes of a file in the archive: a part of its memory where it is stored as it is."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & ENCRYPTED:
        return memoryview(bytearray(archive.read(info)))
    start = _data_start(source, info)
    if source.memory is not None:
        data = source.memory[start : start + info.file_size]
    else:
        data = memoryview(empty(info.file_size, source.name))
        source.file.seek(start)
        data = data[: source.file.readinto(data)]  # type: ignore[attr-defined]
    if data.nbytes != info.file_size:
        raise IncompleteReadError(f"{source.name} is truncated: {info.filename} has {data.nbytes} of {info.file_size} bytes")
    if verify and crc.crc32(data) != info.CRC:
        raise CorruptDataError(f"{source.name} is corrupt: the CRC-32 of {info.filename} is wrong")
    return data
