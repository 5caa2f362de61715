"""CRCs with their name: of a stream, and of an object whose bytes come in any order.

The name is part of a checksum's text (`crc32c:e3069283`), so that what was written with one is never judged by the other.
How CRCs are joined is told in `crc`.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .. import crc32c
from ..crc32c import Update
from ..errors import CorruptDataError
from . import crc

__all__ = ["Checksum", "Coverage", "best_algorithm", "joined", "parsed"]


class _Algorithm(NamedTuple):
    load: Callable[[], Update]
    polynomial: int


_ALGORITHMS = {
    "crc32c": _Algorithm(lambda: crc32c.load("a crc32c checksum needs the package crc32c", "torch"), crc.CRC32C),
    "crc32": _Algorithm(lambda: zlib.crc32, crc.CRC32),
}


def best_algorithm() -> str:
    """crc32c where its package is installed, since processors have an instruction for it; else crc32."""
    return "crc32c" if crc32c.find() else "crc32"


def _text(algorithm: str, value: int) -> str:
    return f"{algorithm}:{value:08x}"


def parsed(text: str, uri: str) -> tuple[str, int]:
    """Algorithm and value of a checksum's text. Raises CorruptDataError, naming `uri`, for anything else."""
    algorithm, _, digits = text.partition(":")
    try:
        if algorithm in _ALGORITHMS:
            return algorithm, int(digits, 16)
    except ValueError:
        pass
    known = ", ".join(_ALGORITHMS)
    raise CorruptDataError(f"{uri} has the checksum {text!r}, which is none of {known}: use the s3dlio that wrote it")


class Checksum:
    """The checksum of bytes that come one after the other."""

    def __init__(self, algorithm: str) -> None:
        self._algorithm = algorithm
        self._update = _ALGORITHMS[algorithm].load()
        self._value = 0

    def update(self, data: memoryview) -> None:
        """Go on with these bytes."""
        self._value = self._update(data, self._value)

    @property
    def text(self) -> str:
        """`algorithm:hexadecimal` of all so far."""
        return _text(self._algorithm, self._value)


def joined(algorithm: str, first: int, second: int, second_bytes: int) -> int:
    """The CRC of two pieces, one behind the other, from theirs and the length of the second."""
    return crc.combined(first, second, second_bytes, _ALGORITHMS[algorithm].polynomial)


class Coverage:
    """The checksum of an object whose bytes come in any order, and perhaps twice. Constant memory per piece."""

    def __init__(self, algorithm: str) -> None:
        self._algorithm = algorithm
        self._update = _ALGORITHMS[algorithm].load()
        self._starts: list[int] = []
        self._pieces: list[tuple[int, int]] = []  # (end, CRC), in the order of `_starts`; they never overlap

    def add(self, start: int, data: memoryview) -> None:
        """These bytes stand at `start`. What has come before is not looked at again."""
        for gap_start, gap_end in [*self._gaps(start, start + data.nbytes)]:
            value = self._update(data[gap_start - start : gap_end - start], 0)
            index = bisect_right(self._starts, gap_start)
            self._starts.insert(index, gap_start)
            self._pieces.insert(index, (gap_end, value))

    def gaps(self, size: int) -> list[tuple[int, int]]:
        """The (start, end) within [0, size) that have not come yet."""
        return [*self._gaps(0, size)]

    def _gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        index = max(0, bisect_right(self._starts, start) - 1)
        while start < end:
            if index >= len(self._starts) or self._starts[index] >= end:
                yield start, end
                return
            if self._starts[index] > start:
                yield start, self._starts[index]
            start, index = max(start, self._pieces[index][0]), index + 1

    @property
    def text(self) -> str:
        """The checksum of all pieces, which leave no gap."""
        value = 0
        for start, (end, piece) in zip(self._starts, self._pieces, strict=True):
            value = joined(self._algorithm, value, piece, end - start)
        return _text(self._algorithm, value)
