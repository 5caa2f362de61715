"""The arithmetic of requests."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from s3dlio.transfer.plan import coalesced, evenly, part_size, split

MIB = 1 << 20


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 3_000))
def test_pieces_join_to_the_range_and_end_at_multiples_of_the_chunk(start: int, length: int, chunk: int) -> None:
    end = start + length
    pieces = list(split(start, end, chunk))
    assert [byte for offset, count in pieces for byte in range(offset, offset + count)] == list(range(start, end))
    assert all(1 <= count <= chunk for _, count in pieces)
    assert all((offset + count) % chunk == 0 for offset, count in pieces[:-1])


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(1, 3_000))
def test_even_pieces_join_to_the_range_and_none_is_short(start: int, length: int, smallest: int) -> None:
    pieces = list(evenly(start, start + length, smallest))
    assert pieces[0][0] == start
    assert all(offset + count == following for (offset, count), (following, _) in itertools.pairwise(pieces))
    assert sum(count for _, count in pieces) == length
    assert len(pieces) == 1 or all(smallest <= count < 2 * smallest for _, count in pieces)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20))), st.integers(0, 10))
def test_coalesced_ranges_hold_all_bytes_and_lie_farther_apart_than_the_gap(ranges: list[tuple[int, int]], gap: int) -> None:
    wanted = [(start, start + length) for start, length in ranges]
    joined = coalesced(wanted, gap=gap)
    assert joined == sorted(joined)
    assert all(any(start <= first and last <= end for start, end in joined) for first, last in wanted)
    assert all(after[0] - before[1] > gap for before, after in itertools.pairwise(joined))
    borders = {border for pair in wanted for border in pair}
    assert all(start in borders and end in borders for start, end in joined)


def test_nothing_to_split_gives_nothing() -> None:
    assert list(split(5, 5, 10)) == []
    assert list(split(9, 5, 10)) == []


@given(st.integers(1, 10_000), st.integers(5 * MIB, 64 * MIB))
def test_parts_never_shrink_and_keep_to_the_limits(number: int, smallest: int) -> None:
    limits = {"smallest": smallest, "max_parts": 10_000, "max_part": 5 << 30}
    size = part_size(number, **limits)
    assert smallest <= size <= 5 << 30
    assert size <= part_size(number + 1, **limits)


def test_the_parts_of_the_docstring_hold_what_it_says() -> None:
    def total(smallest: int) -> int:
        return sum(part_size(n, smallest=smallest, max_parts=10_000, max_part=5 << 30) for n in range(1, 10_001))

    assert 7.7 < total(8 * MIB) / (1 << 40) < 7.9
    assert part_size(1_000, smallest=8 * MIB, max_parts=10_000, max_part=5 << 30) == 8 * MIB
    assert part_size(1_001, smallest=8 * MIB, max_parts=10_000, max_part=5 << 30) == 16 * MIB
    assert part_size(10_000, smallest=8 * MIB, max_parts=10_000, max_part=100 * MIB) == 100 * MIB
