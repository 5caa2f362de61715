"""Footers of Parquet files: one row group of a file becomes a file of its own, whose column chunks are not touched.

Of a footer only the places where a value begins and ends are sought, and those of a column chunk only when it is wanted. All
that does not change is taken over byte by byte, so that what this module does not know survives too. Left out are page
indexes, bloom filters and offsets of files, which would point at what is not there.

Source: Apache Parquet, `parquet.thrift` (the numbers of the fields).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple, TypeAlias

from ...errors import S3dlioError
from .thrift import (
    BINARY,
    I64,
    LIST,
    NUMBER,
    STOP,
    STRUCT,
    UNKNOWN,
    Field,
    Struct,
    binary,
    common,
    fields_of,
    integer,
    items_of,
    joined,
    list_head,
    list_of,
    number_at,
    signed,
    struct_of,
    taken,
)

__all__ = ["Chunk", "Claims", "ENCRYPTED", "Footer", "MAGIC", "RowGroup", "SchemaChange", "TAIL_BYTES"]

MAGIC = b"PAR1"
TAIL_BYTES = 8  # behind the footer: its length (4 bytes, little-endian) and the magic

ENCRYPTED = "it is encrypted, which s3dlio cannot read: write it without encryption"

# Numbers of fields.
_FILE_SCHEMA, _FILE_NUM_ROWS, _FILE_ROW_GROUPS, _FILE_KEY_VALUES, _FILE_ORDERS, _FILE_ENCRYPTION = 2, 3, 4, 5, 7, 8
_ELEMENT_NUM_CHILDREN = 5
_GROUP_COLUMNS, _GROUP_TOTAL, _GROUP_NUM_ROWS, _GROUP_SORTING, _GROUP_COMPRESSED = 1, 2, 3, 4, 6
_CHUNK_FILE, _CHUNK_OFFSET, _CHUNK_META = 1, 2, 3
_META_TYPE, _META_VALUES, _META_UNCOMPRESSED, _META_COMPRESSED = 1, 5, 6, 7
_META_DATA_PAGE, _META_DICTIONARY_PAGE, _META_STATISTICS, _META_SIZES = 9, 11, 12, 16
_SIZES_TEXT, _SIZES_REPETITION, _SIZES_DEFINITION = 1, 2, 3
_CHUNK_HEAD = bytes([_CHUNK_OFFSET << 4 | I64, 0, (_CHUNK_META - _CHUNK_OFFSET) << 4 | STRUCT])  # an offset of 0
_DATA_PAGE_HEAD = joined([(_META_DATA_PAGE, I64, b"")], UNKNOWN)
_DICTIONARY_PAGE_HEAD = joined([(_META_DICTIONARY_PAGE, I64, b"")], _META_DATA_PAGE)
_BEHIND_HEAD = joined([(_META_STATISTICS, STRUCT, b"")], UNKNOWN)
_META_BEFORE, _META_BEHIND = (1, 2, 3, 4, 5, 6, 7, 8), (12, 13, 16, 17)  # what is kept: no offsets, no bloom filters

SchemaChange: TypeAlias = Callable[[bytes, bytes], bytes | None]
"""What becomes of a pair of the file's metadata, key and value: another value, or None to leave it out."""


@contextmanager
def _damage() -> Iterator[None]:
    """Where the footer ends too early, is no end of structs in structs, or lacks what it must have, it is a ValueError."""
    try:
        yield
    except (IndexError, KeyError, OverflowError, RecursionError) as exc:
        raise ValueError(f"its footer breaks off, or lacks something ({type(exc).__name__} while it was read)") from exc


class Chunk(NamedTuple):
    """A column chunk: where its bytes are in the file, and what is known of them."""

    start: int
    length: int
    uncompressed: int
    num_values: int
    data_page: int  # offset from `start`
    dictionary_page: int | None  # as well
    before: bytes  # fields of its metadata, as they are to stand before these offsets
    behind: bytes  # and behind them


class Claims(NamedTuple):
    """What a column chunk says of itself that the schema says, too; 0 and False for what it does not say."""

    kind: int  # its physical type, by number
    num_repetition_levels: int
    num_definition_levels: int
    counts_text: bool


class RowGroup(NamedTuple):
    """A row group: rows, where its column chunks begin in the footer, and what it is sorted by, as it stands there."""

    num_rows: int
    chunks: Sequence[int]
    sorting: tuple[int, int, bytes] | None


class Footer:
    """The footer of a file.

    It, and its methods, raise ValueError for what is none, S3dlioError for what cannot be cut into row groups. Sizes and
    places are told as it says them.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.row_groups: list[RowGroup] = []
        self._chunks: dict[int, Chunk] = {}  # that were wanted, by where they begin
        self._last_choice: tuple[tuple[int, ...], dict[int, bytes]] = ((), {})
        with _damage():
            self._file, _ = fields_of(data, 0, {_FILE_ROW_GROUPS: self._walk_row_groups})
        if not self._file.keys() >= {_FILE_SCHEMA, _FILE_NUM_ROWS, _FILE_ROW_GROUPS}:
            raise ValueError("its footer lacks what it must have")

    @property
    def is_encrypted(self) -> bool:
        """Does it speak of encryption?"""
        return _FILE_ENCRYPTION in self._file

    def _integer(self, field: Field) -> int:
        return signed(number_at(self._data, field[1])[0])

    def _value(self, number: int, field: Field) -> tuple[int, int, bytes]:
        kind, start, end = field
        return number, kind, self._data[start:end]

    def _items(self, field: Field) -> list[tuple[int, int]]:
        return items_of(self._data, field[1])[0]

    def _walk_row_groups(self, at: int) -> int:
        count, _, at = list_head(self._data, at)
        for _ in range(count):
            at = self._walk_row_group(at)
        return at

    def _walk_row_group(self, at: int) -> int:
        chunks: list[tuple[int, int]] = []

        def walk_chunks(at: int) -> int:
            found, end = items_of(self._data, at)
            chunks.extend(found)
            return end

        group, end = fields_of(self._data, at, {_GROUP_COLUMNS: walk_chunks})
        sorting = self._value(_GROUP_SORTING, group[_GROUP_SORTING]) if _GROUP_SORTING in group else None
        num_rows = self._integer(group[_GROUP_NUM_ROWS])
        self.row_groups.append(RowGroup(num_rows, [start for start, _ in chunks], sorting))
        return end

    def chunks(self, row_group: int, columns: Sequence[int] | None) -> list[Chunk]:
        """The chunks of these leaf columns (None: all) of a row group."""
        with _damage():
            places = self.row_groups[row_group].chunks
            chosen = places if columns is None else [places[column] for column in columns]
            return [self._chunks.get(place) or self._chunks.setdefault(place, self._chunk(place)) for place in chosen]

    def claims(self, row_group: int, column: int) -> Claims:
        """What the chunk of a leaf column says of itself."""
        with _damage():
            meta = self._meta(self.row_groups[row_group].chunks[column])
            sizes = fields_of(self._data, meta[_META_SIZES][1])[0] if _META_SIZES in meta else {}
            num_repetition_levels, num_definition_levels = (
                list_head(self._data, sizes[number][1])[0] if number in sizes else 0
                for number in (_SIZES_REPETITION, _SIZES_DEFINITION)
            )
            kind = self._integer(meta[_META_TYPE])
            return Claims(kind, num_repetition_levels, num_definition_levels, _SIZES_TEXT in sizes)

    def _meta(self, at: int) -> Struct:
        """The metadata of the column chunk that begins there."""
        meta: Struct = {}

        def walk_meta(at: int) -> int:
            found, end = fields_of(self._data, at)
            meta.update(found)
            return end

        chunk, _ = fields_of(self._data, at, {_CHUNK_META: walk_meta})
        if not meta:
            raise S3dlioError(ENCRYPTED)
        if self._text(chunk.get(_CHUNK_FILE)):
            raise S3dlioError("its columns are in other files: name those")
        return meta

    def _chunk(self, at: int) -> Chunk:
        match = _common_chunk().match(self._data, at)
        if match is None:
            return self._rare_chunk(at)
        _, before, *numbers, dictionary, behind = match.regs
        values, uncompressed, length, data_page = [signed(number_at(self._data, start)[0]) for start, _ in numbers]
        dictionary_page = signed(number_at(self._data, dictionary[0])[0]) if dictionary[0] >= 0 else 0
        return _chunk_of(
            values,
            uncompressed,
            length,
            data_page,
            dictionary_page,
            self._data[slice(*before)],
            _BEHIND_HEAD + self._data[slice(*behind)] if behind[0] >= 0 else b"",
        )

    def _rare_chunk(self, at: int) -> Chunk:
        meta = self._meta(at)
        return _chunk_of(
            self._integer(meta[_META_VALUES]),
            self._integer(meta[_META_UNCOMPRESSED]),
            self._integer(meta[_META_COMPRESSED]),
            self._integer(meta[_META_DATA_PAGE]),
            self._integer(meta[_META_DICTIONARY_PAGE]) if _META_DICTIONARY_PAGE in meta else 0,
            taken(self._data, meta, _META_BEFORE, 0),
            taken(self._data, meta, _META_BEHIND, UNKNOWN),
        )

    def cut(
        self, row_group: int, columns: Sequence[int] | None, places: Sequence[int], change: SchemaChange | None = None
    ) -> bytes:
        """The footer, its length and the magic for a file that holds the leaf `columns` (None: all) of one row group.

        `places` says where in that file each of these column chunks begins; `change` what becomes of the metadata.
        """
        with _damage():
            return self._cut(row_group, columns, places, change)

    def _cut(
        self, row_group: int, columns: Sequence[int] | None, places: Sequence[int], change: SchemaChange | None
    ) -> bytes:
        group = self.row_groups[row_group]
        chunks = self.chunks(row_group, columns)
        fields: list[tuple[int, int, bytes]] = [
            (_GROUP_COLUMNS, LIST, list_of([_chunk_at(*pair) for pair in zip(chunks, places, strict=True)])),
            (_GROUP_TOTAL, I64, integer(sum(chunk.uncompressed for chunk in chunks))),
            (_GROUP_NUM_ROWS, I64, integer(group.num_rows)),
            (_GROUP_COMPRESSED, I64, integer(sum(chunk.length for chunk in chunks))),
        ]
        if columns is None and group.sorting is not None:  # it names columns by their numbers
            fields.insert(3, group.sorting)
        changed = {
            _FILE_NUM_ROWS: integer(group.num_rows),
            _FILE_ROW_GROUPS: list_of([struct_of(fields)]),
        }
        if columns is not None:
            changed |= self._changed_for(tuple(columns), change)
        file = struct_of(
            (number, kind, changed.get(number, self._data[start:end]))
            for number, (kind, start, end) in sorted(self._file.items())
        )
        return file + len(file).to_bytes(4, "little") + MAGIC

    def _changed_for(self, columns: tuple[int, ...], change: SchemaChange | None) -> dict[int, bytes]:
        """What else a choice of columns changes: schema, metadata, and the orders of columns. The last one is kept."""
        choice, known = self._last_choice  # at once: other threads replace it
        if columns == choice:
            return known
        changed = {_FILE_SCHEMA: list_of(self._schema(set(columns)))}
        if _FILE_KEY_VALUES in self._file and change is not None:
            changed[_FILE_KEY_VALUES] = list_of(list(self._key_values(change)))
        if _FILE_ORDERS in self._file:
            orders = [self._data[start:end] for start, end in self._items(self._file[_FILE_ORDERS])]
            changed[_FILE_ORDERS] = list_of([orders[column] for column in columns])
        self._last_choice = columns, changed
        return changed

    def _schema(self, chosen: set[int]) -> list[bytes]:
        """The elements of the schema, depth first, that are left when only the `chosen` leaves are."""
        elements = [(start, *fields_of(self._data, start)) for start, _ in self._items(self._file[_FILE_SCHEMA])]
        remaining = elements[::-1]
        num_leaves = 0

        def pruned() -> list[bytes]:
            nonlocal num_leaves
            start, fields, end = remaining.pop()
            num_children = self._integer(fields[_ELEMENT_NUM_CHILDREN]) if _ELEMENT_NUM_CHILDREN in fields else 0
            if not num_children:
                num_leaves += 1
                return [self._data[start:end]] if num_leaves - 1 in chosen else []
            children = [kept for kept in (pruned() for _ in range(num_children)) if kept]
            if not children:
                return []
            values = {number: self._value(number, field) for number, field in sorted(fields.items())}
            kind = fields[_ELEMENT_NUM_CHILDREN][0]
            values[_ELEMENT_NUM_CHILDREN] = (_ELEMENT_NUM_CHILDREN, kind, integer(len(children)))
            return [struct_of(values.values()), *(element for child in children for element in child)]

        kept = pruned()
        if remaining:
            raise ValueError("its schema counts fewer columns than it names")
        return kept

    def _key_values(self, change: SchemaChange) -> Iterable[bytes]:
        for start, end in self._items(self._file[_FILE_KEY_VALUES]):
            fields, _ = fields_of(self._data, start)
            key, value = (self._text(fields.get(number)) for number in (1, 2))
            changed = change(key, value)
            if changed == value:
                yield self._data[start:end]
            elif changed is not None:
                yield struct_of([(1, BINARY, binary(key)), (2, BINARY, binary(changed))])

    def _text(self, field: Field | None) -> bytes:
        if field is None:
            return b""
        length, start = number_at(self._data, field[1])
        return self._data[start : start + length]


@cache
def _common_chunk() -> re.Pattern[bytes]:
    """A column chunk as most are, up to the end of its metadata: all that `Chunk` tells in one step.

    It has neither another file nor metadata of its own nor bloom filter. Groups: what stands before the offsets; values,
    sizes, data page, dictionary page; what stands behind the offsets, but for the head of its first field.
    """
    some = common()
    before = rb"\x15%b\x19%b\x19%b\x15%b" % (NUMBER, some.numbers, some.texts, NUMBER)
    sizes = rb"\x16(%b)" % NUMBER * 3
    offsets = rb"\x26(%b)(?:\x26(%b))?+" % (NUMBER, NUMBER)
    statistics = rb"(?(6)\x1c|\x3c)(%b" % some.struct  # the step to their number depends on whether there is a dictionary
    behind = rb"(?:%b(?:\x19%b(?:\x3c%b)?+|(?:\x4c%b)?+)))?+" % (statistics, some.structs, some.struct, some.struct)
    return re.compile(rb"\x26%b\x1c(%b%b)%b%b\x00" % (NUMBER, before, sizes, offsets, behind), re.DOTALL)


def _chunk_of(
    num_values: int, uncompressed: int, length: int, data_page: int, dictionary_page: int, before: bytes, behind: bytes
) -> Chunk:
    start = dictionary_page if 0 < dictionary_page < data_page else data_page
    dictionary = 0 if start == dictionary_page else None
    return Chunk(start, length, uncompressed, num_values, data_page - start, dictionary, before, behind)


def _chunk_at(chunk: Chunk, place: int) -> bytes:
    """A column chunk that begins at byte `place`."""
    offsets = _DATA_PAGE_HEAD + integer(place + chunk.data_page)
    if chunk.dictionary_page is not None:
        offsets += _DICTIONARY_PAGE_HEAD + integer(place + chunk.dictionary_page)
    return b"".join((_CHUNK_HEAD, chunk.before, offsets, chunk.behind, STOP, STOP))
