"""The Store protocol: six verbs on keys, plain data in and out.

A Store knows one container of one scheme. Everything above it (parallel ranges, windows, writers, globs) is written
once, in terms of these verbs, and so works on every scheme.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from .. import runtime
from ..errors import ConfigError

__all__ = [
    "Destination",
    "HasBuckets",
    "HasDirectories",
    "HasUploads",
    "Limits",
    "ObjectInfo",
    "Outcome",
    "Page",
    "Read",
    "ReadResult",
    "Store",
    "Tally",
    "Upload",
    "clamp",
    "read_each",
    "refuse_version",
    "retries",
]


_NOTHING_MORE: Mapping[str, Any] = MappingProxyType({})


class ObjectInfo(NamedTuple):
    """What a store knows of an object. `attributes` holds the rarer facts, by the names that `stat` gives them."""

    key: str
    size: int
    etag: str | None = None
    last_modified: float | None = None  # seconds since 1970, UTC
    attributes: Mapping[str, Any] = _NOTHING_MORE


class Page(NamedTuple):
    """A part of a listing, in the order of keys: objects, and with a delimiter the sub-prefixes (ending in it)."""

    objects: list[ObjectInfo]
    prefixes: list[str]


Destination: TypeAlias = Callable[[ObjectInfo, int], memoryview]
"""Called once per read with the object's facts and the number of bytes that come: gives the memory for them."""


class Read(NamedTuple):
    """One request: `length` bytes from `start` (None: to the end), of the version `match` (an etag) if told.

    `version` is the store's own id of an older version. `tag` is the caller's number for it, since reads end in any order.
    `ask_first` lets a remote store ask for the size before it reads.
    """

    key: str
    start: int
    length: int | None
    into: Destination
    match: str | None = None
    tag: int = 0
    version: str | None = None
    ask_first: bool = False


class ReadResult(NamedTuple):
    """The object's facts, and the filled part of the destination: shorter than asked only where the object ends."""

    info: ObjectInfo
    data: memoryview


Outcome: TypeAlias = tuple[Read, ReadResult | BaseException]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the requests of a store have to keep to. Sizes in bytes."""

    parallel_ranges: bool = False  # do several ranges of one object at once pay?
    parallel_parts: int = 1  # parts of one upload in flight at most
    min_part: int = 1  # of every part but the last
    max_part: int = 1 << 40
    max_parts: int = 1 << 40
    max_put: int = 1 << 60


class Tally:
    """A number that any thread may raise, without a lock."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.count = 0

    def add(self) -> None:
        self.count = next(self._numbers)


retries = Tally()
"""How often a request of this process was tried again."""


class Upload(Protocol):
    """An object in the making: invisible until `complete`, gone after `abort`."""

    def part(self, number: int, offset: int, data: Sequence[memoryview]) -> None:
        """Store part `number` (from 1), which starts at byte `offset`; the buffers are read before this returns."""

    def complete(self, *, if_match: str | None = None, if_absent: bool = False) -> ObjectInfo:
        """Publish the object under its name, atomically and durably."""

    def abort(self) -> None:
        """Drop all parts. Harmless after `complete`, when called twice, or in a forked child."""


class Store(Protocol):
    """The six verbs. All of them block, raise errors of the family that name the URI, and may be called by any thread."""

    root: str
    limits: Limits

    def stat(self, key: str, version: str | None = None) -> ObjectInfo:
        """Raises NotFoundError when there is no such object, ConfigError where `version` is told and none are kept."""

    def read(self, read: Read) -> ReadResult:
        """ONE request, straight into the destination. Past the object's end the data is empty."""

    def read_many(self, reads: Iterable[Read], *, window: int) -> Iterator[Outcome]:
        """Perform reads, at most `window` of them begun and not yet consumed; they come as they end.

        `reads` may pause: an iterator that has ended is asked again when an outcome was consumed.
        """

    def list(self, prefix: str, *, recursive: bool) -> Iterator[Page]:
        """Stream the keys that start with `prefix`; without `recursive`, one level, cut at the next slash."""

    def put(
        self, key: str, data: memoryview, *, if_match: str | None = None, if_absent: bool = False, durable: bool = False
    ) -> ObjectInfo:
        """ONE request: the whole object or nothing. `durable` asks for what survives a power loss."""

    def delete(self, key: str) -> None:
        """Remove exactly this object; a missing one is fine."""

    def begin_upload(self, key: str) -> Upload:
        """Start an object that is written in parts."""


@runtime_checkable
class HasBuckets(Protocol):
    """A store whose container can be made and removed."""

    def create_bucket(self) -> None:
        """Make the container; one's own existing one is fine."""

    def delete_bucket(self) -> None:
        """Remove the container, which must be empty."""


@runtime_checkable
class HasDirectories(Protocol):
    """A store whose prefixes are real directories."""

    def mkdir(self, key: str) -> None:
        """Make a directory with its parents; an existing one is fine."""

    def delete_tree(self, key: str) -> None:
        """Remove the file or directory `key` with all that it holds; links are removed, not followed."""


@runtime_checkable
class HasUploads(Protocol):
    """A store that remembers uploads which nobody ended, as those of a killed process."""

    def drop_uploads(self, prefix: str, before: float) -> int:
        """Abort those of keys that start with `prefix` and begun before that time (seconds since 1970); how many."""


def read_each(
    store: Store,
    reads: Iterable[Read],
    *,
    window: int,
    begin: Callable[[Read], ReadResult | Exception | runtime.Later | None] | None = None,
) -> Iterator[Outcome]:
    """`read_many` for a store whose `read` blocks: in the I/O threads. `begin` is that of `runtime.each`."""
    return runtime.each(store.read, reads, window=window, begin=begin)


def refuse_version(root: str, version: str | None) -> None:
    """For stores that keep one version of each object."""
    if version is not None:
        raise ConfigError(f"{root} keeps no versions: leave version_id={version!r} out")


def clamp(start: int, length: int | None, size: int) -> int:
    """How many bytes a read of `length` from `start` gives on an object of `size` bytes."""
    available = max(0, size - start)
    return available if length is None else min(length, available)
