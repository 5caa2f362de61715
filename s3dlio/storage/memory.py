"""`memory://bucket/key`: objects in this process, the oracle of the tests. A forked child has its own copy from then on."""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import ChangedError, NotFoundError, PreconditionFailedError, S3dlioError
from ..runtime import after_fork
from ..uri import sort_key
from .base import Limits, ObjectInfo, Outcome, Page, Read, ReadResult, clamp, read_each, refuse_version

__all__ = ["MemoryStore", "MemoryUpload", "open_container", "options"]

PAGE_LENGTH = 1000
_generations = itertools.count(1)
_stores: dict[str, MemoryStore] = {}


def options() -> None:
    """There is nothing to set."""


def open_container(scheme: str, container: str, _options: None = None) -> MemoryStore:
    """The bucket of this process that has the name; an empty one the first time."""
    return _stores.setdefault(container, MemoryStore(f"{scheme}://{container}/"))


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    info: ObjectInfo


class MemoryStore:
    """A dictionary of immutable objects."""

    limits = Limits(parallel_ranges=True, parallel_parts=4)

    def __init__(self, root: str) -> None:
        self.root = root
        self._objects: dict[str, _Object] = {}
        self._lock = threading.Lock()
        after_fork(self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def _get(self, key: str) -> _Object:
        try:
            return self._objects[key]
        except KeyError:
            raise NotFoundError(f"no object {self.root}{key}: check the name, or list its parent") from None

    def stat(self, key: str, version: str | None = None) -> ObjectInfo:
        refuse_version(self.root, version)
        return self._get(key).info

    def read(self, read: Read) -> ReadResult:
        refuse_version(self.root, read.version)
        found = self._get(read.key)
        if read.match is not None and read.match != found.info.etag:
            raise ChangedError(f"{self.root}{read.key} was replaced while it was read: read it again")
        count = clamp(read.start, read.length, found.info.size)
        into = read.into(found.info, count)
        into[:] = memoryview(found.data)[read.start : read.start + count]
        return ReadResult(found.info, into)

    def read_many(self, reads: Iterable[Read], *, window: int) -> Iterator[Outcome]:
        return read_each(self, reads, window=window)

    def list(self, prefix: str, *, recursive: bool) -> Iterator[Page]:
        with self._lock:
            keys = sorted(self._objects, key=sort_key)
        keys = keys[bisect_left(keys, sort_key(prefix), key=sort_key) :]
        entries = self._entries(keys, prefix, recursive)
        while chunk := list(itertools.islice(entries, PAGE_LENGTH)):
            objects = [entry for entry in chunk if isinstance(entry, ObjectInfo)]
            yield Page(objects, [entry for entry in chunk if isinstance(entry, str)])

    def _entries(self, keys: Iterable[str], prefix: str, recursive: bool) -> Iterator[ObjectInfo | str]:
        last_prefix = None
        for key in itertools.takewhile(lambda key: key.startswith(prefix), keys):
            name, slash, _ = key[len(prefix) :].partition("/")
            if slash and not recursive:
                if last_prefix != prefix + name + slash:
                    last_prefix = prefix + name + slash
                    yield last_prefix
            elif (found := self._objects.get(key)) is not None:
                yield found.info

    def put(
        self, key: str, data: memoryview, *, if_match: str | None = None, if_absent: bool = False, durable: bool = False
    ) -> ObjectInfo:
        content = bytes(data)
        info = ObjectInfo(key, len(content), f"{next(_generations):x}", time.time())
        with self._lock:
            current = self._objects.get(key)
            if if_absent and current is not None:
                raise PreconditionFailedError(f"{self.root}{key} exists already: choose another name or delete it")
            if if_match is not None and (current is None or current.info.etag != if_match):
                raise PreconditionFailedError(f"{self.root}{key} is not the version {if_match} any more: read it again")
            self._objects[key] = _Object(content, info)
        return info

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def begin_upload(self, key: str) -> MemoryUpload:
        return MemoryUpload(self, key)


class MemoryUpload:
    """Parts by offset, joined at the end."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store = store
        self._key = key
        self._parts: dict[int, bytes] | None = {}

    def _open_parts(self) -> dict[int, bytes]:
        if self._parts is None:
            raise S3dlioError(f"the upload of {self._store.root}{self._key} has ended already: begin another")
        return self._parts

    def part(self, number: int, offset: int, data: Sequence[memoryview]) -> None:
        self._open_parts()[offset] = b"".join(data)

    def complete(self, *, if_match: str | None = None, if_absent: bool = False) -> ObjectInfo:
        parts = self._open_parts()
        content = b"".join(parts[offset] for offset in sorted(parts))
        info = self._store.put(self._key, memoryview(content), if_match=if_match, if_absent=if_absent)
        self._parts = None
        return info

    def abort(self) -> None:
        self._parts = None
