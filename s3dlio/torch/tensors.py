"""Tensors as bytes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..view import as_buffer

__all__ = ["PIECE_BYTES", "is_plain", "memory_of", "pieces"]

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
