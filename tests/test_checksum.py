"""Checksums: whatever the order in which bytes come, the result is that of the whole, and its name belongs to it."""

from __future__ import annotations

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3dlio.errors import CorruptDataError, MissingPackageError
from s3dlio.transfer.checksum import Checksum, Coverage, best_algorithm, joined, parsed

ALGORITHMS = ("crc32", "crc32c")
KNOWN = {"crc32": "crc32:cbf43926", "crc32c": "crc32c:e3069283"}  # of the digits 1 to 9, as the standards give them


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_check_value_of_the_standard(algorithm: str) -> None:
    checksum = Checksum(algorithm)
    for piece in (b"1234", b"", b"56789"):
        checksum.update(memoryview(piece))
    assert checksum.text == KNOWN[algorithm]


@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 80)), max_size=30))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bytes_may_come_in_any_order_and_twice(algorithm: str, data: bytes, reads: list[tuple[int, int]]) -> None:
    whole, coverage = Checksum(algorithm), Coverage(algorithm)
    whole.update(memoryview(data))
    seen = set()
    for start, length in reads:
        piece = data[start : start + length]
        coverage.add(start, memoryview(piece))
        seen.update(range(start, start + len(piece)))
    gaps = coverage.gaps(len(data))
    assert {position for start, end in gaps for position in range(start, end)} == set(range(len(data))) - seen
    for start, end in gaps:
        coverage.add(start, memoryview(data)[start:end])
    assert coverage.gaps(len(data)) == []
    assert coverage.text == whole.text


def test_pieces_of_more_than_half_a_gigabyte_are_joined_right() -> None:
    """By doubling, and so without the bytes: zeros of length 2n are those of length n twice."""
    block = bytes(2**24)
    value, length = crc32c.crc32c(block), len(block)
    while length < 2**30:
        value, length = joined("crc32c", value, value, length), 2 * length
    other = 0
    for _ in range(length // len(block)):
        other = crc32c.crc32c(block, other)
    assert value == other


@pytest.mark.parametrize("text", ["", "crc32c", "crc32c:", "crc32c:xyz", "md5:00112233"])
def test_an_unknown_checksum_is_an_error_and_never_passes(text: str) -> None:
    with pytest.raises(CorruptDataError, match=r"memory://b/k has the checksum"):
        parsed(text, "memory://b/k")


def test_with_its_package_crc32c_is_taken() -> None:
    assert best_algorithm() == "crc32c"


def test_without_its_package_crc32c_is_not_taken_and_names_the_extra(no_crc32c: None) -> None:
    assert best_algorithm() == "crc32"
    with pytest.raises(MissingPackageError, match=r"s3dlio\[torch\]"):
        Checksum("crc32c")
