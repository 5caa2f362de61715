"""Plain PyTorch reading a checkpoint from a file: torch.load(path)."""

from __future__ import annotations

from typing import Any

import torch
from checkpoints import loading
from harness import Run, main


def work_load(plan: dict[str, Any]) -> Run:
    return loading(plan, lambda uri: torch.load(uri.partition("://")[2], weights_only=True))


if __name__ == "__main__":
    main(globals())
