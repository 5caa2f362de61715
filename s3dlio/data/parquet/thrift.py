"""Thrift's compact protocol, as far as footers of Parquet files need it: where values begin and end, and writing some.

Most of what a footer holds is skipped, and a regular expression does that at many times the speed of Python code. It knows
the shapes that are common (numbers, short texts, small lists and structs of these) and stops before any other one, which
is then skipped value by value.

Source: Thrift, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

__all__ = [
    "BINARY",
    "Common",
    "Field",
    "I64",
    "Inside",
    "LIST",
    "NUMBER",
    "STOP",
    "STRUCT",
    "Struct",
    "UNKNOWN",
    "any_of",
    "binary",
    "common",
    "fields_of",
    "integer",
    "items_of",
    "joined",
    "list_head",
    "list_of",
    "lists",
    "number_at",
    "signed",
    "skipped_struct",
    "struct_of",
    "taken",
]

# Types. A boolean field has its value in its type; one in a list has a byte.
_TRUE, _FALSE, _BYTE, _DOUBLE, _SET, _UUID = 1, 2, 3, 7, 10, 13
_I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_NUMBERS = (4, _I32, I64)
_FIXED_SIZES = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8, _UUID: 16}
STOP = b"\x00"
_LARGEST_STEP = 15  # between the numbers of two fields; a larger one has the number itself written out
UNKNOWN = -_LARGEST_STEP  # before any field: its number is written out

_LARGEST_SHIFT = 63  # of the seven bits of a number that come last

_COMMON_BYTES = 32  # texts shorter than this are common
_COMMON_NUMBERS, _COMMON_ITEMS = 4, 3  # and lists of so many numbers, or of so many texts or structs, at most

Field: TypeAlias = tuple[int, int, int]  # its type, and where its value begins and ends; a plain tuple, for speed
Struct: TypeAlias = dict[int, Field]
Inside: TypeAlias = dict[int, Callable[[int], int]]  # given where a value begins, they tell where it ends


NUMBER = rb"[\x80-\xff]*+[\x00-\x7f]"
"""A number, for a regular expression."""


def any_of(shapes: Iterable[bytes]) -> bytes:
    """One of several shapes, for a regular expression."""
    return b"(?:" + b"|".join(shapes) + b")"


def lists(kind: int, item: bytes, longest: int) -> bytes:
    """Lists of items of a type that have this shape, for a regular expression."""
    return any_of(re.escape(bytes([size << 4 | kind])) + b"(?:%b){%d}" % (item, size) for size in range(longest + 1))


def _heads(*kinds: int) -> bytes:
    return b"[" + b"".join(re.escape(bytes([step << 4 | kind])) for step in range(1, 16) for kind in kinds) + b"]"


class Common(NamedTuple):
    """Common shapes, for a regular expression. Each byte decides what the next may be, so that nothing is tried twice."""

    text: bytes
    numbers: bytes
    texts: bytes
    struct: bytes
    structs: bytes
    field: bytes


@cache
def common() -> Common:
    """The shapes that are common."""
    text = any_of(re.escape(bytes([length])) + b".{%d}" % length for length in range(_COMMON_BYTES))
    numbers = any_of(lists(kind, NUMBER, _COMMON_NUMBERS) for kind in (_I32, I64))
    flat = [_heads(*_NUMBERS) + NUMBER, _heads(_TRUE, _FALSE), _heads(BINARY) + text, _heads(LIST) + numbers]
    struct = any_of(flat) + rb"*+\x00"
    texts, structs = lists(BINARY, text, _COMMON_ITEMS), lists(STRUCT, struct, _COMMON_ITEMS)
    field = any_of([*flat, _heads(STRUCT) + struct, _heads(LIST) + any_of([texts, structs])])
    return Common(text, numbers, texts, struct, structs, field)


@cache
def _common_fields() -> re.Pattern[bytes]:
    """Any number of fields of common shapes."""
    return re.compile(common().field + b"*+", re.DOTALL)


def number_at(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of 7 bits a byte, and where it ends. Raises ValueError where it has no end within ten bytes."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _LARGEST_SHIFT:
            raise ValueError("it has a number of more than 64 bits")


def signed(value: int) -> int:
    """A number as it was before it was written without a sign."""
    return (value >> 1) ^ -(value & 1)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(value: int) -> bytes:
    """A signed number."""
    return _encoded(value << 1 if value >= 0 else (-value << 1) - 1)


def binary(value: bytes) -> bytes:
    """Bytes, or a text."""
    return _encoded(len(value)) + value


def _skipped(data: bytes, kind: int, at: int) -> int:
    """Where a value ends."""
    if kind in _NUMBERS:
        while data[at] > 0x7F:
            at += 1
        return at + 1
    if kind == BINARY:
        length, at = number_at(data, at)
        return at + length
    if kind == STRUCT:
        return skipped_struct(data, at)
    if kind in (LIST, _SET):
        count, kind, at = list_head(data, at)
        if kind in _FIXED_SIZES:
            return at + count * (_FIXED_SIZES[kind] or 1)
        for _ in range(count):
            at = _skipped(data, kind, at)
        return at
    if kind in _FIXED_SIZES:
        return at + _FIXED_SIZES[kind]
    raise ValueError(f"type {kind} of Thrift does not occur in a footer")


def skipped_struct(data: bytes, at: int) -> int:
    """Where a struct ends. Raises IndexError where the data does before."""
    common = _common_fields()
    while head := data[at := _end(common.match(data, at))]:
        at += 1
        if head < 0x10:
            at = number_at(data, at)[1]
        at = _skipped(data, head & 0x0F, at)
    return at + 1


def _end(match: re.Match[bytes] | None) -> int:
    assert match is not None  # it may be empty
    return match.end()


def list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """The number and the type of a list's items, and where the first one begins."""
    head = data[at]
    if head >> 4 < 15:
        return head >> 4, head & 0x0F, at + 1
    count, at = number_at(data, at + 1)
    return count, head & 0x0F, at


def fields_of(data: bytes, at: int, inside: Inside | None = None) -> tuple[Struct, int]:
    """The fields of a struct by number, and where it ends. `inside` walks through values that are of interest themselves."""
    found: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        if head < 0x10:
            value, at = number_at(data, at)
            number = signed(value)
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


def items_of(data: bytes, at: int) -> tuple[list[tuple[int, int]], int]:
    """Where each item of a list of structs begins and ends, and where the list does."""
    count, kind, at = list_head(data, at)
    if count and kind != STRUCT:
        raise ValueError("it has a list of something else than structs")
    found = []
    for _ in range(count):
        start, at = at, skipped_struct(data, at)
        found.append((start, at))
    return found, at


def joined(fields: Iterable[tuple[int, int, bytes]], last: int) -> bytes:
    """(number, type, value) fields, ascending, behind one of number `last`."""
    parts = []
    for number, kind, value in fields:
        parts += [_head(number - last, kind, number), value]
        last = number
    return b"".join(parts)


def taken(data: bytes, fields: Struct, numbers: Iterable[int], last: int) -> bytes:
    """Those fields of a struct that have these numbers, ascending, behind one of number `last`; neighbours in one piece."""
    parts: list[bytes] = []
    begin = stop = 0
    for number in numbers:
        if number in fields:
            kind, start, end = fields[number]
            if start - 1 != stop or not parts:  # else its head says the step from the one before, which is here too
                parts += [data[begin:stop], _head(number - last, kind, number)]
                begin = start
            last, stop = number, end
    return b"".join(parts) + data[begin:stop]


def _head(step: int, kind: int, number: int) -> bytes:
    return bytes([step << 4 | kind]) if step <= _LARGEST_STEP else bytes([kind]) + integer(number)


def struct_of(fields: Iterable[tuple[int, int, bytes]]) -> bytes:
    """A struct of (number, type, value) fields, ascending."""
    return joined(fields, 0) + STOP


def list_of(items: Sequence[bytes]) -> bytes:
    """A list of structs."""
    head = bytes([len(items) << 4 | STRUCT]) if len(items) < 15 else bytes([0xF0 | STRUCT]) + _encoded(len(items))
    return head + b"".join(items)
