"""The NPY format: its header made and read, and arrays over memory that somebody else owns.

Source: the docstring of numpy.lib.format. A header is made as `numpy.save` makes it, byte for byte.
"""

from __future__ import annotations

import ast
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import objects
from ..errors import CorruptDataError, IncompleteReadError
from ..view import as_buffer

__all__ = ["NpyHeader", "header_bytes", "load_npy", "parse_header", "read_npy"]

MAGIC = b"\x93NUMPY"
ALIGNMENT = 64
GROWTH_DIGITS = 21  # numpy leaves room for the length of the first axis to grow in place
LARGEST_HEADER = 1024 * 1024
_KEYS = {"descr", "fortran_order", "shape"}


class NpyHeader(NamedTuple):
    """What stands before the data, and its own length in bytes."""

    dtype: np.dtype[Any]
    fortran_order: bool
    shape: tuple[int, ...]
    num_bytes: int


def header_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of an array in C order: a multiple of 64 bytes long. Raises ValueError for a dtype that holds objects."""
    if dtype.hasobject:
        raise ValueError(f"{dtype} holds Python objects, which only pickle stores")
    description = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {description!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (GROWTH_DIGITS - len(repr(shape[0])) if shape else 0)
    for version, length_format, encoding in ((1, "<H", "latin1"), (2, "<I", "latin1"), (3, "<I", "utf-8")):
        try:
            encoded = text.encode(encoding)
        except UnicodeEncodeError:
            continue
        prefix = len(MAGIC) + 2 + struct.calcsize(length_format)
        padding = ALIGNMENT - (prefix + len(encoded) + 1) % ALIGNMENT
        if len(encoded) + padding + 1 < 1 << 8 * struct.calcsize(length_format):
            encoded += b" " * padding + b"\n"
            return MAGIC + bytes((version, 0)) + struct.pack(length_format, len(encoded)) + encoded
    raise ValueError(f"the description of {dtype} is too long for an NPY header")


def parse_header(data: memoryview, name: str) -> NpyHeader:
    """The header at the beginning of `data`. Raises CorruptDataError, which says `name`, and ValueError for objects."""
    if data[: len(MAGIC)] != MAGIC or data.nbytes < len(MAGIC) + 6:
        raise CorruptDataError(f"{name} is no NPY file")
    version = data[len(MAGIC)]
    length_format = "<H" if version == 1 else "<I"
    start = len(MAGIC) + 2 + struct.calcsize(length_format)
    (length,) = struct.unpack_from(length_format, data, len(MAGIC) + 2)
    if version not in (1, 2, 3) or length > min(LARGEST_HEADER, data.nbytes - start):
        raise CorruptDataError(f"{name}: an NPY header of version {version} and {length} bytes cannot be read")
    try:
        fields = ast.literal_eval(str(data[start : start + length], "utf-8" if version == 3 else "latin1").strip())
        if fields.keys() != _KEYS or min(fields["shape"], default=0) < 0:
            raise ValueError(f"{fields!r:.200}")
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
        shape = tuple(length.__index__() for length in fields["shape"])
    except (AttributeError, SyntaxError, TypeError, ValueError) as exc:
        raise CorruptDataError(f"{name}: its NPY header is broken ({exc})") from exc
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which would have to be unpickled: read it with numpy.load")
    return NpyHeader(dtype, bool(fields["fortran_order"]), shape, start + length)


def load_npy(data: object, name: str = "") -> NDArray[Any]:
    """The array of an NPY file that is here as a whole, over the same memory: no copy, and writable where `data` is.

    `data` is any buffer, `name` says what it is in errors (by default its `uri`). Data that begins at an odd address, as in
    archives of `numpy.savez`, gives an array whose `flags.aligned` is false, which numpy and torch take as any other. What
    follows the array is not looked at. Raises CorruptDataError, and ValueError for objects, which are never unpickled.
    """
    name = name or getattr(data, "uri", "") or "the data"
    memory = as_buffer(data)
    header = parse_header(memory, name)
    count = 1
    for length in header.shape:
        count *= length
    size = count * header.dtype.itemsize
    if memory.nbytes - header.num_bytes < size:
        left = memory.nbytes - header.num_bytes
        raise IncompleteReadError(f"{name} is truncated: {left} bytes of data where {size} belong")
    order: Any = "F" if header.fortran_order else "C"
    return np.ndarray(header.shape, header.dtype, memory[header.num_bytes :] if size else None, order=order)


def read_npy(uri: str) -> NDArray[Any]:
    """The array of an NPY file on any scheme, writable, over the memory that was read into; errors as of `load_npy`."""
    return load_npy(objects.get(uri))
