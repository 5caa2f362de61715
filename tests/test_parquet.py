"""The Parquet loader: the guide's examples on every scheme, its options value by value, items, orders."""

from __future__ import annotations

import copy
import io
import pickle
import textwrap
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import s3dlio
from s3dlio.data.parquet.options import ParquetOptions

from .conftest import Place
from .parquet_files import LEAVES, file_of, joined, table, tables_of

pytestmark = pytest.mark.filterwarnings("ignore:the file system of direct")

FILES = [file_of(table(number)) for number in range(2)]
WHOLE = joined(map(table, range(2)))
NUM_GROUPS = 8
DECODES = ("raw", "arrow", "batch")


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """No test goes by what another one has read."""
    s3dlio.parquet_cache_clear()


@pytest.fixture
def train(place: Place) -> str:
    """Two files of four row groups on every scheme, among what writers leave behind."""
    for number, content in enumerate(FILES):
        place.put(f"train/part-{number}.parquet", content)
    for name in ("_SUCCESS", ".part-0.parquet.crc", "_temporary/0/part-9.parquet", "notes.txt"):
        place.put(f"train/{name}", b"")
    return place.root + "train/"


def load(uri: str, **options: Any) -> Any:
    return s3dlio.create_async_loader(uri, {"format": "parquet", **options})


def rows(uri: str, decode: str = "batch", **options: Any) -> pa.Table:
    return joined(tables_of(load(uri, decode=decode, **options), decode))


class TestGuide:
    """Every example of the second guide's Parquet half, as it stands there but for the URI."""

    def run(self, uri: str, code: str, **names: Any) -> dict[str, Any]:
        scope = {"s3dlio": s3dlio, **names}
        exec(textwrap.dedent(code.replace('"s3://bucket/train/"', repr(uri))), scope)
        return scope

    def test_quick_start(self, train: str) -> None:
        tables: list[pa.Table] = []
        code = """
        import s3dlio

        # Raw mode (default) — Python receives compressed Parquet column-chunk bytes
        loader = s3dlio.create_async_loader(
            "s3://bucket/train/",
            {"format": "parquet", "prefetch": 32}
        )

        for item in loader:
            # item["data"]: bytes  — the row-group payload
            # item["uri"]:  str   — URI of the source file (any s3dlio scheme)
            # item["rg_idx"]: int — row-group index within the file
            import pyarrow.parquet as pq, io
            table = pq.read_table(io.BytesIO(item["data"]))
            # ... feed to PyTorch / JAX / TensorFlow ...
            seen(table, item)
        """
        places: list[tuple[str, int]] = []
        self.run(train, code, seen=lambda found, item: (tables.append(found), places.append((item["uri"], item["rg_idx"]))))
        assert joined(tables).equals(WHOLE)
        assert places == [(f"{train}part-{file}.parquet", number) for file in range(2) for number in range(4)]

    def test_arrow_ipc(self, train: str) -> None:
        batches: list[pa.RecordBatch] = []
        code = """
        # Arrow IPC mode — Rust decodes to Arrow RecordBatch, serialises to IPC bytes
        loader = s3dlio.create_async_loader(
            "s3://bucket/train/",
            {"format": "parquet", "decode": "arrow", "prefetch": 32}
        )

        for item in loader:
            import pyarrow as pa
            batch = pa.ipc.open_stream(pa.py_buffer(item["data"])).read_next_batch()
            # batch: pyarrow.RecordBatch — fully decoded, in Arrow memory format
            seen(batch)
        """
        self.run(train, code, seen=batches.append)
        assert len(batches) == NUM_GROUPS
        assert pa.Table.from_batches(batches).combine_chunks().equals(WHOLE)

    def test_epochs(self, train: str) -> None:
        sizes: list[int] = []
        code = """
        for epoch in range(num_epochs):
            loader = s3dlio.create_async_loader(
                "s3://bucket/train/",
                {"format": "parquet", "prefetch": 32}
            )
            for item in loader:
                train(item["data"])
            # Index persists across loop iterations — epoch 2+ is 2.5x faster to construct
        """
        self.run(train, code, num_epochs=3, train=lambda data: sizes.append(len(data)))
        assert len(sizes) == 3 * NUM_GROUPS
        assert sizes[:NUM_GROUPS] == sizes[NUM_GROUPS : 2 * NUM_GROUPS] == sizes[2 * NUM_GROUPS :]

    def test_dlio(self, train: str) -> None:
        class Config:
            data_folder = train
            prefetch_size = 2

        code = """
        def read(config):
            # In a DLIO plugin / reader callback:
            loader = s3dlio.create_async_loader(
                config.data_folder,   # any s3dlio URI: "s3://…", "az://…", "gs://…", "file://…", "direct://…"
                {
                    "format":   "parquet",
                    "decode":   "raw",     # decode_mode=none equivalent
                    "prefetch": config.prefetch_size,
                }
            )
            for item in loader:
                yield item["data"]  # return bytes to DLIO without decoding
        """
        read = self.run(train, code)["read"]
        assert joined(pq.read_table(io.BytesIO(data)) for data in read(Config)).equals(WHOLE)


class TestOptions:
    """The guide's table, value by value, and what there is besides."""

    def test_the_defaults_are_those_of_the_guide(self) -> None:
        options = ParquetOptions()
        assert (options.decode, options.columns, options.footer_cap, options.prefetch) == ("raw", None, 4194304, 32)

    @pytest.mark.parametrize("decode", DECODES)
    @pytest.mark.parametrize(
        ("columns", "names"),
        [
            (None, None),
            ([0], ["x"]),
            ([7, 0, 0], ["x", "when"]),
            (["kind", "vector"], ["kind", "vector"]),
            ([4, "point.b"], ["vector", "point.b"]),
            (["point"], ["point"]),
            ([5, 2], ["name", "point.a"]),
        ],
    )
    def test_columns(self, train: str, decode: str, columns: Any, names: list[str] | None) -> None:
        found = rows(train, decode, columns=columns)
        expected = joined(pq.ParquetFile(io.BytesIO(content)).read(columns=names) for content in FILES)
        assert found.schema.equals(expected.schema)
        assert found.equals(expected)

    @pytest.mark.parametrize("prefetch", [1, 3])
    @pytest.mark.parametrize("footer_cap", [1, 1000, 4194304])
    def test_prefetch_and_footer_cap_change_no_byte(self, train: str, prefetch: int, footer_cap: int) -> None:
        assert rows(train, prefetch=prefetch, footer_cap=footer_cap).equals(WHOLE)

    @pytest.mark.parametrize(
        ("filters", "groups"),
        [
            ([("label", "<", 35)], [0, 1]),
            ([("label", "<", 35), ("x", ">=", 30)], [1]),
            ([[("label", "=", 3)], [("label", "in", [1099])]], [0, 7]),
            (pc.field("x") > 5000, []),
        ],
    )
    def test_row_groups_are_left_out_by_their_statistics(self, train: str, filters: Any, groups: list[int]) -> None:
        loader = load(train, filters=filters)
        assert [4 * int(item.uri.endswith("1.parquet")) + item.rg_idx for item in loader] == groups
        assert len(loader) == len(groups)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"decod": "raw"}, "no option decod; it has columns, decode, epoch, filters, footer_cap"),
            ({"decode": "ipc"}, "decode='ipc' is none of raw, arrow, batch"),
            ({"prefetch": 0}, "prefetch=0 is too small: 1"),
            ({"prefetch": "8"}, "prefetch is a whole number"),
            ({"prefetch": True}, "prefetch is a whole number"),
            ({"prefetch": 10**30}, "prefetch=1.* is too large"),
            ({"prefetch": np.arange(2)}, "prefetch is a whole number"),
            ({"decode": ["raw"]}, "decode="),
            ({"columns": b"x"}, "columns is a list"),
            ({"on_error": ["skip"]}, "on_error="),
            ({"footer_cap": 0}, "footer_cap=0"),
            ({"columns": "x"}, "columns is a list"),
            ({"columns": []}, "columns is a list"),
            ({"columns": [1.5]}, "neither a number nor a name"),
            ({"shuffle": 1}, "shuffle is True or False"),
            ({"rank": 2, "world_size": 2}, "rank=2 lies outside"),
        ],
    )
    def test_what_cannot_be_is_a_value_error(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            load("memory://nowhere/", **options)

    def test_another_format_is_refused(self) -> None:
        with pytest.raises(s3dlio.ConfigError, match="format='csv'"):
            s3dlio.create_async_loader("memory://nowhere/", {"format": "csv"})

    @pytest.mark.parametrize("opts", ["parquet", 3, [("format", "parquet")], True, {"format": ["parquet"]}], ids=str)
    def test_options_are_a_dict(self, opts: Any) -> None:
        with pytest.raises(s3dlio.ConfigError, match=r"options of a loader are a dict|format="):
            s3dlio.create_async_loader("memory://nowhere/", opts)

    @pytest.mark.parametrize("column", [8, -1, "no such", "vec", "point.c"])
    def test_a_column_that_does_not_exist_names_the_file_and_those_that_do(self, train: str, column: Any) -> None:
        with pytest.raises(s3dlio.ConfigError) as failure:
            load(train, columns=[0, column])
        assert f"{train}part-0.parquet has no column {column!r}: it has 8 columns" in str(failure.value)
        assert ", ".join(LEAVES) in str(failure.value)

    def test_a_filter_on_a_column_that_does_not_exist(self, train: str) -> None:
        with pytest.raises(s3dlio.ConfigError, match=r"filters cannot be applied to .*part-0.*it has 8 columns"):
            load(train, filters=[("nothing", ">", 1)])


class TestItems:
    @pytest.mark.parametrize("decode", ["raw", "arrow"])
    def test_an_item_is_a_buffer_with_its_origin(self, train: str, decode: str) -> None:
        item = list(load(train, decode=decode))[5]
        assert (item["uri"], item["rg_idx"]) == (item.uri, item.rg_idx) == (f"{train}part-1.parquet", 1)
        assert bytes(item) == bytes(item["data"]) == bytes(item.data) == bytes(memoryview(item))
        assert len(item) == item.byte_count == len(item["data"])
        assert dict(item).keys() == {"data", "uri", "rg_idx"}
        with pytest.raises(KeyError, match="an item has data, uri, rg_idx"):
            item["rows"]
        for again in (pickle.loads(pickle.dumps(item)), copy.copy(item), copy.deepcopy(item)):
            assert (again.uri, again.rg_idx, bytes(again)) == (item.uri, item.rg_idx, bytes(item))

    def test_a_batch_has_the_same_facts(self, train: str) -> None:
        item = next(iter(load(train, decode="batch", columns=["x"])))
        assert isinstance(item["data"], pa.RecordBatch)
        assert dict(item) == {"data": item.data, "uri": f"{train}part-0.parquet", "rg_idx": 0}
        assert item.to_numpy()["x"].tolist() == list(range(30))

    def test_a_raw_item_holds_the_chunks_as_they_were_stored_and_no_index_of_pages(self, train: str) -> None:
        item = list(load(train))[1]
        source, copy = pq.ParquetFile(io.BytesIO(FILES[0])), pq.ParquetFile(io.BytesIO(item))
        assert (copy.metadata.num_row_groups, copy.metadata.num_rows) == (1, 30)
        for number in range(copy.metadata.num_columns):
            old, new = source.metadata.row_group(1).column(number), copy.metadata.row_group(0).column(number)
            starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in (old, new)]
            length = old.total_compressed_size
            assert item[starts[1] : starts[1] + length] == FILES[0][starts[0] : starts[0] + length]
            assert (new.has_offset_index, new.has_column_index, new.file_offset) == (False, False, 0)
            assert (new.statistics, new.encodings) == (old.statistics, old.encodings)
        assert copy.metadata.row_group(0).sorting_columns == source.metadata.row_group(1).sorting_columns
        assert copy.metadata.metadata == source.metadata.metadata


class TestOrder:
    def places(self, loader: Any) -> list[tuple[str, int]]:
        return [(item.uri, item.rg_idx) for item in loader]

    def test_a_shuffled_order_is_that_of_seed_and_epoch(self, train: str) -> None:
        first = load(train, shuffle=True, seed=3)
        epochs = [self.places(first), self.places(first)]
        assert first.epoch == 2
        assert epochs[0] != epochs[1]
        assert sorted(epochs[0]) == sorted(epochs[1]) == self.places(load(train))
        assert self.places(load(train, shuffle=True, seed=3, epoch=1)) == epochs[1]

    def test_ranks_share_all_row_groups(self, train: str) -> None:
        parts = [load(train, rank=rank, world_size=3) for rank in range(3)]
        shares = [self.places(part) for part in parts]
        assert [len(part) for part in parts] == [len(share) for share in shares] == [3, 3, 2]
        assert sorted(place for share in shares for place in share) == self.places(load(train))

    @pytest.mark.parametrize("num_taken", [0, 1, 5, 8])
    def test_a_state_resumes_exactly(self, train: str, num_taken: int) -> None:
        loader = load(train, shuffle=True, seed=1, prefetch=3)
        items = iter(loader)
        taken = [(item.uri, item.rg_idx) for _, item in zip(range(num_taken), items, strict=False)]
        state = loader.state_dict()
        rest = self.places(items)
        other = load(train, shuffle=True, seed=9)
        other.load_state_dict(state)
        assert self.places(other) == rest
        assert len(set(taken + rest)) == 8
        assert self.places(other) == self.places(load(train, shuffle=True, seed=1, epoch=1))

    def test_a_state_goes_on_with_another_number_of_ranks(self, train: str) -> None:
        first = [load(train, shuffle=True, seed=1, rank=rank, world_size=2) for rank in range(2)]
        running = [iter(loader) for loader in first]
        taken = [(item.uri, item.rg_idx) for _ in range(2) for item in map(next, running)]
        assert first[0].state_dict() == first[1].state_dict()
        for later in (load(train, shuffle=True, rank=rank, world_size=3) for rank in range(3)):
            later.load_state_dict(first[0].state_dict())
            taken += self.places(later)
        assert sorted(taken) == self.places(load(train))

    def test_the_state_of_other_files_is_refused(self, train: str) -> None:
        state = load(train, filters=[("label", "<", 35)]).state_dict()
        with pytest.raises(ValueError, match="taken on 2 samples and there are 8"):
            load(train).load_state_dict(state)


def test_without_a_format_it_is_the_object_loader(train: str) -> None:
    loader = s3dlio.create_async_loader(f"{train}part-1.parquet", {"prefetch": 2})
    assert isinstance(loader, s3dlio.PyBytesAsyncDataLoader)
    assert [bytes(view) for view in loader] == [FILES[1]]
