"""Footers of Parquet files: one row group of a file becomes a file of its own, whose column chunks are not touched.

A footer is a Thrift structure in the compact protocol. Of it only the places where a value begins and ends are sought, and
all that does not change is taken over byte by byte, so that what this module does not know survives too. Left out are
page indexes, bloom filters and offsets of files, which would point at what is not there.

Sources: Thrift, "Thrift Compact protocol encoding"; Apache Parquet, `parquet.thrift` (the numbers of the fields).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

__all__ = ["Chunk", "Footer", "MAGIC", "RowGroup", "SchemaChange", "TAIL_BYTES"]

MAGIC = b"PAR1"
TAIL_BYTES = 8  # behind the footer: its length (4 bytes, little-endian) and the magic

# Types of the compact protocol. A boolean field has its value in its type; one in a list has a byte.
_TRUE, _FALSE, _BYTE, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 6, 7, 8, 9, 10, 12
_NUMBERS = (4, 5, 6)
_FIXED_SIZES = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8, 13: 16}
_STOP = b"\x00"
_LARGEST_STEP = 15  # between the numbers of two fields; a larger one has the number itself written out
_UNKNOWN = -_LARGEST_STEP  # before any field: its number is written out

# Numbers of fields.
_FILE_SCHEMA, _FILE_NUM_ROWS, _FILE_ROW_GROUPS, _FILE_KEY_VALUES, _FILE_ORDERS, _FILE_ENCRYPTION = 2, 3, 4, 5, 7, 8
_ELEMENT_NUM_CHILDREN = 5
_GROUP_COLUMNS, _GROUP_TOTAL, _GROUP_NUM_ROWS, _GROUP_SORTING, _GROUP_COMPRESSED = 1, 2, 3, 4, 6
_CHUNK_PATH, _CHUNK_OFFSET, _CHUNK_META = 1, 2, 3
_META_UNCOMPRESSED, _META_COMPRESSED, _META_DATA_PAGE, _META_DICTIONARY_PAGE = 6, 7, 9, 11
_CHUNK_HEAD = bytes([_CHUNK_OFFSET << 4 | _I64, 0, (_CHUNK_META - _CHUNK_OFFSET) << 4 | _STRUCT])  # an offset of 0
_META_BEFORE, _META_BEHIND = (1, 2, 3, 4, 5, 6, 7, 8), (12, 13, 16, 17)  # what is kept: no offsets, no bloom filters

SchemaChange: TypeAlias = Callable[[bytes, bytes], bytes | None]
"""What becomes of a pair of the file's metadata, key and value: another value, or None to leave it out."""


_Field: TypeAlias = tuple[int, int, int]  # its type, and where its value begins and ends; a plain tuple, for speed
_Struct: TypeAlias = dict[int, _Field]
_Inside: TypeAlias = dict[int, Callable[[int], int]]  # given where a value begins, they tell where it ends


class Chunk(NamedTuple):
    """A column chunk: where its bytes are in the file, and what is known of them."""

    start: int
    length: int
    uncompressed: int
    data_page: int  # offset from `start`
    dictionary_page: int | None  # as well
    before: bytes  # fields of its metadata, as they are to stand before these offsets
    behind: bytes  # and behind them


class RowGroup(NamedTuple):
    """A row group: rows, chunks of all leaf columns, and which columns it is sorted by (as it stands in the footer)."""

    num_rows: int
    chunks: Sequence[Chunk]
    sorting: tuple[int, int, bytes] | None


def _number(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of 7 bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _integer(value: int) -> bytes:
    return _encoded(value << 1 if value >= 0 else (-value << 1) - 1)


def _skipped(data: bytes, kind: int, at: int) -> int:
    """Where a value ends."""
    if kind in _NUMBERS:
        while data[at] > 0x7F:
            at += 1
        return at + 1
    if kind == _BINARY:
        length, at = _number(data, at)
        return at + length
    if kind == _STRUCT:
        return _skipped_struct(data, at)
    if kind in (_LIST, _SET):
        count, kind, at = _list_head(data, at)
        for _ in range(count):
            at = at + 1 if kind <= _BYTE else _skipped(data, kind, at)
        return at
    if kind in _FIXED_SIZES:
        return at + _FIXED_SIZES[kind]
    raise ValueError(f"type {kind} of Thrift does not occur in a footer")


def _skipped_struct(data: bytes, at: int) -> int:
    while head := data[at]:
        at += 1
        if head < 0x10:
            at = _number(data, at)[1]
        kind = head & 0x0F
        if kind in _NUMBERS:  # most of what there is, so not by a call
            while data[at] > 0x7F:
                at += 1
            at += 1
        elif kind == _BINARY and data[at] <= 0x7F:
            at += 1 + data[at]
        else:
            at = _skipped(data, kind, at)
    return at + 1


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """The number and the type of a list's items, and where the first one begins."""
    head = data[at]
    if head >> 4 < 15:
        return head >> 4, head & 0x0F, at + 1
    count, at = _number(data, at + 1)
    return count, head & 0x0F, at


def _fields(data: bytes, at: int, inside: _Inside | None = None) -> tuple[_Struct, int]:
    """The fields of a struct by number, and where it ends. `inside` walks through values that are of interest themselves."""
    found: _Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        if head < 0x10:
            value, at = _number(data, at)
            number = _signed(value)
        else:
            number += head >> 4
        start, kind = at, head & 0x0F
        if kind in _NUMBERS:
            while data[at] > 0x7F:
                at += 1
            at += 1
        else:
            at = inside[number](at) if inside and number in inside else _skipped(data, kind, at)
        found[number] = kind, start, at
    return found, at + 1


def _items(data: bytes, field: _Field) -> Iterable[tuple[int, int]]:
    """Where the items of a list of structs begin and end."""
    count, _, at = _list_head(data, field[1])
    for _ in range(count):
        start, at = at, _skipped_struct(data, at)
        yield start, at


def _joined(fields: Iterable[tuple[int, int, bytes]], last: int) -> bytes:
    """(number, type, value) fields, ascending, behind one of number `last`."""
    parts = []
    for number, kind, value in fields:
        step = number - last
        parts.append(bytes([step << 4 | kind]) if step <= _LARGEST_STEP else bytes([kind]) + _integer(number))
        parts.append(value)
        last = number
    return b"".join(parts)


def _struct(fields: Iterable[tuple[int, int, bytes]]) -> bytes:
    """A struct of (number, type, value) fields, ascending."""
    return _joined(fields, 0) + _STOP


def _list(items: Sequence[bytes]) -> bytes:
    """A list of structs."""
    head = bytes([len(items) << 4 | _STRUCT]) if len(items) < 15 else bytes([0xF0 | _STRUCT]) + _encoded(len(items))
    return head + b"".join(items)


def _binary(value: bytes) -> bytes:
    return _encoded(len(value)) + value


class Footer:
    """The footer of a file. Raises ValueError for what is none, or is of a kind that cannot be cut into row groups."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.row_groups: list[RowGroup] = []
        self._chunks: list[Chunk] = []  # of the row group that is being read
        self._meta: _Struct = {}  # of the chunk that is being read
        self._last_choice: tuple[tuple[int, ...], dict[int, bytes]] = ((), {})
        try:
            # In one pass: a footer of thousands of chunks takes 20 µs for each.
            self._file, _ = _fields(data, 0, {_FILE_ROW_GROUPS: self._each(self._row_group)})
        except (IndexError, KeyError) as exc:
            raise ValueError(f"its footer is damaged ({type(exc).__name__} while it was read)") from exc
        if _FILE_ENCRYPTION in self._file:
            raise ValueError("it is encrypted, which s3dlio cannot read: write it without encryption")
        if not self._file.keys() >= {_FILE_SCHEMA, _FILE_NUM_ROWS, _FILE_ROW_GROUPS}:
            raise ValueError("its footer is damaged: what it must have is missing")

    def _integer(self, field: _Field) -> int:
        return _signed(_number(self._data, field[1])[0])

    def _value(self, number: int, field: _Field) -> tuple[int, int, bytes]:
        kind, start, end = field
        return number, kind, self._data[start:end]

    def _each(self, walk: Callable[[int], int]) -> Callable[[int], int]:
        """`walk` through every item of a list."""

        def walk_list(at: int) -> int:
            count, _, at = _list_head(self._data, at)
            for _ in range(count):
                at = walk(at)
            return at

        return walk_list

    def _row_group(self, at: int) -> int:
        self._chunks = []
        group, end = _fields(self._data, at, {_GROUP_COLUMNS: self._each(self._chunk)})
        sorting = self._value(_GROUP_SORTING, group[_GROUP_SORTING]) if _GROUP_SORTING in group else None
        self.row_groups.append(RowGroup(self._integer(group[_GROUP_NUM_ROWS]), self._chunks, sorting))
        return end

    def _chunk(self, at: int) -> int:
        chunk, end = _fields(self._data, at, {_CHUNK_META: self._walk_meta})
        if _CHUNK_PATH in chunk:
            raise ValueError("its columns are in other files: name those")
        if _CHUNK_META not in chunk:
            raise ValueError("it is encrypted, which s3dlio cannot read: write it without encryption")
        meta = self._meta
        start = data_page = self._integer(meta[_META_DATA_PAGE])
        dictionary_page = self._integer(meta[_META_DICTIONARY_PAGE]) if _META_DICTIONARY_PAGE in meta else 0
        if 0 < dictionary_page < data_page:
            start = dictionary_page
        self._chunks.append(
            Chunk(
                start,
                self._integer(meta[_META_COMPRESSED]),
                self._integer(meta[_META_UNCOMPRESSED]),
                data_page - start,
                0 if start == dictionary_page else None,
                _joined((self._value(number, meta[number]) for number in _META_BEFORE if number in meta), 0),
                _joined((self._value(number, meta[number]) for number in _META_BEHIND if number in meta), _UNKNOWN),
            )
        )
        return end

    def _walk_meta(self, at: int) -> int:
        self._meta, end = _fields(self._data, at)
        return end

    def cut(
        self, row_group: int, columns: Sequence[int] | None, places: Sequence[int], change: SchemaChange | None = None
    ) -> bytes:
        """The footer, its length and the magic for a file that holds the leaf `columns` (None: all) of one row group.

        `places` says where in that file each of these column chunks begins; `change` what becomes of the metadata.
        """
        group = self.row_groups[row_group]
        chosen = range(len(group.chunks)) if columns is None else columns
        chunks = [group.chunks[column] for column in chosen]
        fields: list[tuple[int, int, bytes]] = [
            (_GROUP_COLUMNS, _LIST, _list([_chunk_at(*pair) for pair in zip(chunks, places, strict=True)])),
            (_GROUP_TOTAL, _I64, _integer(sum(chunk.uncompressed for chunk in chunks))),
            (_GROUP_NUM_ROWS, _I64, _integer(group.num_rows)),
            (_GROUP_COMPRESSED, _I64, _integer(sum(chunk.length for chunk in chunks))),
        ]
        if columns is None and group.sorting is not None:  # it names columns by their numbers
            fields.insert(3, group.sorting)
        changed = {
            _FILE_NUM_ROWS: _integer(group.num_rows),
            _FILE_ROW_GROUPS: _list([_struct(fields)]),
        }
        if columns is not None:
            changed |= self._changed_for(tuple(columns), change)
        file = _struct(
            (number, kind, changed.get(number, self._data[start:end]))
            for number, (kind, start, end) in sorted(self._file.items())
        )
        return file + len(file).to_bytes(4, "little") + MAGIC

    def _changed_for(self, columns: tuple[int, ...], change: SchemaChange | None) -> dict[int, bytes]:
        """What else a choice of columns changes: schema, metadata, and the orders of columns. The last one is kept."""
        choice, known = self._last_choice  # at once: other threads replace it
        if columns == choice:
            return known
        changed = {_FILE_SCHEMA: _list(self._schema(set(columns)))}
        if _FILE_KEY_VALUES in self._file and change is not None:
            changed[_FILE_KEY_VALUES] = _list(list(self._key_values(change)))
        if _FILE_ORDERS in self._file:
            orders = [self._data[start:end] for start, end in _items(self._data, self._file[_FILE_ORDERS])]
            changed[_FILE_ORDERS] = _list([orders[column] for column in columns])
        self._last_choice = columns, changed
        return changed

    def _schema(self, chosen: set[int]) -> list[bytes]:
        """The elements of the schema, depth first, that are left when only the `chosen` leaves are."""
        elements = [(start, *_fields(self._data, start)) for start, _ in _items(self._data, self._file[_FILE_SCHEMA])]
        remaining = iter(elements)
        num_leaves = 0

        def pruned() -> list[bytes]:
            nonlocal num_leaves
            start, fields, end = next(remaining)
            num_children = self._integer(fields[_ELEMENT_NUM_CHILDREN]) if _ELEMENT_NUM_CHILDREN in fields else 0
            if not num_children:
                num_leaves += 1
                return [self._data[start:end]] if num_leaves - 1 in chosen else []
            children = [kept for kept in (pruned() for _ in range(num_children)) if kept]
            if not children:
                return []
            values = {number: self._value(number, field) for number, field in sorted(fields.items())}
            kind = fields[_ELEMENT_NUM_CHILDREN][0]
            values[_ELEMENT_NUM_CHILDREN] = (_ELEMENT_NUM_CHILDREN, kind, _integer(len(children)))
            return [_struct(values.values()), *(element for child in children for element in child)]

        return pruned()

    def _key_values(self, change: SchemaChange) -> Iterable[bytes]:
        for start, end in _items(self._data, self._file[_FILE_KEY_VALUES]):
            fields, _ = _fields(self._data, start)
            key, value = (self._text(fields.get(number)) for number in (1, 2))
            changed = change(key, value)
            if changed == value:
                yield self._data[start:end]
            elif changed is not None:
                yield _struct([(1, _BINARY, _binary(key)), (2, _BINARY, _binary(changed))])

    def _text(self, field: _Field | None) -> bytes:
        if field is None:
            return b""
        length, start = _number(self._data, field[1])
        return self._data[start : start + length]


def _chunk_at(chunk: Chunk, place: int) -> bytes:
    """A column chunk that begins at byte `place`."""
    offsets = _joined([(_META_DATA_PAGE, _I64, _integer(place + chunk.data_page))], _UNKNOWN)
    if chunk.dictionary_page is not None:
        page = (_META_DICTIONARY_PAGE, _I64, _integer(place + chunk.dictionary_page))
        offsets += _joined([page], _META_DATA_PAGE)
    return _CHUNK_HEAD + chunk.before + offsets + chunk.behind + _STOP + _STOP
