"""What is known of Parquet files before their data is read: footers, kept per process as long as a file stays the same.

A footer is remembered with size and etag (without one, the time of modification) of the file it was read from, and counts
only for that very file. The listing that every loader makes anyway tells these facts, so that a second loader reads no
footer of a file that did not change, and none is believed that did. A forked child keeps what the parent knew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

from ... import listing, runtime
from ... import uri as uris
from ...config import MIB
from ...errors import ChangedError, CorruptDataError, IncompleteReadError, MissingPackageError, NotFoundError, S3dlioError
from ...loading import gate
from ...runtime import after_fork
from ...storage.base import ObjectInfo, Read, ReadResult, Store
from ...view import empty
from .footer import MAGIC, TAIL_BYTES, Chunk, Footer

__all__ = ["FileIndex", "Version", "cache", "check_version", "find", "indexes", "pyarrow", "replaced", "version_of"]

CACHE_BYTES = 256 * MIB
WEIGHT = 6  # memory of a parsed footer, as a multiple of its length
FOOTERS_IN_FLIGHT = 16
LIKELY_BYTES, LIKELY_SHARE = 128 * 1024, 512  # footers are seldom longer than this, and than this part of their file
_ENCRYPTED = b"PARE"


def pyarrow() -> Any:
    """pyarrow with its Parquet part. Raises MissingPackageError where it is not installed."""
    try:
        with gate:
            import pyarrow as package
            import pyarrow.parquet
    except ImportError as exc:
        raise MissingPackageError("reading Parquet needs pyarrow: pip install 's3dlio[parquet]'") from exc
    return package


class Version(NamedTuple):
    """What tells two versions of a file apart."""

    size: int
    etag: str | None
    last_modified: float | None  # only where there is no etag


def version_of(info: ObjectInfo) -> Version:
    """The version of a file as its listing or a read of it tells."""
    return Version(info.size, info.etag, None if info.etag else info.last_modified)


class FileIndex:
    """The footer of one version of a file."""

    def __init__(self, uri: str, info: ObjectInfo, footer: bytes) -> None:
        self.uri = uri
        self.info = info
        self.num_bytes = WEIGHT * len(footer)
        self._footer = footer
        arrow = pyarrow()
        try:
            self.metadata: Any = arrow.parquet.read_metadata(arrow.BufferReader(self.file_without_data()))
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as exc:  # names may be no text
            raise CorruptDataError(f"{uri} is no Parquet file that can be read: {exc}") from exc

    def __reduce__(self) -> Any:
        return _unpickled, (self.uri, tuple(self.info[:4]), self._footer)

    def file_without_data(self) -> Any:
        """A buffer with the footer and what follows it: enough for pyarrow to tell of the file."""
        return pyarrow().py_buffer(self._footer + len(self._footer).to_bytes(4, "little") + MAGIC)

    @property
    def data_end(self) -> int:
        """Where the data ends and the footer begins, in bytes."""
        return self.info.size - TAIL_BYTES - len(self._footer)

    @property
    def num_row_groups(self) -> int:
        return int(self.metadata.num_row_groups)

    @cached_property
    def num_rows(self) -> list[int]:
        """Rows of each row group."""
        return [self.metadata.row_group(number).num_rows for number in range(self.num_row_groups)]

    @cached_property
    def leaves(self) -> list[str]:
        """The dotted path of each leaf column, as in `a` or `point.x`."""
        schema = self.metadata.schema
        return [schema.column(number).path for number in range(self.metadata.num_columns)]

    @cached_property
    def footer(self) -> Footer:
        """The footer, ready to be cut into row groups. Raises CorruptDataError where it names data that cannot be there."""
        with self._naming_the_file():
            footer = Footer(self._footer)
        for number, num_rows in enumerate(self.num_rows):
            if num_rows:  # without rows they may be said to begin at byte 0
                self._check_places(self.metadata.row_group(number))
        return footer

    def _check_places(self, group: Any) -> None:
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.file_path:
                raise S3dlioError(f"cannot read {self.uri}: its columns are in other files: name those")
            length, data_page = chunk.total_compressed_size, chunk.data_page_offset
            start = min(data_page, chunk.dictionary_page_offset or data_page)
            if length < 1 or start < len(MAGIC) or start + length > self.data_end:
                where = f"{length} bytes from {start} on"
                raise CorruptDataError(f"{self.uri} is damaged: it has no {where}, which its footer names as data")

    def chunks(self, row_group: int, leaves: Sequence[int] | None) -> list[Chunk]:
        """The column chunks of `leaves` (None: all) of a row group that has rows."""
        footer = self.footer
        with self._naming_the_file():
            return footer.chunks(row_group, leaves)

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except ValueError as exc:
            raise S3dlioError(f"cannot read {self.uri}: {exc}") from exc


def _unpickled(uri: str, facts: tuple[Any, ...], footer: bytes) -> FileIndex:
    return FileIndex(uri, ObjectInfo(*facts), footer)


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
    files = list(files)
    known = {uri: index for uri, info in files if (index := cache.get(uri, info)) is not None}
    for uri, info, footer in _footers(store, [(uri, info) for uri, info in files if uri not in known], footer_cap):
        known[uri] = FileIndex(uri, info, footer)
        cache.put(known[uri])
    return [known[uri] for uri, _ in files]


class _Piece(NamedTuple):
    """Bytes of a file that hold its footer, or a part of it."""

    uri: str
    info: ObjectInfo
    start: int
    length: int


def _footers(store: Store, files: Iterable[tuple[str, ObjectInfo]], cap: int) -> Iterator[tuple[str, ObjectInfo, bytes]]:
    """(URI, facts, footer): one read of the end of each file, at most `cap` bytes, and another one of what is missing."""
    rest: list[_Piece] = []
    tails: dict[str, bytes] = {}
    for piece, tail in _read(store, [_tail_of(uri, info, cap) for uri, info in files]):
        begin = piece.info.size - TAIL_BYTES - _footer_length(piece, tail)
        if begin >= piece.start:
            yield piece.uri, piece.info, bytes(tail[begin - piece.start : -TAIL_BYTES])
        else:
            rest.append(piece._replace(start=begin, length=piece.start - begin))
            tails[piece.uri] = bytes(tail[:-TAIL_BYTES])
    for piece, head in _read(store, rest):
        yield piece.uri, piece.info, bytes(head) + tails.pop(piece.uri)


def _tail_of(uri: str, info: ObjectInfo, cap: int) -> _Piece:
    if info.size < len(MAGIC) + TAIL_BYTES:
        raise CorruptDataError(f"{uri} is no Parquet file: it has {info.size} bytes only")
    length = min(info.size, max(TAIL_BYTES, min(cap, max(LIKELY_BYTES, info.size // LIKELY_SHARE))))
    return _Piece(uri, info, info.size - length, length)


def _footer_length(piece: _Piece, tail: memoryview) -> int:
    """As it stands before the magic at the file's end."""
    magic = bytes(tail[-len(MAGIC) :])
    if magic == _ENCRYPTED:
        raise S3dlioError(f"cannot read {piece.uri}: it is encrypted, which s3dlio cannot read: write it without encryption")
    length = int.from_bytes(tail[-TAIL_BYTES : -len(MAGIC)], "little")
    if magic != MAGIC:
        raise CorruptDataError(f"{piece.uri} is no Parquet file: it ends in {magic!r}, not in {MAGIC!r}; is it complete?")
    size = piece.info.size
    if not 0 < length <= size - TAIL_BYTES - len(MAGIC):
        raise CorruptDataError(f"{piece.uri} is damaged: a footer of {length} bytes does not fit into its {size} bytes")
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


def replaced(uri: str) -> ChangedError:
    """The error about a file that is another one than that whose footer is known."""
    return ChangedError(f"{uri} was replaced since its footer was read: make a new loader, which reads the new one")


def check_version(uri: str, info: ObjectInfo, result: ReadResult, length: int) -> None:
    """Raise ChangedError unless the bytes are of the version of `info`, IncompleteReadError when some are missing."""
    found = result.info
    if found.size != info.size or (info.etag and found.etag and info.etag != found.etag):
        raise replaced(uri)
    if result.data.nbytes != length:
        raise IncompleteReadError(f"{uri}: {result.data.nbytes} of {length} bytes came")
