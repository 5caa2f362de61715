"""Single row groups by number, and which row group holds a sample: names that readers of benchmarks use."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from ... import config, objects, runtime
from ...config import MIB
from ...errors import ChangedError, ConfigError
from ...uri import parse
from .columns import Columns, leaves_of
from .cut import Cut
from .files import cache, indexes
from .index import FileIndex
from .items import FINISHERS
from .read import stream

__all__ = [
    "PyParquetIndex",
    "configure_tokio_threads",
    "parquet_cache_clear",
    "parquet_cache_invalidate",
    "parquet_cache_len",
    "parquet_get_rg",
    "parquet_rg_row_offsets",
]

FOOTER_CAP = 4 * MIB


def parquet_get_rg(
    uri: str, rg_idx: int, col_indices: Columns | None = None, footer_cap: int = FOOTER_CAP, decode: str = "arrow"
) -> Any:
    """Read one row group of a file: the item that a loader with these options gives.

    `decode` is "arrow", "raw" or "batch". The footer is read once per process; when the file turns out to be another one
    than it was then, its new footer is read. Raises IndexError for a row group that the file does not have, or
    that has no rows.
    """
    if decode not in FINISHERS:
        raise ConfigError(f"decode={decode!r} is none of {', '.join(FINISHERS)}")
    uri = parse(uri).uri
    index = cache.last(uri)
    if index is not None:
        try:
            return _read(index, rg_idx, col_indices, decode)
        except ChangedError:
            cache.drop(uri)
    return _read(_index_of(uri, footer_cap), rg_idx, col_indices, decode)


def _read(index: FileIndex, row_group: int, columns: Columns | None, decode: str) -> Any:
    _check_row_group(index, row_group)
    cut = Cut(index, row_group, leaves_of(index, columns), decode)
    store, _ = objects.resolve(index.uri)
    return next(stream(store, iter([cut]), FINISHERS[decode], prefetch=1, options=config.snapshot()))


def _check_row_group(index: FileIndex, row_group: int) -> None:
    if not 0 <= row_group < index.num_row_groups:
        raise IndexError(f"{index.uri} has no row group {row_group}: it has {index.num_row_groups}, from 0 on")
    if not index.num_rows[row_group]:
        raise IndexError(f"row group {row_group} of {index.uri} has no rows: nothing to read")


def _index_of(uri: str, footer_cap: int) -> FileIndex:
    store, key = objects.resolve(uri)
    return indexes(store, [(uri, store.stat(key))], footer_cap)[0]


def parquet_rg_row_offsets(uri: str, footer_cap: int = FOOTER_CAP) -> list[int]:
    """The number of the first row of each row group, and the number of all rows at the end."""
    return _row_offsets(_index_of(parse(uri).uri, footer_cap))


def _row_offsets(index: FileIndex) -> list[int]:
    return list(accumulate(index.num_rows, initial=0))


def parquet_cache_len() -> int:
    """How many files this process knows the footer of."""
    return len(cache)


def parquet_cache_invalidate(uri: str) -> bool:
    """Forget the footer of a file. Was it known?"""
    return cache.drop(parse(uri).uri)


def parquet_cache_clear() -> None:
    """Forget the footers of all files."""
    cache.clear()


def configure_tokio_threads(num_threads: int | None = None) -> None:
    """Let at most `num_threads` I/O threads be made from now on, in children as well; without a number, change nothing.

    The name is that of an earlier package, and is called by programs that were written for it. It is the same as setting
    `S3DLIO_WORKER_THREADS`.
    """
    if num_threads is not None:
        config.set_worker_threads(num_threads)


class PyParquetIndex:
    """Which row group of which file holds a sample, and where its bytes are.

    `col_indices` are the leaf columns that count in byte ranges (None: all). Files are known once `ensure_indexed` has seen
    them; asking for others is a KeyError. Footers are shared with the loaders of the process.
    """

    def __init__(self, col_indices: Columns | None = None, footer_cap: int = FOOTER_CAP) -> None:
        self._columns = col_indices
        self._footer_cap = footer_cap
        self._files: dict[str, FileIndex] = {}
        self._fetched: set[tuple[str, int]] = set()

    def ensure_indexed(self, uris: Iterable[str], epoch: int = 1, batch_size: int = 16) -> None:
        """Read the footers of files that are new or were replaced, at most `batch_size` requests at once.

        Each file is asked for its size and version, in every epoch. A file that is known and did not change costs no more.
        """
        del epoch  # what is known is checked, whichever epoch it comes from
        names = [parse(uri).uri for uri in uris]
        found: dict[str, Any] = {}
        for (store, key), info in runtime.each(_stat, objects.places_of(names), window=max(1, batch_size)):
            if isinstance(info, BaseException):
                raise info
            found.setdefault(store.root, (store, []))[1].append((store.root + key, info))
        for store, files in found.values():
            self._files.update((index.uri, index) for index in indexes(store, files, self._footer_cap))

    def _file(self, uri: str) -> FileIndex:
        try:
            return self._files[parse(uri).uri]
        except KeyError:
            raise KeyError(f"{uri} is not indexed: call ensure_indexed([uri]) first") from None

    def is_indexed(self, uri: str) -> bool:
        """Is this file known?"""
        return parse(uri).uri in self._files

    def file_count(self) -> int:
        """The number of files that are known."""
        return len(self._files)

    def file_rg_count(self, uri: str) -> int:
        """The number of row groups of a file."""
        return self._file(uri).num_row_groups

    def rg_for_sample(self, uri: str, sample: int) -> int:
        """The row group that holds row `sample` of the file. Raises IndexError for a row that it does not have."""
        offsets = _row_offsets(self._file(uri))
        if not 0 <= sample < offsets[-1]:
            raise IndexError(f"{uri} has no row {sample}: it has {offsets[-1]}, from 0 on")
        return bisect_right(offsets, sample) - 1

    def rg_range(self, uri: str, rg_idx: int) -> tuple[int, int]:
        """(offset, length) of the bytes from the first to the last wanted column chunk of a row group."""
        index = self._file(uri)
        _check_row_group(index, rg_idx)
        wanted = index.chunks(rg_idx, leaves_of(index, self._columns))
        start = min(chunk.start for chunk in wanted)
        return start, max(chunk.start + chunk.length for chunk in wanted) - start

    def rg_lookup(self, uri: str, sample: int) -> tuple[int, int, int]:
        """(row group, offset, length) for row `sample` of the file."""
        row_group = self.rg_for_sample(uri, sample)
        return row_group, *self.rg_range(uri, row_group)

    def was_fetched(self, uri: str, rg_idx: int) -> bool:
        """Was this row group marked?"""
        return (parse(uri).uri, rg_idx) in self._fetched

    def mark_fetched(self, uri: str, rg_idx: int) -> None:
        """Mark a row group."""
        self._fetched.add((parse(uri).uri, rg_idx))

    def check_and_mark(self, uri: str, rg_idx: int) -> bool:
        """Mark a row group. Was it marked before?"""
        was_fetched = self.was_fetched(uri, rg_idx)
        self.mark_fetched(uri, rg_idx)
        return was_fetched

    def invalidate_uri(self, uri: str) -> None:
        """Forget a file, its marks, and its footer in the whole process."""
        name = parse(uri).uri
        self._files.pop(name, None)
        self._fetched = {mark for mark in self._fetched if mark[0] != name}
        cache.drop(name)

    def clear(self) -> None:
        """Forget all files and marks of this index; other indexes and loaders keep what they know."""
        self._files.clear()
        self._fetched.clear()


def _stat(place: tuple[Any, str]) -> Any:
    store, key = place
    return store.stat(key)
