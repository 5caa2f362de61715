"""Plain PyTorch mapping a checkpoint: torch.load(path, mmap=True), and every page touched, or else nothing was read."""

from __future__ import annotations

from typing import Any

import torch
from checkpoints import loading
from harness import Run, main

PAGE_FLOATS = 1024


def load(uri: str) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(uri.partition("://")[2], mmap=True, weights_only=True)
    for tensor in state.values():
        tensor[::PAGE_FLOATS].sum()
    return state


def work_load(plan: dict[str, Any]) -> Run:
    return loading(plan, load)


if __name__ == "__main__":
    main(globals())
