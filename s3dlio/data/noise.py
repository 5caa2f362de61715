"""Random finite values of any dtype, and their CRC-32, at the speed of memory.

Generating every byte, and summing it up, costs half a second of CPU per GiB each. So of n blocks only 2 * sqrt(n) are
generated, rows A and columns B, and each block of the result is A[i] ^ B[j] of a pair of its own. Two blocks that share a
row or a column still differ by a random block, so any two blocks are independent, no bytes repeat, and nothing can be
deduplicated; only an XOR of four whole blocks shows how they were made. The CRC of a ^ b follows from those of a and b
(see `transfer.crc`), so the data is never read again.

What makes a value finite is a mask on the random bits and a constant under it, both of which XOR keeps.
"""

from __future__ import annotations

import math
import sys
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import runtime
from ..transfer import crc

__all__ = ["Pattern", "fill", "pattern_of"]

BLOCK_BYTES = 64 * 1024
PARALLEL_FROM = 4 * 1024 * 1024  # bytes

Words = NDArray[np.uint64]


class Pattern(NamedTuple):
    """Of an item: the bits that are random, and those that are set always."""

    random: bytes
    constant: bytes


def pattern_of(dtype: np.dtype[Any]) -> Pattern:
    """What keeps items of `dtype` finite and valid.

    Floats: either sign, and a magnitude from 1/128 to below 2 (float16: below 2, too). Integers: any. bool: both. Text: the
    characters from @ to _. Times: below 2**40 units. Padding: zero. Raises ValueError for a dtype without such a form.
    """
    if dtype.fields:
        random, constant = bytearray(dtype.itemsize), bytearray(dtype.itemsize)
        for inner, offset, *_ in dtype.fields.values():
            part = pattern_of(inner)
            random[offset : offset + inner.itemsize] = part.random
            constant[offset : offset + inner.itemsize] = part.constant
        return Pattern(bytes(random), bytes(constant))
    if dtype.subdtype:
        inner, _ = dtype.subdtype
        part = pattern_of(inner)
        count = dtype.itemsize // (inner.itemsize or 1)
        return Pattern(part.random * count, part.constant * count)
    return _scalar_pattern(dtype)


def _scalar_pattern(dtype: np.dtype[Any]) -> Pattern:
    order: Any = sys.byteorder if dtype.isnative else {"little": "big", "big": "little"}[sys.byteorder]
    size = dtype.itemsize
    if dtype.kind == "f":
        return _float_pattern(np.finfo(dtype), size, order)
    if dtype.kind == "c":
        part = _float_pattern(np.finfo(dtype), size // 2, order)
        return Pattern(part.random * 2, part.constant * 2)
    if dtype.kind == "U":
        letters = size // 4
        return Pattern((0x1F).to_bytes(4, order) * letters, (0x40).to_bytes(4, order) * letters)
    if dtype.kind == "S":
        return Pattern(b"\x1f" * size, b"\x40" * size)
    if dtype.kind in "mM":
        return Pattern(((1 << 40) - 1).to_bytes(size, order), bytes(size))
    if dtype.kind not in "biuV" or dtype.hasobject:
        raise ValueError(f"dtype {dtype} has no random values: it is stored by pickle, or not at all")
    return Pattern((b"\x01" if dtype.kind == "b" else b"\xff") * size, bytes(size))


def _float_pattern(info: np.finfo[Any], size: int, order: Any) -> Pattern:
    """Three random bits of exponent below the bias, whose last bits are all ones: 2**-7 to 2**0."""
    mantissa, bias = info.nmant, (1 << (info.nexp - 1)) - 1
    if mantissa == 63:  # x87: the leading one is stored
        exponent_at, sign_at, leading = 64, 79, 1 << 63
    elif 1 + info.nexp + mantissa == 8 * size:  # IEEE 754
        exponent_at, sign_at, leading = mantissa, 8 * size - 1, 0
    else:
        raise ValueError(f"floats of {mantissa} bits of mantissa in {size} bytes are not known here")
    random = 1 << sign_at | 7 << exponent_at | (1 << mantissa) - 1
    constant = (bias & ~7) << exponent_at | leading
    return Pattern(random.to_bytes(size, order), constant.to_bytes(size, order))


def fill(out: NDArray[np.uint8], pattern: Pattern, seed: int | None) -> int:
    """Fill `out`, which begins at a multiple of 8, with whole items of `pattern`; returns its CRC-32.

    The same `seed` gives the same bytes, None others at each call. Large arrays are filled in the I/O threads.
    """
    period = math.lcm(len(pattern.random) or 1, 8)
    block = period * max(1, min(BLOCK_BYTES, out.nbytes + period - 1) // period)
    num_blocks = out.nbytes // block
    num_columns = math.isqrt(num_blocks) + 1
    num_rows = num_blocks // num_columns + 1
    rows = _random_blocks(num_rows + num_columns, block, pattern, seed)
    columns, rows = rows[num_rows:], rows[:num_rows]
    rows ^= np.frombuffer(pattern.constant * (block // (len(pattern.constant) or 1)) or bytes(block), np.uint64)
    whole = out[: num_blocks * block].view(np.uint64).reshape(num_blocks, block // 8)

    def fill_row(row: int) -> None:
        here = whole[row * num_columns : (row + 1) * num_columns]
        np.bitwise_xor(columns[: len(here)], rows[row], out=here)

    for _, error in runtime.each(fill_row, range(num_rows), window=_window(out.nbytes)):
        if error is not None:
            raise error
    last = (rows[-1] ^ columns[-1]).view(np.uint8)[: out.nbytes - num_blocks * block]
    out[num_blocks * block :] = last
    return crc.combined(_crc_of_grid(rows, columns, num_blocks), zlib.crc32(last), last.nbytes)


def _window(num_bytes: int) -> int:
    return 1 if num_bytes < PARALLEL_FROM else crc.num_cores()


def _random_blocks(count: int, block: int, pattern: Pattern, seed: int | None) -> NDArray[np.uint64]:
    words = np.random.default_rng(seed).integers(0, (1 << 64) - 1, (count, block // 8), np.uint64, endpoint=True)
    if pattern.random.count(b"\xff") < len(pattern.random):
        words &= np.frombuffer(pattern.random * (block // len(pattern.random)), np.uint64)
    return words


def _crc_of_grid(rows: Words, columns: Words, num_blocks: int) -> int:
    """The CRC-32 of `num_blocks` blocks rows[i] ^ columns[j], row by row, from those of rows and columns.

    A row of m blocks is the sum of the columns' part, which is the same for all rows, and of the CRC of its A times
    1 + s + … + s**(m - 1), where s appends a block.
    """
    block = rows.shape[1] * 8
    append, zeros = crc.shift(block), zlib.crc32(bytes(block))
    column_parts, factors = [0], [0]
    for column in columns:
        column_parts.append(crc.product(append, column_parts[-1]) ^ zlib.crc32(column) ^ zeros)
        factors.append(crc.product(append, factors[-1]) ^ crc.ONE)
    total = 0
    for row in rows:
        count = min(num_blocks, len(columns))
        num_blocks -= count
        part = crc.product(factors[count], zlib.crc32(row)) ^ column_parts[count]
        total = crc.combined(total, part, count * block)
    return total
