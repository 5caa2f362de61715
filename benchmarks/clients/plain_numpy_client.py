"""Plain numpy reading files: np.fromfile, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Run, main


def read(uri: str) -> np.ndarray[Any, Any]:
    return np.fromfile(uri.partition("://")[2], dtype=np.uint8)


def work_get(plan: dict[str, Any]) -> Run:
    return lambda: map(read, plan["uris"])


def work_get_many(plan: dict[str, Any]) -> Run:
    return lambda: list(map(read, plan["uris"]))


if __name__ == "__main__":
    main(globals())
