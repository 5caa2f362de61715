"""What is known of a Parquet file before its data is read, by its footer, which may lie.

Of a footer pyarrow tells rows and schema, and `footer.py` where data is. pyarrow is never asked for the metadata of a column
chunk: where these contradict the schema, it throws what Python cannot catch, and the process ends.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Any

from ...errors import ChangedError, CorruptDataError, IncompleteReadError, MissingPackageError, S3dlioError
from ...loading import gate
from ...storage.base import ObjectInfo, ReadResult
from .footer import ENCRYPTED, MAGIC, TAIL_BYTES, Chunk, Footer, SchemaChange

__all__ = ["FileIndex", "check_version", "damaged", "pyarrow", "replaced"]

WEIGHT = 6  # memory of a parsed footer, as a multiple of its length
PHYSICAL = dict(enumerate(("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")))


def pyarrow() -> Any:
    """pyarrow with its Parquet part. Raises MissingPackageError where it is not installed."""
    try:
        with gate:
            import pyarrow as package
            import pyarrow.parquet
    except ImportError as exc:
        raise MissingPackageError("reading Parquet needs pyarrow: pip install 's3dlio[parquet]'") from exc
    return package


class FileIndex:
    """The footer of one version of a file: `footer`, ready to be cut into row groups, and pyarrow's `metadata`.

    Raises CorruptDataError, naming the file, where it is damaged, S3dlioError where it is encrypted.
    """

    def __init__(self, uri: str, info: ObjectInfo, footer: bytes) -> None:
        self.uri = uri
        self.info = info
        self.num_bytes = WEIGHT * len(footer)
        self._footer = footer
        with self._naming_the_file():  # first: lists that are longer than the footer would cost pyarrow 200 MiB
            self.footer = Footer(footer)
        arrow = pyarrow()
        try:
            self.metadata: Any = arrow.parquet.read_metadata(arrow.BufferReader(self.file_without_data()))
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as exc:  # names may be no text
            raise damaged(uri, f"its footer cannot be read: {exc}") from exc
        if self.footer.is_encrypted:
            raise S3dlioError(f"cannot read {uri}: {ENCRYPTED}")
        self._check_row_groups()

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
        return len(self.footer.row_groups)

    @cached_property
    def num_rows(self) -> list[int]:
        """Rows of each row group."""
        return [group.num_rows for group in self.footer.row_groups]

    @cached_property
    def leaves(self) -> list[str]:
        """The dotted path of each leaf column, as in `a` or `point.x`."""
        schema = self.metadata.schema
        try:
            return [schema.column(number).path for number in range(self.metadata.num_columns)]
        except UnicodeDecodeError as exc:
            raise damaged(self.uri, f"the name of a column is no text: {exc}") from exc

    @cached_property
    def is_flat(self) -> list[bool]:
        """Has this leaf column one value a row, which may be null?"""
        schema = self.metadata.schema
        return [not schema.column(number).max_repetition_level for number in range(self.metadata.num_columns)]

    def chunks(self, row_group: int, leaves: Sequence[int] | None) -> list[Chunk]:
        """The column chunks of `leaves` (None: all) of a row group that has rows.

        Raises CorruptDataError where the footer names data that cannot be there. What it says of other chunks is not looked
        at: nor may pyarrow be asked, which ends the process when the metadata of a chunk contradict each other.
        """
        with self._naming_the_file():
            chosen = self.footer.chunks(row_group, leaves)
            self._check_places(chosen)
            self._check_values(chosen, range(len(chosen)) if leaves is None else leaves, self.num_rows[row_group])
        return chosen

    def _check_row_groups(self) -> None:
        metadata = self.metadata
        if self.num_rows != [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]:
            raise damaged(self.uri, "its footer can be read in two ways")
        num_columns = metadata.num_columns
        for number, group in enumerate(self.footer.row_groups):
            if group.num_rows < 0 or (group.num_rows and len(group.chunks) != num_columns):
                what = f"{group.num_rows} rows and {len(group.chunks)} of {num_columns} columns"
                raise damaged(self.uri, f"its footer names a row group {number} of {what}")

    def _check_places(self, chosen: Sequence[Chunk]) -> None:
        for chunk in chosen:
            if chunk.length < 1 or chunk.uncompressed < 0 or chunk.start < len(MAGIC) or _end(chunk) > self.data_end:
                where = f"{chunk.length} bytes from {chunk.start} on"
                raise ValueError(f"it has no {where}, which its footer names as data")
        by_place = sorted(chosen, key=operator.attrgetter("start"))
        for chunk, following in pairwise(by_place):
            if _end(chunk) > following.start:
                raise ValueError(f"its footer names the bytes from {following.start} on as data of two columns")

    def _check_values(self, chosen: Sequence[Chunk], leaves: Sequence[int], num_rows: int) -> None:
        for chunk, leaf in zip(chosen, leaves, strict=True):
            if chunk.num_values < num_rows or (self.is_flat[leaf] and chunk.num_values != num_rows):
                raise ValueError(f"its footer has {chunk.num_values} values of {self.leaves[leaf]} in {num_rows} rows")

    def check_claims(self, leaves: Iterable[int]) -> None:
        """Raise CorruptDataError where pyarrow would end the process if it were asked for the statistics of these leaves."""
        places = [(number, leaf) for leaf in leaves for number in range(self.num_row_groups)]
        with self._naming_the_file():
            for number, leaf in places:
                claims, column = self.footer.claims(number, leaf), self.metadata.schema.column(leaf)
                if not (
                    PHYSICAL.get(claims.kind) == column.physical_type
                    and claims.num_repetition_levels in (0, column.max_repetition_level + 1)
                    and claims.num_definition_levels in (0, column.max_definition_level + 1)
                    and claims.counts_text <= (column.physical_type == "BYTE_ARRAY")
                ):
                    raise ValueError(f"row group {number} and schema contradict each other in {self.leaves[leaf]}")

    def cut(self, row_group: int, leaves: Sequence[int] | None, places: Sequence[int], change: SchemaChange | None) -> bytes:
        """The footer of a file that holds these chunks of one row group; see `Footer.cut`."""
        with self._naming_the_file():
            return self.footer.cut(row_group, leaves, places, change)

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except S3dlioError as exc:
            raise S3dlioError(f"cannot read {self.uri}: {exc}") from exc
        except ValueError as exc:
            raise damaged(self.uri, str(exc)) from exc


def _end(chunk: Chunk) -> int:
    return chunk.start + chunk.length


def damaged(uri: str, what: str) -> CorruptDataError:
    """The error about a file that is no Parquet file, or not a whole one."""
    return CorruptDataError(f"{uri} is damaged: {what}; copy or write it once more, or take it away")


def _unpickled(uri: str, facts: tuple[Any, ...], footer: bytes) -> FileIndex:
    return FileIndex(uri, ObjectInfo(*facts), footer)


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
