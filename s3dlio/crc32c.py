"""CRC-32C (Castagnoli; RFC 3720, appendix B.4), for which processors have an instruction: by the optional package crc32c."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from .errors import MissingPackageError
from .loading import gate

__all__ = ["Update", "find", "load"]

Update = Callable[..., int]
"""The CRC of a buffer of bytes, or of what has the CRC that follows as second argument and then these bytes."""


@cache
def find() -> Update | None:
    """The function of the package, None where it is not installed. It is looked for once per process."""
    with gate:
        try:
            from crc32c import crc32c
        except ImportError:
            return None
    return crc32c


def load(need: str, extra: str) -> Update:
    """The function of the package. Raises MissingPackageError, which says the `need` and the `extra` to install."""
    update = find()
    if update is None:
        raise MissingPackageError(f"{need}: pip install 's3dlio[{extra}]'")
    return update
