"""A list of names as one blob of bytes plus offsets: 50 million names in a few gigabytes, shared by forked workers.

A Python list of strings costs about 100 bytes a name beyond its text, and every touch of a string writes to its
reference count, so that each forked worker soon owns a copy of all of them. Here nothing is touched but two buffers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from .. import listing
from .. import uri as uris
from ..errors import NotFoundError

__all__ = ["KeyList"]


class KeyList(Sequence[str]):
    """An immutable sequence of URIs. Compact to pickle; a slice is a list of str."""

    __slots__ = ("_blob", "_offsets", "_prefix")

    def __init__(self, uris: Iterable[str] = (), *, prefix: str = "") -> None:
        """`prefix` is a beginning that all `uris` share; it is stored once."""
        blob = bytearray()
        offsets = array("Q", [0])
        skip = len(prefix)
        for uri in uris:
            if not isinstance(uri, str):
                raise TypeError(f"a URI is a str, not {type(uri).__name__}")
            blob += uri[skip:].encode("utf-8", "surrogateescape")
            offsets.append(len(blob))
        self._prefix = prefix
        self._blob = bytes(blob)
        self._offsets = offsets

    @classmethod
    def from_listing(cls, uri: str, pattern: str | None = None) -> KeyList:
        """All objects under `uri` but markers, sorted by their UTF-8 bytes.

        Raises NotFoundError, naming the URI, when there is none.
        """
        entries = listing.walk(uri, recursive=True, pattern=pattern)
        names = sorted((name for name, _ in entries if not name.endswith("/")), key=uris.sort_key)
        if not names:
            suffix = "" if pattern is None else f" that match pattern={pattern!r}"
            raise NotFoundError(f"no objects under {uri}{suffix}: check the name, or list its parent")
        return cls(names, prefix=uris.parse(uri).root)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = index.__index__()
        number += len(self) if number < 0 else 0
        if not 0 <= number < len(self):
            raise IndexError(f"index {index} is out of range: there are {len(self)} objects")
        text = self._blob[self._offsets[number] : self._offsets[number + 1]]
        return self._prefix + text.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return self.pick(range(len(self)))

    def pick(self, indices: Iterable[int]) -> Iterator[str]:
        """The names at `indices`, ints in [0, len): faster than asking one by one."""
        blob, offsets, prefix = self._blob, self._offsets, self._prefix
        for index in indices:
            yield prefix + blob[offsets[index] : offsets[index + 1]].decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyList):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"KeyList({len(self)} names{f', {self[0]} …' if len(self) else ''})"

    @property
    def num_bytes(self) -> int:
        """Memory that the names take."""
        return len(self._blob) + self._offsets.itemsize * len(self._offsets)
