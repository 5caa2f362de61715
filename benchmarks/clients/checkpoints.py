"""The state that is saved and loaded, and how: torch.save and torch.load on a file object of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

NUM_TENSORS = 8


def state(size: int) -> dict[str, torch.Tensor]:
    """The same tensors in every process, `size` bytes in all."""
    generator = torch.Generator().manual_seed(7)
    return {f"layer.{n}": torch.randn(size // NUM_TENSORS // 4, generator=generator) for n in range(NUM_TENSORS)}


def saving(plan: dict[str, Any], open_writer: Callable[[str], Any]) -> Callable[[], Iterator[bytes]]:
    """Save the state; what was stored is verified from outside."""
    tensors = state(plan["size"])

    def run() -> Iterator[bytes]:
        with open_writer(plan["uris"][0]) as file:
            torch.save(tensors, file)
        yield b""

    return run


def loading(plan: dict[str, Any], load: Callable[[str], dict[str, torch.Tensor]]) -> Callable[[], Iterator[Any]]:
    """Load the state and hand out its tensors."""

    def run() -> Iterator[Any]:
        for uri in plan["uris"]:
            yield from (tensor.numpy() for tensor in load(uri).values())

    return run
