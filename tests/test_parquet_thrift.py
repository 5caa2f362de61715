"""Thrift's compact protocol: structs of all shapes are skipped, and taken over, as they stand."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s3dlio.data.parquet import thrift

Value = tuple[int, bytes]
"""A type, and a value of it."""

NUMBERS = st.tuples(st.sampled_from([4, 5, 6]), st.integers(-(2**40), 2**40).map(thrift.integer))
TEXTS = st.tuples(st.just(thrift.BINARY), st.binary(max_size=200).map(thrift.binary))
OTHERS = st.sampled_from([(1, b""), (2, b""), (3, b"x"), (7, b"8 bytes.")])


def list_of(items: list[Value]) -> Value:
    """A list of the values that have the type of the first one."""
    kind = items[0][0]
    values = [b"\x01" if kind < 3 else value for other, value in items if other == kind]
    count = len(values)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind, count])
    return thrift.LIST, head + b"".join(values)


def struct_of(steps_and_values: list[tuple[int, Value]]) -> Value:
    """A struct whose fields lie these steps apart."""
    fields, number = [], 0
    for step, (kind, value) in steps_and_values:
        number += step
        fields.append((number, kind, value))
    return thrift.STRUCT, thrift.struct_of(fields)


def structs(values: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    return st.lists(st.tuples(st.integers(1, 20), values), max_size=20).map(struct_of)


VALUES = st.recursive(
    NUMBERS | TEXTS | OTHERS,
    lambda inner: st.lists(inner, min_size=1, max_size=20).map(list_of) | structs(inner),
    max_leaves=40,
)


@given(structs(VALUES), st.binary(max_size=3))
@example((thrift.STRUCT, thrift.STOP), b"")
def test_a_struct_is_skipped_to_its_end(struct: Value, behind: bytes) -> None:
    assert thrift.skipped_struct(b"?" + struct[1] + behind, 1) == 1 + len(struct[1])


@given(structs(VALUES), st.integers(1, 2**20 - 1), st.sampled_from([0, thrift.UNKNOWN]))
def test_fields_are_taken_as_they_stand(struct: Value, which: int, last: int) -> None:
    data = struct[1]
    fields, end = thrift.fields_of(data, 0)
    assert end == len(data)
    chosen = [number for place, number in enumerate(sorted(fields)) if which >> place & 1]
    values = [(number, fields[number][0], data[fields[number][1] : fields[number][2]]) for number in chosen]
    assert thrift.taken(data, fields, [*chosen, 1000], last) == thrift.joined(values, last)


@pytest.mark.parametrize("count", [2**20, 2**61])
def test_a_list_that_is_longer_than_the_data_costs_no_time(count: int) -> None:
    booleans = bytes([0x10 | thrift.LIST, 0xF1]) + thrift.integer(count) + thrift.STOP
    with pytest.raises(IndexError):
        thrift.skipped_struct(booleans, 0)


@pytest.mark.parametrize("kind", [7, 13])
def test_a_list_of_values_of_a_fixed_size_that_is_longer_than_the_data_costs_no_time(kind: int) -> None:
    doubles = bytes([0x10 | thrift.LIST, 0xF0 | kind]) + thrift.integer(2**40) + thrift.STOP
    with pytest.raises(IndexError):
        thrift.skipped_struct(doubles, 0)


def test_a_number_of_any_length_costs_no_time() -> None:
    assert thrift.number_at(b"\xff" * 9 + b"\x01", 0) == (2**64 - 1, 10)
    with pytest.raises(ValueError, match="more than 64 bits"):
        thrift.number_at(b"\xff" * 10 + b"\x01", 0)


def test_a_list_of_numbers_is_none_of_structs() -> None:
    with pytest.raises(ValueError, match="something else than structs"):
        thrift.items_of(b"\x16\x02", 0)
    assert thrift.items_of(b"\x06", 0) == ([], 1)
