"""Tensors as bytes, and where a part of one lies in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ..view import as_buffer

__all__ = ["PIECE_BYTES", "Region", "is_plain", "memory_of", "pieces", "region", "strides_of"]

PIECE_BYTES = 4 * 1024 * 1024  # of what has to be copied before it is written


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor in main memory, which are not copied."""
    if not tensor.numel():
        return memoryview(b"")
    return as_buffer(tensor.detach().reshape(-1).view(torch.uint8).numpy())


def is_plain(tensor: torch.Tensor) -> bool:
    """Is it nothing but its elements?"""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
    )


def pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The elements in C order: the tensor's own memory where it lies so, else copies of `PIECE_BYTES` and little more."""
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        yield memory_of(tensor)
    elif tensor.nbytes <= PIECE_BYTES or not tensor.dim():
        yield memory_of(tensor.resolve_conj().resolve_neg().contiguous().cpu())
    elif len(tensor) == 1:
        yield from pieces(tensor[0])
    else:
        num_rows = max(1, PIECE_BYTES // (tensor.nbytes // len(tensor)))
        for start in range(0, len(tensor), num_rows):
            yield from pieces(tensor[start : start + num_rows])


def strides_of(size: Sequence[int]) -> tuple[int, ...]:
    """The steps, in elements, of a tensor in C order."""
    return tuple(math.prod(size[dim + 1 :]) for dim in range(len(size)))


class Region(NamedTuple):
    """Elements [start, start + length) of a tensor in C order hold a box of it; `is_exact` when they hold nothing else."""

    start: int
    length: int
    is_exact: bool


def region(size: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> Region:
    """The run of elements that holds the box of `lengths` at `offsets` in a tensor of `size`.

    Where it holds others, too, it consists of whole rows (slices of the first dimension).
    """
    if not len(size):
        return Region(0, 1, True)
    strides = strides_of(size)
    inner = len(size) - 1  # the first dimension behind which all is wanted
    while inner > 0 and lengths[inner] == size[inner]:
        inner -= 1
    if all(length == 1 for length in lengths[:inner]) or 0 in lengths:
        start = sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
        return Region(start, math.prod(lengths), True)
    return Region(offsets[0] * strides[0], lengths[0] * strides[0], False)
