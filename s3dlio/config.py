"""Every environment variable and option, with unit and default: the only reader of `os.environ`.

| variable | field | default |
|---|---|---|
| `S3DLIO_ENABLE_RANGE_OPTIMIZATION` | `range_enabled` | on: large objects come as parallel ranges |
| `S3DLIO_RANGE_THRESHOLD_MB` | `range_threshold_bytes` | 32 MiB: the length of the first request |
| `S3DLIO_RANGE_CONCURRENCY` | `range_concurrency` | 8 ranges of one object in flight |
| `S3DLIO_CHUNK_SIZE` | `chunk_bytes` | 8 MiB: the length of each further range |
| `S3DLIO_WORKER_THREADS`, `S3DLIO_RT_THREADS` | `worker_threads` | 16 I/O threads at most |
| `S3DLIO_BUFFER_POOL_MB` | `pool_bytes` | 256 MiB of buffers kept for re-use |

An unknown `S3DLIO_*` variable is warned about once per process.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .errors import ConfigError

__all__ = ["MIB", "Options", "launched_ranks", "snapshot"]

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Options:
    """One consistent view of the environment, taken once per public call."""

    range_enabled: bool = True
    range_threshold_bytes: int = 32 * MIB
    range_concurrency: int = 8
    chunk_bytes: int = 8 * MIB
    worker_threads: int = 16
    pool_bytes: int = 256 * MIB


_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _boolean(name: str, text: str) -> bool:
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise ConfigError(f"{name}={text!r} is neither true nor false: use one of {', '.join(_WORDS)}") from None


def _whole_number(minimum: int, unit: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ConfigError(f"{name}={text!r} is no whole number") from None
        if number < minimum:
            raise ConfigError(f"{name}={text!r} is too small: {minimum} at least")
        return number * unit

    return read


_VARIABLES: dict[str, tuple[str, Callable[[str, str], int]]] = {
    "S3DLIO_ENABLE_RANGE_OPTIMIZATION": ("range_enabled", _boolean),
    "S3DLIO_RANGE_THRESHOLD_MB": ("range_threshold_bytes", _whole_number(1, MIB)),
    "S3DLIO_RANGE_CONCURRENCY": ("range_concurrency", _whole_number(1, 1)),
    "S3DLIO_CHUNK_SIZE": ("chunk_bytes", _whole_number(4096, 1)),
    "S3DLIO_RT_THREADS": ("worker_threads", _whole_number(1, 1)),
    "S3DLIO_WORKER_THREADS": ("worker_threads", _whole_number(1, 1)),
    "S3DLIO_BUFFER_POOL_MB": ("pool_bytes", _whole_number(0, MIB)),
}
# Read by the recipes, not by the package.
_KNOWN_ELSEWHERE = {"S3DLIO_URI"}


def snapshot() -> Options:
    """The options as the environment has them now. Raises ConfigError for a value that cannot be read."""
    _warn_about_unknown_names()
    return _parse(tuple(map(os.environ.get, _VARIABLES)))


@lru_cache(maxsize=64)
def _parse(values: tuple[str | None, ...]) -> Options:
    fields: dict[str, Any] = {}
    for (name, (field, read)), text in zip(_VARIABLES.items(), values, strict=True):
        if text:
            fields[field] = read(name, text)
    return Options(**fields)


@lru_cache(maxsize=1)
def _warn_about_unknown_names() -> None:
    known = _VARIABLES.keys() | _KNOWN_ELSEWHERE
    unknown = sorted(name for name in os.environ if name.startswith("S3DLIO_") and name not in known)
    if unknown:
        warnings.warn(
            f"these environment variables have no effect: {', '.join(unknown)}; s3dlio reads {', '.join(sorted(known))}",
            stacklevel=4,
        )


def launched_ranks() -> tuple[int, int]:
    """(rank, world size) as a launcher such as torchrun tells them by RANK and WORLD_SIZE; (0, 1) without one."""
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if not rank or not world_size:
        return 0, 1
    return _whole_number(0, 1)("RANK", rank), _whole_number(1, 1)("WORLD_SIZE", world_size)
