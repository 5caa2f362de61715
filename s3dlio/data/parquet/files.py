"""The Parquet files under a URI, and their footers, kept per process as long as a file stays the same.

A footer is remembered with size and etag (without one, the time of modification) of the file it was read from, and counts
only for that very file. The listing that every loader makes anyway tells these facts, so that a second loader reads no
footer of a file that did not change, and none is believed that did. A forked child keeps what the parent knew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ... import listing, runtime
from ... import uri as uris
from ...config import MIB
from ...errors import ChangedError, CorruptDataError, NotFoundError, S3dlioError
from ...runtime import after_fork
from ...storage.base import ObjectInfo, Read, Store
from ...view import empty
from .footer import ENCRYPTED, MAGIC, TAIL_BYTES
from .index import FileIndex, check_version, damaged, replaced

__all__ = ["Version", "cache", "find", "indexes", "sound_indexes", "version_of"]

CACHE_BYTES = 256 * MIB
FOOTERS_IN_FLIGHT = 16
LIKELY_BYTES, LIKELY_SHARE = 128 * 1024, 512  # footers are seldom longer than this, and than this part of their file
SMALLEST = len(MAGIC) + TAIL_BYTES
_ENCRYPTED = b"PARE"


class Version(NamedTuple):
    """What tells two versions of a file apart."""

    size: int
    etag: str | None
    last_modified: float | None  # only where there is no etag


def version_of(info: ObjectInfo) -> Version:
    """The version of a file as its listing or a read of it tells."""
    return Version(info.size, info.etag, None if info.etag else info.last_modified)


class _Cache:
    """Indexes of files by URI, the least recently used ones dropped first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._known: OrderedDict[str, FileIndex] = OrderedDict()
        self._num_bytes = 0
        self._renew_lock()
        after_fork(self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, uri: str, info: ObjectInfo) -> FileIndex | None:
        """The index of this version of the file, if it is known."""
        with self._lock:
            known = self._known.get(uri)
            if known is None:
                return None
            if version_of(known.info) != version_of(info):
                self.drop(uri)
                return None
            self._known.move_to_end(uri)
            return known

    def last(self, uri: str) -> FileIndex | None:
        """The index of the version that was seen last: for reads that find out when it is not the present one."""
        return self._known.get(uri)

    def put(self, index: FileIndex) -> None:
        """Remember an index, in the place of that of an older version."""
        with self._lock:
            self.drop(index.uri)
            self._known[index.uri] = index
            self._num_bytes += index.num_bytes
            while self._num_bytes > self.limit:
                self.drop(next(iter(self._known)))

    def drop(self, uri: str) -> bool:
        """Forget a file. Was it known?"""
        with self._lock:
            known = self._known.pop(uri, None)
            self._num_bytes -= known.num_bytes if known else 0
            return known is not None

    def clear(self) -> None:
        """Forget all files."""
        with self._lock:
            self._known.clear()
            self._num_bytes = 0


cache = _Cache(CACHE_BYTES)


def find(uri: str) -> list[tuple[str, ObjectInfo]]:
    """The Parquet files under `uri`, sorted: what ends in `.parquet` and has no name that Spark sets aside.

    Such names begin with a dot, or with an underscore and have no `=`, as `_SUCCESS` and `_temporary/…`. Raises
    NotFoundError, naming the URI, when there is no file.
    """
    base = len(uris.parse(uri).uri)
    found, num_others = [], 0
    for name, info in listing.walk(uri, recursive=True):
        if info is not None and name.endswith(".parquet") and not _is_set_aside(name[base:]):
            found.append((name, info))
        else:
            num_others += 1
    if not found:
        others = f", of {num_others} objects there" if num_others else ""
        raise NotFoundError(f"no .parquet files under {uri}{others}: check the name, or list its parent")
    return sorted(found, key=lambda entry: uris.sort_key(entry[0]))


def _is_set_aside(relative: str) -> bool:
    names = relative.split("/")
    return any(name.startswith(".") or (name.startswith("_") and "=" not in name) for name in names)


def indexes(store: Store, files: Iterable[tuple[str, ObjectInfo]], footer_cap: int) -> list[FileIndex]:
    """The index of each file, from the cache or else from its footer.

    Raises CorruptDataError, naming the file, for what is no Parquet file, ChangedError when it is replaced meanwhile.
    """
    return list(sound_indexes(store, files, footer_cap, _raise).values())


def sound_indexes(
    store: Store, files: Iterable[tuple[str, ObjectInfo]], footer_cap: int, note: Callable[[str, CorruptDataError], None]
) -> dict[str, FileIndex]:
    """The index of each file by its URI, in the order of `files`, but for what is no Parquet file: of that `note` learns."""
    files = list(files)
    known = {uri: index for uri, info in files if (index := cache.get(uri, info)) is not None}
    for uri, info, footer in _footers(store, [(uri, info) for uri, info in files if uri not in known], footer_cap):
        try:
            known[uri] = FileIndex(uri, info, _good(footer))
        except CorruptDataError as exc:
            note(uri, exc)
        else:
            cache.put(known[uri])
    return {uri: known[uri] for uri, _ in files if uri in known}


def _raise(_: str, error: CorruptDataError) -> None:
    raise error


def _good(footer: bytes | CorruptDataError) -> bytes:
    if isinstance(footer, CorruptDataError):
        raise footer
    return footer


class _Piece(NamedTuple):
    """Bytes of a file that hold its footer, or a part of it."""

    uri: str
    info: ObjectInfo
    start: int
    length: int


def _footers(
    store: Store, files: list[tuple[str, ObjectInfo]], cap: int
) -> Iterator[tuple[str, ObjectInfo, bytes | CorruptDataError]]:
    """The footer of each file: one request of at most `cap` bytes, and another one of what is missing."""
    rest: list[_Piece] = []
    tails: dict[str, bytes] = {}
    for uri, info in files:
        if info.size < SMALLEST:
            yield uri, info, damaged(uri, f"it is no Parquet file: it has {info.size} bytes only")
    for piece, tail in _read(store, [_tail_of(uri, info, cap) for uri, info in files if info.size >= SMALLEST]):
        try:
            begin = piece.info.size - TAIL_BYTES - _footer_length(piece, tail)
        except CorruptDataError as exc:
            yield piece.uri, piece.info, exc
            continue
        if begin >= piece.start:
            yield piece.uri, piece.info, bytes(tail[begin - piece.start : -TAIL_BYTES])
        else:
            rest.append(piece._replace(start=begin, length=piece.start - begin))
            tails[piece.uri] = bytes(tail[:-TAIL_BYTES])
    for piece, head in _read(store, rest):
        yield piece.uri, piece.info, bytes(head) + tails.pop(piece.uri)


def _tail_of(uri: str, info: ObjectInfo, cap: int) -> _Piece:
    length = min(info.size, max(TAIL_BYTES, min(cap, max(LIKELY_BYTES, info.size // LIKELY_SHARE))))
    return _Piece(uri, info, info.size - length, length)


def _footer_length(piece: _Piece, tail: memoryview) -> int:
    """As it stands before the magic at the file's end."""
    magic = bytes(tail[-len(MAGIC) :])
    if magic == _ENCRYPTED:
        raise S3dlioError(f"cannot read {piece.uri}: {ENCRYPTED}")
    length = int.from_bytes(tail[-TAIL_BYTES : -len(MAGIC)], "little")
    if magic != MAGIC:
        raise damaged(piece.uri, f"it is no Parquet file, or not a whole one: it ends in {magic!r}, not in {MAGIC!r}")
    size = piece.info.size
    if not 0 < length <= size - TAIL_BYTES - len(MAGIC):
        raise damaged(piece.uri, f"a footer of {length} bytes does not fit into its {size} bytes")
    return length


def _read(store: Store, pieces: Iterable[_Piece]) -> Iterator[tuple[_Piece, memoryview]]:
    """The bytes of each piece, as they come."""

    def read(piece: _Piece) -> memoryview:
        try:
            result = store.read(Read(piece.info.key, piece.start, piece.length, _fresh, piece.info.etag))
        except ChangedError as exc:
            raise replaced(piece.uri) from exc
        check_version(piece.uri, piece.info, result, piece.length)
        return result.data

    for piece, result in runtime.each(read, pieces, window=FOOTERS_IN_FLIGHT, patience=runtime.PATIENCE):
        if isinstance(result, BaseException):
            raise result
        yield piece, result


def _fresh(_: ObjectInfo, length: int) -> memoryview:
    return memoryview(empty(length))
