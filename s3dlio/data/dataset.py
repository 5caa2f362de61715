"""`PyDataset`: the names of objects, by index or by a loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import bulk, objects
from .. import uri as uris_
from ..errors import ConfigError
from ..runtime import twin
from ..view import BytesView
from .keys import KeyList

__all__ = ["PyDataset"]


class PyDataset:
    """The objects under a prefix, or those of a list: a map-style dataset, and what a `PyBytesAsyncDataLoader` reads.

    `prefix_uri` is listed once, here and recursively: markers are left out, names are sorted by their UTF-8 bytes, and an
    empty result is a NotFoundError that names it. `pattern` (also as `{"pattern": …}`) is a glob, or `re:…`, on the key
    below the prefix. Names are kept compactly (`data.keys`), are shared by forked processes and pickle.

    An item is the object as it is when it is read, whole and of one version, whatever it was when the prefix was listed;
    one that was deleted meanwhile is a NotFoundError.
    """

    def __init__(self, prefix_uri: str, opts: Mapping[str, Any] | None = None, *, pattern: str | None = None) -> None:
        unknown = set(opts or {}) - {"pattern"}
        if unknown:
            raise ConfigError(
                f"unknown option {sorted(unknown)} of PyDataset: it takes 'pattern' (str); others are a loader's"
            )
        self._names = KeyList.from_listing(prefix_uri, (opts or {}).get("pattern", pattern))

    @classmethod
    def from_uris(cls, uris: Iterable[str]) -> PyDataset:
        """A dataset of these objects, in this order, without listing anything.

        Raises ConfigError (a RuntimeError and a ValueError) for an empty list, for URIs of several schemes and for one that
        names no object.
        """
        if isinstance(uris, str):
            raise TypeError(f"expected a list of URIs, not the single URI {uris!r}: write [{uris!r}]")
        dataset = cls.__new__(cls)
        dataset._names = KeyList(_of_one_scheme(uris))
        if not len(dataset._names):
            raise ConfigError("the list of URIs is empty: a dataset needs at least one object")
        return dataset

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> BytesView:
        """Read one object; a negative index counts from the end."""
        return objects.get(self._names[index])

    def __getitems__(self, indices: Sequence[int]) -> list[BytesView]:
        """Read a batch at once, as a DataLoader asks for it."""
        return bulk.get_many([self._names[index] for index in indices])

    def __iter__(self) -> Iterator[BytesView]:
        return bulk.stream(self._names, window=32)

    def keys(self) -> KeyList:
        """The full URIs, in the order of the indices: a sequence of str."""
        return self._names

    def uris(self) -> KeyList:
        """The same as `keys`."""
        return self._names

    def _get_item(self, index: int) -> BytesView:
        return self[index]

    get_item = twin(_get_item)

    def __repr__(self) -> str:
        return f"PyDataset({self._names!r})"


def _of_one_scheme(uris: Iterable[str]) -> Iterator[str]:
    first = ""
    for uri in uris:
        location = uris_.parse(uri)
        if not location.key:
            raise ConfigError(f"{uri!r} names a bucket, not an object: write {location.root}key")
        first = first or location.scheme
        if location.scheme != first:
            raise ConfigError(f"the list begins with {first}:// and has {uri!r}: a dataset is of one scheme")
        yield uri
