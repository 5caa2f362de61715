"""CRCs put together are those of the whole, with zlib as the judge."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3dlio.transfer import crc


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_crc_of_two_strings_joined(first: bytes, second: bytes) -> None:
    assert crc.combined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_appending_more_than_4_gib_is_appending_it_in_parts() -> None:
    assert crc.shift((5 << 30) + 3) == crc.product(crc.shift(5 << 30), crc.shift(3))
    assert crc.shift(0) == crc.ONE


@pytest.mark.parametrize("size", [0, 1, 1000, 1001, 7777])
def test_a_buffer_in_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crc, "PIECE_BYTES", 1000)
    data = np.random.default_rng(3).bytes(size)
    assert crc.crc32(memoryview(data)) == zlib.crc32(data)
