"""NPY files, with numpy as the judge in both directions."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3dlio import load_npy, read_npy
from s3dlio.data.npy import header_bytes, parse_header
from s3dlio.errors import CorruptDataError, IncompleteReadError

from .conftest import MemoryPlace, Place

DTYPES = [
    *("?", "i1", "<u2", ">i4", "<i8", "f2", "<f4", ">f8", "g", "<c8", ">c16", "S5", "<U3", ">U3", "V7", "M8[ns]", "m8[s]"),
    [("a", "<f4"), ("b", "u1", (2, 3))],
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    [("\u4e2d", "f4")],  # version 3
    [(f"field{number}", "f4") for number in range(4000)],  # version 2
]
SHAPES: list[tuple[int, ...]] = [(), (0,), (3,), (2, 0, 4), (2, 3, 4)]


def saved(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:Stored array in format:UserWarning")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[:20])
def test_headers_are_numpys_byte_for_byte_and_read_back(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    data = saved(array)
    header = header_bytes(array.dtype, shape)
    assert data[: len(header)] == header
    assert len(header) + array.nbytes == len(data)
    parsed = parse_header(memoryview(data), "x")
    assert (parsed.shape, parsed.num_bytes, parsed.fortran_order) == (shape, len(header), False)
    assert np.lib.format.dtype_to_descr(parsed.dtype) == np.lib.format.dtype_to_descr(array.dtype)


@given(st.lists(st.integers(0, 10**18), max_size=9).map(tuple))
def test_a_header_has_room_for_any_shape(shape: tuple[int, ...]) -> None:
    header = header_bytes(np.dtype("<f4"), shape)
    assert len(header) % 64 == 0
    assert np.lib.format.read_magic(io.BytesIO(header)) == (1, 0)
    assert parse_header(memoryview(header), "x").shape == shape


def test_an_array_is_the_memory_of_the_file() -> None:
    array = np.arange(24, dtype="<f4").reshape(2, 3, 4)
    for order in ("C", "F"):
        data = bytearray(saved(np.asarray(array, order=order)))  # type: ignore[call-overload]
        loaded = load_npy(data)
        assert np.array_equal(loaded, array)
        assert loaded.flags[f"{order}_CONTIGUOUS"]
        assert np.shares_memory(loaded, np.frombuffer(data, "u1"))
        loaded[0, 0, 0] = 7
        assert load_npy(data)[0, 0, 0] == 7
    assert not load_npy(bytes(data)).flags.writeable
    assert np.array_equal(load_npy(data + b"what follows"), load_npy(data))


def test_an_array_on_any_scheme(place: Place) -> None:
    array = np.arange(5, dtype=">i2")
    place.put("a.npy", saved(array))
    loaded = read_npy(place.root + "a.npy")
    assert np.array_equal(loaded, array)
    assert loaded.dtype == array.dtype
    assert loaded.flags.writeable


def test_objects_are_never_unpickled() -> None:
    with pytest.raises(ValueError, match="Python objects"):
        load_npy(saved(np.array([{}], object)))
    with pytest.raises(ValueError, match="pickle"):
        header_bytes(np.dtype([("a", object)]), (1,))


@pytest.mark.parametrize("length", [0, 5, 9, 50, 127])
def test_a_truncated_header_is_an_error_that_says_where(length: int) -> None:
    place = MemoryPlace()
    place.put("a.npy", saved(np.zeros(3))[:length])
    with pytest.raises(CorruptDataError, match=place.root):
        read_npy(place.root + "a.npy")


def test_truncated_data_is_an_error() -> None:
    with pytest.raises(IncompleteReadError, match="23 bytes of data where 24 belong"):
        load_npy(saved(np.zeros(3))[:-1])


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "[]",
            "{}",
            "{'descr': '<f4'}",
            "__import__('os')",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        ),
        *(
            "{'descr': 'nonsense', 'fortran_order': False, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
        ),
        *(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1.5,)}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': ('a',)}",
        ),
        "(" * 300,
    ],
)
def test_a_broken_header_is_an_error(text: str) -> None:
    with pytest.raises(CorruptDataError, match="the data"):
        load_npy(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + bytes(64))


def test_an_unknown_version_is_an_error() -> None:
    with pytest.raises(CorruptDataError, match="version 9"):
        load_npy(b"\x93NUMPY\x09\0" + saved(np.zeros(3))[8:])
