"""Footers: any columns of any row group are a file that pyarrow reads as it reads the source; damage is noticed."""

from __future__ import annotations

import contextlib
import io
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import s3dlio
from s3dlio.data.parquet import columns as parquet_columns
from s3dlio.data.parquet import index as parquet_index
from s3dlio.data.parquet.cut import layout_of
from s3dlio.data.parquet.footer import Footer, _common_chunk
from s3dlio.storage.base import ObjectInfo

from .parquet_files import file_of, table

NUM_ROWS = 7
WIDE = pa.table(
    {
        "f16": np.arange(NUM_ROWS, dtype=np.float16),
        "big": pa.array(["long"] * NUM_ROWS, pa.large_string()),
        "cost": pa.array([Decimal(f"{value}.25") for value in range(NUM_ROWS)], pa.decimal128(9, 2)),
        "map": pa.array([[("a", value)] for value in range(NUM_ROWS)], pa.map_(pa.string(), pa.int16())),
        "deep": pa.array([[{"u": value, "v": {"w": [value], "z": "t"}}] for value in range(NUM_ROWS)]),
        "span": pa.array(range(NUM_ROWS), pa.duration("s")),
        "pair": pa.array([[1, 2]] * NUM_ROWS, pa.list_(pa.int8(), 2)),
        "kind": pa.array(["x", "y", "x", None, "y", "x", "z"]).dictionary_encode(),
        "day": pa.array(range(NUM_ROWS), pa.date32()),
        "flag": [True, False, None, True, False, True, None],
        "none": pa.nulls(NUM_ROWS),
    }
)
FORMATS: list[dict[str, Any]] = [
    {},
    {"compression": "zstd", "data_page_version": "2.0"},
    {"compression": "none", "use_dictionary": False, "write_statistics": False, "sorting_columns": None},
    {"version": "1.0", "store_schema": False, "write_page_index": False},
    {"bloom_filter_options": {"big": {"ndv": 10}}},
]
FILES = [file_of(WIDE.replace_schema_metadata({"mine": "kept"}), 3, **options) for options in FORMATS]


def index_of(content: bytes) -> parquet_index.FileIndex:
    length = int.from_bytes(content[-8:-4], "little")
    return parquet_index.FileIndex("memory://x/y.parquet", ObjectInfo("y.parquet", len(content)), content[-8 - length : -8])


def cut(content: bytes, row_group: int, columns: list[int | str] | None) -> bytes:
    """The file that a loader makes of it."""
    index = index_of(content)
    layout = layout_of(index, row_group, parquet_columns.leaves_of(index, columns))
    out = bytearray(b"PAR1")
    for start, end, place in layout.spans:
        assert place == len(out)
        out += content[start:end]
    assert layout.end == len(out)
    return bytes(out + layout.footer)


NUM_LEAVES = len(index_of(FILES[0]).leaves)


@settings(max_examples=40)
@given(
    file=st.integers(0, len(FILES) - 1),
    row_group=st.integers(0, 2),
    columns=st.none() | st.sets(st.integers(0, NUM_LEAVES - 1), min_size=1).map(list),
)
def test_a_row_group_with_any_columns_is_a_file_of_the_same_rows_and_types(
    file: int, row_group: int, columns: list[int | str] | None
) -> None:
    content = FILES[file]
    if columns is not None and (4 in columns) == (3 not in columns):
        columns = sorted({*columns, 3, 4})  # pyarrow reads no half of a map
    source = pq.ParquetFile(io.BytesIO(content))
    names = None if columns is None else [index_of(content).leaves[int(column)] for column in sorted(map(int, columns))]
    expected = source.read_row_group(row_group, columns=names)
    found = pq.ParquetFile(io.BytesIO(cut(content, row_group, columns))).read()
    assert found.schema.equals(expected.schema)
    assert found.combine_chunks().equals(expected.combine_chunks())
    assert found.schema.metadata == expected.schema.metadata
    pq.read_table(io.BytesIO(cut(content, row_group, columns)))


def test_many_columns() -> None:
    wide = pa.table({f"c{number:03}": np.arange(4) + number for number in range(300)})
    content = file_of(wide, 2)
    chosen: list[int | str] = [f"c{number:03}" for number in range(0, 300, 7)]
    assert pq.read_table(io.BytesIO(cut(content, 1, chosen))).equals(wide.slice(2).select(chosen).combine_chunks())
    assert pq.read_table(io.BytesIO(cut(content, 0, None))).equals(wide.slice(0, 2).combine_chunks())


def test_nothing_points_outside_of_the_new_file() -> None:
    out = cut(FILES[4], 1, ["big"])
    column = pq.ParquetFile(io.BytesIO(out)).metadata.row_group(0).column(0)
    assert len(out) < len(FILES[4]) / 3
    assert not column.has_offset_index
    assert not column.has_column_index
    assert column.total_compressed_size < len(out)


FOOTER = FILES[0][-8 - int.from_bytes(FILES[0][-8:-4], "little") : -8]


@settings(max_examples=200)
@given(place=st.integers(0, len(FOOTER) - 1), value=st.binary(min_size=1, max_size=3), length=st.integers(0, len(FOOTER)))
def test_a_damaged_footer_is_read_or_is_an_error_of_ours(place: int, value: bytes, length: int) -> None:
    for damaged in (FOOTER[:place] + value + FOOTER[place + len(value) :], FOOTER[:length]):
        with contextlib.suppress(ValueError, s3dlio.S3dlioError):  # and nothing else, nor without end
            footer = Footer(damaged)
            for number in range(len(footer.row_groups)):
                assert isinstance(footer.chunks(number, None), list)


@pytest.mark.parametrize("content", FILES)
def test_the_short_way_through_a_chunk_tells_what_the_long_one_does(content: bytes) -> None:
    footer = index_of(content).footer
    places = [place for group in footer.row_groups for place in group.chunks]
    assert [footer._chunk(place) for place in places] == [footer._rare_chunk(place) for place in places]
    is_common = content not in (FILES[2], FILES[4])  # one has no statistics, the other bloom filters
    assert bool(_common_chunk().match(footer._data, places[1])) == is_common


@settings(max_examples=200)
@given(place=st.integers(0, 200), value=st.binary(min_size=1, max_size=2))
def test_so_it_does_of_a_damaged_chunk(place: int, value: bytes) -> None:
    at = Footer(FOOTER).row_groups[0].chunks[0]
    damaged = FOOTER[: at + place] + value + FOOTER[at + place + len(value) :]
    with contextlib.suppress(ValueError, s3dlio.S3dlioError):
        footer = Footer(damaged)
        if _common_chunk().match(damaged, at):
            assert footer._chunk(at) == footer._rare_chunk(at)


def test_a_row_group_that_lacks_a_column_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="its footer breaks off, or lacks something"):
        Footer(FOOTER).chunks(0, [0, 1000])


def test_a_footer_that_pyarrow_accepts_and_that_lies_is_noticed() -> None:
    content = file_of(table())
    index = index_of(content)
    index.info = index.info._replace(size=index.info.size // 2)
    with pytest.raises(s3dlio.S3dlioError, match="which its footer names as data"):
        index.chunks(0, None)
