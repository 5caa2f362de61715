"""CRCs of pieces put together: for what is checksummed in parallel, in any order, or never as a whole.

A CRC of 32 bits is a polynomial over GF(2) modulo P, kept with its bits reversed (bit 31 is the constant term). To append n
zero bytes multiplies it by x^(8n), and for strings of one length crc(a ^ b) = crc(a) ^ crc(b) ^ crc(zeros). Source:
M. Adler, crc32_combine in zlib; W. Peterson and D. Brown, "Cyclic Codes for Error Detection", 1961.
"""

from __future__ import annotations

import os
import zlib
from functools import lru_cache

from .. import runtime
from . import plan

__all__ = ["CRC32", "CRC32C", "ONE", "combined", "crc32", "num_cores", "product", "shift"]

CRC32, CRC32C = 0xEDB88320, 0x82F63B78
"""The polynomials P, reversed."""

ONE = 1 << 31
_X_TO_THE_8 = 1 << 23

PIECE_BYTES = 2 * 1024 * 1024


def product(a: int, b: int, polynomial: int = CRC32) -> int:
    """a * b modulo P."""
    result = 0
    while a:
        if a & ONE:
            result ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (polynomial if b & 1 else 0)
    return result


@lru_cache(maxsize=256)
def _square(value: int, polynomial: int) -> int:
    return product(value, value, polynomial)


@lru_cache(maxsize=1024)
def shift(num_bytes: int, polynomial: int = CRC32) -> int:
    """x^(8 * num_bytes) modulo P: the factor that appends so many bytes."""
    result, power = ONE, _X_TO_THE_8
    while num_bytes:
        if num_bytes & 1:
            result = product(result, power, polynomial)
        power = _square(power, polynomial)
        num_bytes >>= 1
    return result


def combined(first: int, second: int, num_bytes: int, polynomial: int = CRC32) -> int:
    """The CRC of two strings joined, from their CRCs and the length of the second in bytes."""
    return product(shift(num_bytes, polynomial), first, polynomial) ^ second


def crc32(data: memoryview) -> int:
    """The CRC-32 of a contiguous buffer of bytes, its pieces in parallel in the I/O threads."""
    total = 0
    pieces = list(plan.split(0, data.nbytes, PIECE_BYTES))
    crcs: dict[int, int] = {}
    for (offset, _), result in runtime.each(
        lambda piece: zlib.crc32(data[piece[0] : piece[0] + piece[1]]), pieces, window=min(len(pieces) or 1, num_cores())
    ):
        if isinstance(result, BaseException):
            raise result
        crcs[offset] = result
    for offset, length in pieces:
        total = combined(total, crcs[offset], length)
    return total


def num_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
