"""NPZ archives, with numpy and zipfile as the judges in both directions."""

from __future__ import annotations

import io
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import s3dlio
from s3dlio import generate_npz_bytes, load_npz, read_npz
from s3dlio.data import ziplayout
from s3dlio.errors import CorruptDataError, IncompleteReadError

from .conftest import MemoryPlace, Place
from .test_npy import DTYPES

ARRAYS = {"x": np.arange(3000, dtype="<f4").reshape(3, 1000), "y": np.zeros(2, "<i8"), "z": np.array(7, ">u2")}


def saved(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def loaded_by_numpy(view: Any) -> dict[str, Any]:
    with np.load(io.BytesIO(bytes(view))) as archive:
        return dict(archive)


@pytest.mark.parametrize("shape", [[], [0], [5], [3, 70, 1]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=lambda dtype: str(dtype)[:20])
def test_numpy_reads_any_dtype_and_shape_back(dtype: Any, shape: list[int]) -> None:
    view = generate_npz_bytes(shape, dtype, 3)
    arrays = loaded_by_numpy(view)
    assert list(arrays) == ["x", "y"]
    assert arrays["x"].shape == tuple(shape)
    assert np.lib.format.dtype_to_descr(arrays["x"].dtype) == np.lib.format.dtype_to_descr(np.dtype(dtype))
    assert (arrays["y"].dtype, arrays["y"].tolist()) == (np.dtype("<i8"), [0, 0, 0])
    if arrays["x"].dtype.kind in "fc":
        assert np.isfinite(arrays["x"]).all()
    mine = load_npz(view)["x"]
    assert np.array_equal(mine, arrays["x"])
    assert mine.flags.aligned


def test_the_defaults_are_those_of_the_guide() -> None:
    arrays = loaded_by_numpy(s3dlio.generate_npz_bytes(shape=[40, 30]))
    assert arrays["x"].dtype == np.dtype("<f4")
    assert arrays["y"].shape == (1,)


def test_values_differ_from_call_to_call_unless_seeded() -> None:
    assert generate_npz_bytes([1000]) != generate_npz_bytes([1000])
    assert generate_npz_bytes([1000], seed=3) == generate_npz_bytes([1000], seed=3)
    assert np.unique(load_npz(generate_npz_bytes([100_000]))["x"]).size > 99_000


def test_a_large_archive_in_parallel_is_right(tmp_path: Path) -> None:
    view = generate_npz_bytes([1500, 1001])
    with zipfile.ZipFile(io.BytesIO(bytes(view))) as archive:
        assert archive.testzip() is None
    x = load_npz(view)["x"]
    assert abs(x.mean()) < 0.01
    if shutil.which("unzip"):
        (tmp_path / "a.npz").write_bytes(view)
        subprocess.run(["unzip", "-tq", tmp_path / "a.npz"], check=True, timeout=60, capture_output=True)


def test_a_generated_archive_goes_to_any_store_as_it_is(place: Place) -> None:
    view = generate_npz_bytes([300], "<f8", 2)
    assert type(view) is s3dlio.BytesView
    assert view.__array_interface__["data"][0] % 64 == 0
    s3dlio.put_bytes(place.root + "a.npz", view)
    with s3dlio.open_writer(place.root + "b.npz") as writer:
        writer.write(view)
    for name in ("a.npz", "b.npz"):
        assert place.get(name) == bytes(view)
        arrays = read_npz(place.root + name)
        assert arrays.keys() == {"x", "y"}
        assert np.array_equal(read_npz(place.root + name, "x"), arrays["x"])


@pytest.mark.parametrize(("shape", "dtype"), [([-1], "<f4"), ([3], "O"), ([3], [("a", "O")])])
def test_what_no_archive_can_hold_is_refused(shape: list[int], dtype: Any) -> None:
    with pytest.raises(ValueError):
        generate_npz_bytes(shape, dtype)
    with pytest.raises(TypeError):
        generate_npz_bytes([2.5])  # type: ignore[list-item]
    with pytest.raises(ValueError):
        generate_npz_bytes([2], num_samples=-1)


def test_over_4_gib_the_archive_has_zip64_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ziplayout, "LIMIT_32", 1000)  # so that 1000 bytes are as 4 GiB - 1
    view = generate_npz_bytes([500])
    monkeypatch.undo()
    assert view[:4] == b"PK\3\4"
    local = bytes(view[:100])
    assert local[30:35] == b"x.npy"
    assert int.from_bytes(local[39:47], "little") == 128 + 2000  # the zip64 field of the local header
    assert b"PK\6\6" in bytes(view[-200:])
    assert b"PK\6\7" in bytes(view[-200:])


def test_stored_arrays_are_the_memory_of_the_archive() -> None:
    data = bytearray(saved(**ARRAYS))
    arrays = load_npz(data)
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
        assert np.shares_memory(arrays[name], np.frombuffer(data, "u1"))
    assert load_npz(data, ["y"]).keys() == {"y"}
    arrays["x"][0, 0] = -1
    assert load_npz(data, ["x"], verify=False)["x"][0, 0] == -1
    with pytest.raises(CorruptDataError, match=r"CRC-32 of x\.npy"):
        load_npz(data)


def test_compressed_arrays_and_other_orders(place: Place) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.asfortranarray(ARRAYS["x"]), b=np.zeros(0))
    place.put("c.npz", buffer.getvalue())
    arrays = read_npz(place.root + "c.npz")
    assert np.array_equal(arrays["a"], ARRAYS["x"])
    assert arrays["a"].flags.writeable
    assert read_npz(place.root + "c.npz", "b").shape == (0,)


def test_one_array_of_a_large_archive_is_read_without_the_others() -> None:
    place = MemoryPlace()
    place.put("a.npz", saved(big=np.zeros(4_000_000, "u1"), small=ARRAYS["y"], large=np.ones(3_000_000, "u1")))
    uri = place.root + "a.npz"
    assert np.array_equal(read_npz(uri, "small"), ARRAYS["y"])
    assert read_npz(uri, "large").sum() == 3_000_000
    with pytest.raises(KeyError, match="it has big, large, small"):
        read_npz(uri, "nobody")


def test_a_flipped_bit_in_the_data_is_an_error(place: Place) -> None:
    data = bytearray(saved(**ARRAYS))
    data[5000] ^= 1
    place.put("bad.npz", bytes(data))
    for name in (None, "x"):
        with pytest.raises(CorruptDataError, match=rf"{place.root}bad\.npz .*x\.npy"):
            read_npz(place.root + "bad.npz", name)  # type: ignore[call-overload]
    assert read_npz(place.root + "bad.npz", "x", verify=False).shape == (3, 1000)


@pytest.mark.parametrize("length", [0, 10, 5000, 12_700])
def test_a_truncated_archive_is_an_error(length: int) -> None:
    data = saved(**ARRAYS)
    assert length < len(data)
    with pytest.raises(CorruptDataError, match="the data"):
        load_npz(data[:length])


def test_a_directory_that_lies_is_an_error() -> None:
    data = bytearray(saved(**ARRAYS))
    at = data.index(b"PK\1\2")
    wrong = data.copy()
    wrong[at + 42 : at + 46] = (5).to_bytes(4, "little")  # where the first file begins
    with pytest.raises(CorruptDataError, match="does not begin"):
        load_npz(wrong)
    wrong = data.copy()
    wrong[at + 20 : at + 28] = (1 << 20).to_bytes(4, "little") * 2  # its sizes
    with pytest.raises(IncompleteReadError, match=r"x\.npy"):
        load_npz(wrong)


def test_objects_are_never_unpickled() -> None:
    with pytest.raises(ValueError, match="Python objects"):
        load_npz(saved(o=np.array([{}], object)))


def _flipped(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def test_a_directory_that_contradicts_the_headers_of_its_files_is_an_error(place: Place) -> None:
    data = saved(x=np.arange(5))
    at = data.rindex(b"x.npy")
    place.put("bad.npz", _flipped(data, at, ord("y")))
    for name in (None, "y"):
        with pytest.raises(CorruptDataError, match=r"bad\.npz .*'y\.npy' where 'x\.npy' begins"):
            read_npz(place.root + "bad.npz", name)  # type: ignore[call-overload]
    with pytest.raises(CorruptDataError, match="other methods"):
        load_npz(_flipped(data, 8, zipfile.ZIP_DEFLATED))


def _compressed() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.arange(5))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("field", "value"),
    [(8, 1), (10, zipfile.ZIP_BZIP2), (10, zipfile.ZIP_LZMA), (10, 99), (6, 99)],
    ids=["encrypted", "bzip2", "lzma", "unknown method", "unknown version"],
)
def test_whatever_zipfile_raises_for_a_damaged_archive_is_an_error_of_ours(field: int, value: int) -> None:
    data = _compressed()
    with pytest.raises(CorruptDataError, match=r"^the data cannot be read as an NPZ archive: ."):
        load_npz(_flipped(data, data.rindex(b"PK\1\2") + field, value))


def test_a_directory_that_would_begin_before_the_archive_is_an_error(place: Place) -> None:
    data = bytearray(_compressed())
    data[-8:-6] = b"\xff\xff"
    place.put("bad.npz", bytes(data))
    with pytest.raises(CorruptDataError, match=r"bad\.npz"):
        read_npz(place.root + "bad.npz")
    with pytest.raises(CorruptDataError, match="the data"):
        load_npz(data)


def test_an_array_of_arrays_is_folded_as_numpy_does() -> None:
    kind = np.dtype(("<f4", (2,)))
    expected = loaded_by_numpy(saved(x=np.zeros(3, kind)))["x"]
    for found in (loaded_by_numpy(generate_npz_bytes([3], kind))["x"], load_npz(generate_npz_bytes([3], kind))["x"]):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape) == (np.dtype("<f4"), (3, 2))


@pytest.mark.parametrize("shape", [[1 << 62], [1 << 40, 1 << 40], [0, 1 << 62]])
def test_a_size_that_no_memory_holds_is_refused(shape: list[int]) -> None:
    with pytest.raises(ValueError, match="too large for memory"):
        generate_npz_bytes(shape)
