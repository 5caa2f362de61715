"""Small objects, and small parts of large ones, as bytes: one request each."""

from __future__ import annotations

from ..storage.base import ObjectInfo, Read, Store
from ..view import empty

__all__ = ["part", "read_part"]


def part(key: str, start: int = 0, length: int | None = None, match: str | None = None) -> Read:
    """The request for `length` bytes from `start` (None: to the end), of the version `match` if told. Its memory is new."""
    return Read(key, start, length, _memory, match)


def read_part(
    store: Store, key: str, start: int = 0, length: int | None = None, match: str | None = None
) -> tuple[ObjectInfo, bytes]:
    """The facts about an object, and these bytes of it. Raises NotFoundError when it is missing."""
    info, data = store.read(part(key, start, length, match))
    return info, data.tobytes()


def _memory(_: ObjectInfo, num_bytes: int) -> memoryview:
    return memoryview(empty(num_bytes))
