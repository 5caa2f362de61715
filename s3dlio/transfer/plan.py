"""Pure arithmetic of requests: no I/O, no defaults. Sizes and offsets in bytes, ends exclusive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

__all__ = ["coalesced", "evenly", "part_size", "split"]


def split(start: int, end: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Cut [start, end) into (offset, length) pieces that end at multiples of `chunk`, so that they stay aligned."""
    while start < end:
        stop = min(end, (start // chunk + 1) * chunk)
        yield start, stop - start
        start = stop


def evenly(start: int, end: int, smallest: int) -> Iterator[tuple[int, int]]:
    """Cut [start, end) into (offset, length) pieces of about one length, `smallest` at least if there are several."""
    count = max(1, (end - start) // smallest)
    places = [start + (end - start) * number // count for number in range(count + 1)]
    for place, stop in pairwise(places):
        yield place, stop - place


def part_size(number: int, *, smallest: int, max_parts: int, max_part: int) -> int:
    """The size of part `number` (from 1) of an upload whose length is not known.

    It doubles after each tenth of the permitted parts, so that 10,000 parts that begin with 8 MiB hold 7.8 TiB, more than
    the 5 TiB of the largest object that S3 takes, while a small upload needs little memory.
    """
    doublings = (number - 1) * 10 // max_parts
    return min(max_part, smallest << doublings)


def coalesced(ranges: Iterable[tuple[int, int]], *, gap: int) -> list[tuple[int, int]]:
    """Join (start, end) ranges that overlap, touch, or lie at most `gap` bytes apart; sorted, whatever their order was."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
