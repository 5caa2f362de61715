"""Row groups as batches of tensors: shared memory, ranks, workers, state."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import s3dlio
import s3dlio.torch
from s3dlio.data.parquet.arrays import to_numpy
from s3dlio.torch import ParquetDataset, split_rows, to_tensors

from .conftest import Place
from .parquet_files import file_of, table

pytestmark = pytest.mark.filterwarnings("ignore:the file system of direct")
COLUMNS = ["label", "vector", "kind"]


@pytest.fixture
def train(place: Place) -> str:
    for number in range(3):
        place.put(f"train/{number}.parquet", file_of(table(number)))
    return place.root + "train/"


@pytest.fixture
def local_train(tmp_path: Any) -> str:
    for number in range(3):
        (tmp_path / f"{number}.parquet").write_bytes(file_of(table(number)))
    return f"file://{tmp_path}/"


def firsts(batches: Any) -> list[int]:
    """The first label of each batch, which tells its row group."""
    return [int(batch["label"][0]) for batch in batches]


ALL = [1000 * file + first for file in range(3) for first in (0, 30, 60, 90)]


def test_batches_are_dicts_of_tensors(train: str) -> None:
    batches = list(ParquetDataset(train, columns=COLUMNS))
    assert firsts(batches) == ALL
    batch = batches[5]
    assert torch.equal(batch["label"], torch.arange(1030, 1060))
    assert torch.equal(batch["vector"], torch.arange(120, 240, dtype=torch.float32).reshape(30, 4) + 1)
    assert batch["kind"][:3] == ["kind 1", "kind 2", "kind 0"]


def test_a_slice_of_a_batch_gives_its_rows() -> None:
    column = pa.array(np.arange(10, dtype=np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(20)), 2)
    batch = pa.RecordBatch.from_arrays([column, vectors], ["x", "v"]).slice(2, 5)
    tensors = to_tensors(batch)
    assert tensors["x"].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert tensors["v"].tolist() == [[4, 5], [6, 7], [8, 9], [10, 11], [12, 13]]


def test_what_is_decoded_is_not_copied_again(local_train: str) -> None:
    item = next(iter(s3dlio.create_async_loader(local_train, {"format": "parquet", "decode": "batch"})))
    tensors = to_tensors(item.data)
    assert tensors["label"].data_ptr() == item.data.column("label").buffers()[1].address
    assert tensors["vector"].data_ptr() == item.data.column("vector").values.buffers()[1].address
    tensors["label"][0] = -1
    assert item.data.column("label")[0].as_py() == -1


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1.5, None], pa.float32()), np.array([1.5, np.nan], np.float32)),
        (pa.array([True, False]), np.array([True, False])),
        (pa.array(["a", None]), np.array(["a", None], object)),
        (pa.array([1, 2], pa.uint8()), np.array([1, 2], np.uint8)),
        (pa.array([1, 2], pa.timestamp("ms")), np.array([1, 2], "datetime64[ms]")),
        (pa.array(["a", "b"]).dictionary_encode(), np.array(["a", "b"], object)),
    ],
)
def test_the_type_of_an_array_is_that_of_its_column(column: pa.Array, expected: np.ndarray[Any, Any]) -> None:
    found = to_numpy(pa.RecordBatch.from_arrays([column], ["x"]))["x"]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "column", [pa.array([1, None]), pa.array([True, None]), pa.array([[1, 2], None], pa.list_(pa.int8(), 2))]
)
def test_a_null_that_would_change_the_type_is_an_error_that_names_the_column(column: pa.Array) -> None:
    with pytest.raises(ValueError, match="column 'x' has 1 nulls"):
        to_numpy(pa.RecordBatch.from_arrays([column], ["x"]))


def test_times_are_whole_numbers_and_lists_stay_lists(local_train: str) -> None:
    batch = next(iter(ParquetDataset(local_train, columns=["when", "name"])))
    assert batch["when"].dtype == torch.int64
    assert batch["when"][2] == 2_000_000
    assert batch["name"][:2] == [None, "row 1"]


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.date32(), pa.duration("s")])
def test_a_null_among_times_is_an_error_not_a_number(kind: pa.DataType) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, None], kind)], ["when"])
    with pytest.raises(ValueError, match="column 'when' has nulls"):
        to_tensors(batch)
    assert to_tensors(batch.slice(0, 1))["when"].tolist() == [1]


def test_a_batch_is_cut_into_smaller_ones_of_the_same_memory(local_train: str) -> None:
    batch = next(iter(ParquetDataset(local_train, columns=COLUMNS)))
    parts = list(split_rows(batch, 8))
    assert [len(part["label"]) for part in parts] == [8, 8, 8, 6]
    assert parts[1]["vector"].data_ptr() == batch["vector"][8].data_ptr()
    assert parts[3]["kind"] == batch["kind"][24:]
    with pytest.raises(ValueError, match="num_rows=0"):
        next(split_rows(batch, 0))


@pytest.mark.parametrize(("method", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_workers_share_the_row_groups(local_train: str, method: str, num_workers: int) -> None:
    dataset = ParquetDataset(local_train, columns=["label"], shuffle=True, seed=2)
    context = multiprocessing.get_context(method)
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=context)
    assert len(loader) == 12
    assert firsts(loader) == firsts(dataset)
    assert sorted(firsts(dataset)) == ALL


@pytest.mark.parametrize(("num_workers", "later_workers"), [(0, 2), (2, 0)])
def test_a_loader_resumes_exactly_with_other_workers_and_ranks(
    local_train: str, num_workers: int, later_workers: int
) -> None:
    def make(rank: int, world_size: int, workers: int) -> Any:
        dataset = ParquetDataset(local_train, columns=["label"], shuffle=True, seed=4, rank=rank, world_size=world_size)
        return s3dlio.torch.loader(dataset, batch_size=None, num_workers=workers)

    whole = firsts(make(0, 1, 0))
    running = [make(rank, 2, num_workers) for rank in range(2)]
    steps = [iter(loader) for loader in running]
    taken = [first for _ in range(2) for step in steps for first in firsts([next(step)])]
    assert taken == whole[:4]
    assert running[0].state_dict() == running[1].state_dict()
    later = make(0, 1, later_workers)
    later.load_state_dict(running[0].state_dict())
    assert firsts(later) == whole[4:]


def test_the_state_of_the_dataset_itself(local_train: str) -> None:
    dataset = ParquetDataset(local_train, columns=["label"], shuffle=True)
    items = iter(dataset)
    taken = firsts(next(items) for _ in range(5))
    other = ParquetDataset(local_train, columns=["label"], shuffle=True)
    other.load_state_dict(dataset.state_dict())
    assert sorted(taken + firsts(other)) == ALL


def test_an_error_in_a_worker_keeps_its_kind_and_names_the_file(local_train: str) -> None:
    dataset = ParquetDataset(local_train, columns=["label"])
    s3dlio.delete(f"{local_train}1.parquet")
    with pytest.raises(s3dlio.NotFoundError, match=r"1\.parquet"):
        list(DataLoader(dataset, batch_size=None, num_workers=1))


def test_columns_and_filters_are_checked_when_it_is_made(local_train: str) -> None:
    with pytest.raises(s3dlio.ConfigError, match="has no column 'y'"):
        ParquetDataset(local_train, columns=["y"])
    assert len(ParquetDataset(local_train, filters=[("label", ">=", 2000)])) == 4
    assert [int(total) for total in ParquetDataset(local_train, lambda batch: batch["label"].sum(), rank=2, world_size=3)]


def test_two_columns_of_one_name_are_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="several columns of the name 'd'"):
        to_numpy(pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["d", "d"]))


def test_lists_of_lists_of_a_fixed_size_have_three_axes() -> None:
    column = pa.array([[[1, 2], [3, 4], [5, 6]]] * 2, pa.list_(pa.list_(pa.int32(), 2), 3))
    found = to_numpy(pa.RecordBatch.from_arrays([column], ["x"]))["x"]
    assert found.tolist() == [[[1, 2], [3, 4], [5, 6]]] * 2


@pytest.mark.parametrize("values", [[1, 2000], [1000, 2000]])
def test_nanoseconds_of_a_day_have_the_type_of_their_column(values: list[int]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.time64("ns"))], ["t"])
    assert to_numpy(batch)["t"].dtype == np.dtype("m8[ns]")
    assert to_tensors(batch)["t"].tolist() == values


def test_a_null_in_a_file_is_an_error_that_says_where() -> None:
    file = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1, 2, None]}), file, 2)
    s3dlio.put_bytes("memory://nulls/a.parquet", file.getvalue())
    where = r"row group 1 of memory://nulls/a\.parquet: column 'x' has 1 nulls"
    with pytest.raises(ValueError, match=where):
        list(ParquetDataset("memory://nulls/"))
    items = list(s3dlio.create_async_loader("memory://nulls/", {"format": "parquet", "decode": "batch"}))
    with pytest.raises(ValueError, match=where):
        items[1].to_numpy()


@pytest.mark.parametrize("filters", ["x", [], [("label", "~", 3)], [("label",)], 5])
def test_filters_of_no_form_are_an_error_of_ours(local_train: str, filters: Any) -> None:
    with pytest.raises(s3dlio.ConfigError, match="filters="):
        ParquetDataset(local_train, filters=filters)


def test_the_name_of_a_column_that_is_no_text_is_damage() -> None:
    file = pa.BufferOutputStream()
    pq.write_table(pa.table({"xyz": [1]}), file, store_schema=False)
    s3dlio.put_bytes("memory://no-text/a.parquet", file.getvalue().to_pybytes().replace(b"xyz", b"x\xffz"))
    for decode in ("raw", "batch"):
        for columns in (None, ["x"]):
            options = {"format": "parquet", "decode": decode, "columns": columns}
            with pytest.raises(s3dlio.CorruptDataError, match=r"no-text/a\.parquet"):
                list(s3dlio.create_async_loader("memory://no-text/", options))


@pytest.mark.parametrize("decode", ["raw", "batch"])
def test_the_values_of_a_map_bring_its_keys(decode: str) -> None:
    file = pa.BufferOutputStream()
    maps = pa.array([[("k", [("l", 1)])]], pa.map_(pa.string(), pa.map_(pa.string(), pa.int32())))
    whole = pa.table({"x": [1], "m": maps})
    pq.write_table(whole, file)
    s3dlio.put_bytes("memory://maps/a.parquet", file.getvalue())
    options = {"format": "parquet", "decode": decode, "columns": ["m.key_value.value.key_value.value"]}
    [item] = s3dlio.create_async_loader("memory://maps/", options)
    found = pq.read_table(pa.py_buffer(item)) if decode == "raw" else pa.Table.from_batches([item.data])
    assert found.to_pydict() == whole.select(["m"]).to_pydict()
