"""Noise: every item finite, no two blocks alike, and the CRC that is told without reading is right."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3dlio.data import noise

F4 = noise.pattern_of(np.dtype("<f4"))


def filled(num_bytes: int, pattern: noise.Pattern = F4, seed: int | None = None) -> tuple[bytes, int]:
    out = np.empty(num_bytes, np.uint8)
    crc = noise.fill(out, pattern, seed)
    return out.tobytes(), crc


@given(st.integers(0, 3000), st.sampled_from(["<f4", "u1", "V3", "S5", "<c8", "V24"]), st.integers(1, 20))
def test_any_length_is_filled_and_its_crc_is_right(num_items: int, dtype: str, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "BLOCK_BYTES", 8 * block)
        patch.setattr(noise, "PARALLEL_FROM", 4000)
        kind = np.dtype(dtype)
        data, crc = filled(num_items * kind.itemsize, noise.pattern_of(kind))
    assert crc == zlib.crc32(data)


def test_a_seed_gives_the_same_and_no_seed_gives_others() -> None:
    assert filled(1000, seed=5) == filled(1000, seed=5)
    assert filled(1000, seed=5) != filled(1000, seed=6)
    assert filled(1000) != filled(1000)


def test_no_block_of_a_disk_comes_twice_and_nothing_compresses_but_the_fixed_bits() -> None:
    size = 40 * noise.BLOCK_BYTES + 5 * 512
    data, _ = filled(size)
    pages = [data[start : start + 512] for start in range(0, size, 512)]
    assert len(set(pages)) == len(pages)
    assert len(zlib.compress(data, 1)) > 0.84 * size  # 27 of 32 bits are random


def test_values_of_any_two_blocks_are_independent() -> None:
    items = noise.BLOCK_BYTES // 4
    values = np.frombuffer(filled(30 * noise.BLOCK_BYTES, seed=1)[0], "<f4").reshape(30, items)
    correlations = np.corrcoef(values) - np.eye(30)
    assert np.abs(correlations).max() < 5 / items**0.5
    assert abs(values.mean()) < 0.01
    assert np.abs(values).min() >= 1 / 128
    assert np.abs(values).max() < 2


@pytest.mark.parametrize("dtype", ["f2", ">f2", "f4", ">f4", "f8", ">f8", "g", "F", ">F", "D", "G"])
def test_floats_of_any_kind_are_finite_and_of_both_signs(dtype: str) -> None:
    kind = np.dtype(dtype)
    values = np.frombuffer(filled(4000 * kind.itemsize, noise.pattern_of(kind))[0], kind)
    parts = [values.real, values.imag]
    assert np.isfinite(values).all()
    for part in parts if kind.kind == "c" else parts[:1]:
        magnitudes = np.abs(part).astype("f8")
        assert 1 / 128 <= magnitudes.min() < 1 / 100
        assert 1.9 < magnitudes.max() < 2
        assert 1800 < (part < 0).sum() < 2200


def test_a_structure_is_random_in_its_fields_and_zero_between_them() -> None:
    kind = np.dtype([("a", "i1"), ("b", "<f8", (2,)), ("c", "?")], align=True)
    data, _ = filled(500 * kind.itemsize, noise.pattern_of(kind))
    values = np.frombuffer(data, kind)
    assert np.isfinite(values["b"]).all()
    assert len(np.unique(values["b"])) == 1000
    assert len(np.unique(values["a"])) > 100
    assert set(np.frombuffer(data, "u1").reshape(500, kind.itemsize)[:, kind.fields["c"][1]].tolist()) == {0, 1}  # type: ignore[index]
    assert not np.frombuffer(data, "u1").reshape(500, kind.itemsize)[:, 1:8].any()


def test_text_is_text_and_times_are_times() -> None:
    for dtype in ("<U4", ">U4"):
        values = np.frombuffer(filled(1600, noise.pattern_of(np.dtype(dtype)))[0], dtype)
        assert all(len(value) == 4 and value.isascii() and value.isprintable() for value in values.tolist())
    assert all(len(value) == 4 for value in np.frombuffer(filled(400, noise.pattern_of(np.dtype("S4")))[0], "S4").tolist())
    times = np.frombuffer(filled(8000, noise.pattern_of(np.dtype("M8[ms]")))[0], "M8[ms]")
    assert not np.isnat(times).any()
    assert times.max() < np.datetime64("2005-01-01")


def test_objects_have_no_pattern() -> None:
    with pytest.raises(ValueError, match="object"):
        noise.pattern_of(np.dtype(object))
